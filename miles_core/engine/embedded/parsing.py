"""The body of ``POST /generate``, checked before anything is queued."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.engine.embedded.request import GenerateSpec
from miles_core.engine.embedded.sampling_params import SamplingOptions, parse_sampling
from miles_core.engine.prompt import check_prompt
from miles_core.errors import EngineRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_UNSUPPORTED = {
    "image_data": (None,),
    "video_data": (None,),
    "audio_data": (None,),
    "input_embeds": (None,),
    "logprob_start_len": (None, -1),
    "top_logprobs_num": (None, 0),
    "token_ids_logprob": (None,),
    "return_text_in_logprobs": (None, False),
    "return_hidden_states": (None, False),
    "lora_path": (None,),
    "custom_logit_processor": (None,),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must respect: token ids below ``vocab_size``, prompt and output within ``context_length``."""

    vocab_size: int
    context_length: int
    routed_experts: bool


@dataclass(frozen=True, slots=True)
class GenerateBody:
    """The requests of a body; ``batched`` ones are answered by a list, ``stream`` asks for events as they grow."""

    specs: list[GenerateSpec]
    batched: bool
    stream: bool


def parse_generate(body: Any, tokenizer: Any, limits: Limits) -> GenerateBody:
    """The requests in a body, ``n`` of each prompt, in the order of the prompts.

    Raises:
        EngineRequestError: says which key is wrong, what was expected and what came.
    """
    if not isinstance(body, dict):
        raise EngineRequestError(f"the body must be a JSON object; got {type(body).__name__}")
    for key, value in body.items():
        if key in _UNSUPPORTED and not any(value is allowed or value == allowed for allowed in _UNSUPPORTED[key]):
            raise EngineRequestError(
                f"the embedded engine does not support {key}; got {_short(value)}",
                remedy=f"Leave {key} out, or serve the model with SGLang.",
            )
    prompts, batched = _prompts(body, tokenizer)
    columns = (
        prompts,
        _spread(body, "sampling_params", len(prompts), batched, default={}),
        _rids(body, len(prompts), batched),
        _spread(body, "return_logprob", len(prompts), batched),
        _spread(body, "extra_key", len(prompts), batched),
    )
    specs = [_spec(body, limits, *row) for row in zip(*columns, strict=True)]
    samples = {spec.sampling.n for spec in specs}
    if len(samples) > 1:
        raise EngineRequestError(f"n must be the same for all prompts of a batch; got {sorted(samples)}")
    if samples != {1}:
        # as in SGLang, several samples of a prompt have rids of their own
        specs = [replace(spec, rid=_new_rid()) for spec in specs for _ in range(spec.sampling.n)]
    stream = _typed("stream", body.get("stream") or False, bool, "true or false")
    return GenerateBody(specs, batched or samples != {1}, stream)


def _spec(
    body: Mapping[str, Any], limits: Limits, prompt: Any, sampling: Any, rid: Any, logprob: Any, extra_key: Any
) -> GenerateSpec:
    if not isinstance(sampling, dict):
        raise EngineRequestError(f"sampling_params must be an object; got {_short(sampling)}")
    ids = _token_ids(prompt, limits)
    routed = _wants_routing(body, limits)
    return GenerateSpec(
        rid=_new_rid() if rid is None else _typed("rid", rid, str, "a string"),
        prompt=ids,
        sampling=_sampling(sampling, len(ids), limits),
        return_logprob=_typed("return_logprob", logprob or False, bool, "true or false"),
        return_routed_experts=routed,
        routed_experts_start_len=_start_len(body, len(ids), routed),
        return_prompt_token_ids=_flag(body, "return_prompt_token_ids"),
        extra_key=_typed("extra_key", extra_key, str | None, "a string") or None,
    )


