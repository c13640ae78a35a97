"""Generate functions of slime: ``generate(args, sample, sampling_params)`` in place of our turns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from miles_core.adapters.slime.arguments import arguments
from miles_core.adapters.slime.call import check, keywords, names, number
from miles_core.adapters.slime.from_slime import trainable_sample
from miles_core.adapters.slime.sample import Sample, sample_class
from miles_core.adapters.slime.to_slime import EXTRA, chat_messages, task_sample, thaw
from miles_core.errors import PluginError, RolloutError
from miles_core.kinds.generate import EpisodeResult
from miles_core.lib.calls import call
from miles_core.types import Message, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.kinds.base import PluginContext
    from miles_core.kinds.generate import EpisodeFunction, EpisodeHandle

SIGNATURE = "generate(args, sample, sampling_params)"
_SHAPES = ("temperature", "top_p", "top_k", "min_p")


def adapt(function: Callable[..., Any]) -> Callable[[Any, PluginContext], EpisodeFunction]:
    """A factory for a slime generate function, sync or async.

    Raises:
        PluginError: if it does not take ``args``, a sample and sampling parameters.
    """
    from pydantic import BaseModel, ConfigDict, Field

    if names(function)[:1] == ["input"]:
        raise PluginError(
            'adapter = "slime" does not adapt generate functions that take one `input`, as newer versions of Miles do',
            remedy=f"Write {SIGNATURE}, which they take as well.",
        )
    check(function, SIGNATURE, "args", "sample", "sampling_params")

    class SlimeGenerate:
        class Config(BaseModel):
            model_config = ConfigDict(extra="allow")
            reward_key: str | None = Field(None, description="the entry that counts where sample.reward is a mapping")

        def __init__(self, config: Config, context: PluginContext) -> None:
            self._key, self._tokenizer = config.reward_key, context.tokenizer
            self._args = arguments(context, config.model_dump(), apply_chat_template=True)
            self._class = sample_class(function)

        async def __call__(self, episode: EpisodeHandle) -> EpisodeResult:
            sample, sampling = self._sample(episode), _sampling(episode, self._args, self._tokenizer)
            asked = {key: sampling.get(key) for key in _SHAPES}
            evaluation = keywords(function, evaluation=episode.evaluation)
            filled = await call(partial(function, self._args, sample, sampling, **evaluation))
            if changed := [key for key in _SHAPES if sampling.get(key) != asked[key]]:
                raise RolloutError(
                    f"the function changed {changed[0]} of its sampling_params, so the logprobs are of other "
                    "distributions than the trainer's",
                    remedy="Set sampling.temperature in the config; top_p, top_k and min_p stay off.",
                )
            return self._result(_one(filled), episode)

        def _sample(self, episode: EpisodeHandle) -> Any:
            prompt = self._tokenizer.apply_chat_template(
                chat_messages(episode.task.messages), add_generation_prompt=True, tokenize=False
            )
            return task_sample(episode.task, self._class, prompt=prompt, session_id=episode.id)

        def _result(self, sample: Any, episode: EpisodeHandle) -> EpisodeResult:
            status = _status(sample)
            if not status.trainable:
                return EpisodeResult(status, error=f"the function set sample.status to {status.value}")
            if sample.remove_sample:
                return EpisodeResult(Status.FAILED, reason="removed", error="the function set sample.remove_sample")
            made = trainable_sample(sample, status, episode)
            text = sample.response or self._tokenizer.decode(sample.tokens[-int(sample.response_length) :])
            return EpisodeResult(
                status,
                reward=number(sample.reward, self._key),
                info=_info(sample, episode),
                samples=(made,),
                messages=(*episode.task.messages, Message("assistant", text)),
            )

    return SlimeGenerate


def _sampling(episode: EpisodeHandle, args: Any, tokenizer: Any) -> dict[str, Any]:
    """The ``sampling_params``; ``max_new_tokens`` is what the prompt leaves of a trajectory's budgets."""
    ours = episode.sampling(0)
    prompt = len(episode.prepare(episode.task.messages).input_ids)
    room = getattr(args, "rollout_max_context_len", prompt + ours.max_new_tokens) - prompt
    return {
        "temperature": ours.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": max(0, min(getattr(args, "rollout_max_response_len", room), room)),
        "stop": args.rollout_stop,
        "stop_token_ids": [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id],
        "skip_special_tokens": args.rollout_skip_special_tokens,
        "no_stop_trim": True,
        "sampling_seed": ours.sampling_seed,
    }


def _one(filled: Any) -> Any:
    filled = getattr(filled, "samples", filled)  # what Miles may wrap it in
    if isinstance(filled, list):
        if len(filled) != 1:
            raise RolloutError(
                f"the function returned {len(filled)} samples; several samples of one trajectory are not supported",
                remedy="Return one sample: the whole conversation, with loss_mask 0 where it is not to be trained.",
            )
        filled = filled[0]
    missing = [name for name in ("tokens", "response_length", "loss_mask", "status") if not hasattr(filled, name)]
    if missing:
        raise RolloutError(f"the function must return the sample; got {type(filled).__name__}")
    return filled


def _status(sample: Any) -> Status:
    value = getattr(sample.status, "value", sample.status)
    return Status.COMPLETED if value == "pending" else Status(value)  # functions need not set it


def _info(sample: Any, episode: EpisodeHandle) -> dict[str, Any]:
    """What the function put into ``metadata``, and attributes that it added, for reward functions to find."""
    before = thaw(episode.task.metadata)
    metadata = sample.metadata or {}
    info = {key: value for key, value in metadata.items() if not _same(before.get(key), value)}
    known = {*vars(Sample()), *getattr(type(sample), "__dataclass_fields__", ())}
    extra = {name: value for name, value in vars(sample).items() if name not in known}
    return {**info, **({EXTRA: extra} if extra else {})}


def _same(before: Any, after: Any) -> bool:
    return type(before) is type(after) and bool(before == after)  # equal types first: an array has no one answer