def _sampling(raw: Mapping[str, Any], prompt_length: int, limits: Limits) -> SamplingOptions:
    """Options that fit the context, without stop tokens that the model does not have."""
    options = parse_sampling(raw)
    # as in SGLang, what the context leaves cuts the default silently, but refuses a number that was asked for
    asked = raw.get("max_new_tokens") or 0
    if prompt_length + asked > limits.context_length:
        raise EngineRequestError(
            f"a prompt of {prompt_length} tokens and max_new_tokens = {_short(asked)} are more than the context has: "
            f"{limits.context_length}",
            remedy="Ask for fewer tokens, or serve with a longer context.",
        )
    known = tuple(token for token in options.stop_token_ids if 0 <= token < limits.vocab_size)
    return replace(options, stop_token_ids=known)


def _prompts(body: Mapping[str, Any], tokenizer: Any) -> tuple[list[Any], bool]:
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise EngineRequestError("send either text or input_ids", remedy="Set exactly one of the two.")
    if text is not None:
        texts = [text] if isinstance(text, str) else text
        if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
            raise EngineRequestError(f"text must be a string or a list of strings; got {_short(text)}")
        try:
            prompts: list[Any] = [tokenizer.encode(item) for item in texts]
        except (TypeError, UnicodeError) as error:
            raise EngineRequestError(f"text cannot be encoded: {error}") from error
        batched = isinstance(text, list)
    else:
        batched = isinstance(ids, list) and bool(ids) and isinstance(ids[0], list)
        prompts = list(ids) if isinstance(ids, list) and batched else [ids]
    if not prompts:
        raise EngineRequestError("the batch is empty", remedy="Send at least one prompt.")
    return prompts, batched


def _token_ids(prompt: Any, limits: Limits) -> NDArray[np.int32]:
    expected = "input_ids must be a non-empty list of integers, or a list of such lists"
    if not isinstance(prompt, list) or not prompt:
        raise EngineRequestError(f"{expected}; got {_short(prompt)}")
    if set(map(type, prompt)) != {int}:
        strange = next(item for item in prompt if type(item) is not int)
        raise EngineRequestError(f"{expected}; got {_short(strange)} among them")
    check_prompt(prompt, vocab_size=limits.vocab_size, context_length=limits.context_length)
    return np.array(prompt, np.int32)


def _wants_routing(body: Mapping[str, Any], limits: Limits) -> bool:
    wanted = _flag(body, "return_routed_experts")
    if wanted and not limits.routed_experts:
        raise EngineRequestError(
            "this engine does not record routed experts: the model is dense, or recording is switched off",
            remedy="Leave return_routed_experts out, or start the engine with --enable-return-routed-experts.",
        )
    return wanted


def _start_len(body: Mapping[str, Any], prompt_length: int, routed: bool) -> int:
    start: int = _typed("routed_experts_start_len", body.get("routed_experts_start_len", 0), int, "an integer")
    if not routed:
        return 0
    if not 0 <= start <= prompt_length:
        raise EngineRequestError(
            f"routed_experts_start_len must be in [0, {prompt_length}], within the prompt; got {_short(start)}"
        )
    return start


def _rids(body: Mapping[str, Any], count: int, batched: bool) -> list[Any]:
    rid = body.get("rid")
    if batched and isinstance(rid, str):
        return [f"{rid}_{number}" for number in range(count)]
    return _spread(body, "rid", count, batched)


def _new_rid() -> str:
    return uuid.uuid4().hex


def _spread(body: Mapping[str, Any], key: str, count: int, batched: bool, *, default: Any = None) -> list[Any]:
    """One value per prompt: a batch may bring a list, else the value serves all."""
    value = default if body.get(key) is None else body[key]
    if batched and isinstance(value, list):
        if len(value) != count:
            raise EngineRequestError(f"{key} must have one entry per prompt, {count}; got {len(value)}")
        return value
    return [value] * count


def _flag(body: Mapping[str, Any], key: str) -> bool:
    flag: bool = _typed(key, body.get(key, False), bool, "true or false")
    return flag


def _typed(key: str, value: Any, kind: Any, expected: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise EngineRequestError(f"{key} must be {expected}; got {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
