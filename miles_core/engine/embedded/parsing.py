"""The body of ``POST /generate``, checked before anything is queued."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
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
    "stream": (None, False),
    "image_data": (None,),
    "video_data": (None,),
    "audio_data": (None,),
    "input_embeds": (None,),
    "logprob_start_len": (None, -1),
    "top_logprobs_num": (None, 0),
    "token_ids_logprob": (None,),
    "return_text_in_logprobs": (None, False),
    "return_hidden_states": (None, False),
    "return_prompt_token_ids": (None, False),
    "lora_path": (None,),
    "custom_logit_processor": (None,),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must respect: token ids below ``vocab_size``, prompt and output within ``context_length``."""

    vocab_size: int
    context_length: int
    routed_experts: bool


def parse_generate(body: Any, tokenizer: Any, limits: Limits) -> tuple[list[GenerateSpec], bool]:
    """The requests in a body, and whether it is a batch (its reply is then a list).

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
    sampling = _spread(body, "sampling_params", len(prompts), batched)
    rids = _spread(body, "rid", len(prompts), batched, shared=False)
    specs = [
        _spec(body, prompt, {} if options is None else options, rid, limits)
        for prompt, options, rid in zip(prompts, sampling, rids, strict=True)
    ]
    return specs, batched


def _spec(body: Mapping[str, Any], prompt: Any, sampling: Any, rid: Any, limits: Limits) -> GenerateSpec:
    if not isinstance(sampling, dict):
        raise EngineRequestError(f"sampling_params must be an object; got {_short(sampling)}")
    ids = _token_ids(prompt, limits)
    return GenerateSpec(
        rid=uuid.uuid4().hex if rid is None else _typed("rid", rid, str, "a string"),
        prompt=ids,
        sampling=_within(parse_sampling(sampling), limits),
        return_logprob=_typed("return_logprob", body.get("return_logprob") or False, bool, "true or false"),
        return_routed_experts=_wants_routing(body, limits),
        routed_experts_start_len=_start_len(body, len(ids)),
        extra_key=_typed("extra_key", body.get("extra_key"), str | None, "a string"),
    )


def _within(options: SamplingOptions, limits: Limits) -> SamplingOptions:
    """Refuse what the model's tables cannot hold."""
    outside = [token for token in options.stop_token_ids if not 0 <= token < limits.vocab_size]
    if outside:
        raise EngineRequestError(f"stop_token_ids must be in [0, {limits.vocab_size}); got {_short(outside[0])}")
    if options.min_new_tokens > limits.context_length:
        raise EngineRequestError(
            f"min_new_tokens is {_short(options.min_new_tokens)}, the context has {limits.context_length} tokens"
        )
    return options


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
    wanted: bool = _typed("return_routed_experts", body.get("return_routed_experts") or False, bool, "true or false")
    if wanted and not limits.routed_experts:
        raise EngineRequestError(
            "this engine does not record routed experts: the model is dense, or recording is switched off",
            remedy="Leave return_routed_experts out, or start the engine with --enable-return-routed-experts.",
        )
    return wanted


def _start_len(body: Mapping[str, Any], prompt_length: int) -> int:
    start: int = _typed("routed_experts_start_len", body.get("routed_experts_start_len") or 0, int, "an integer")
    if not 0 <= start <= prompt_length:
        raise EngineRequestError(
            f"routed_experts_start_len must be in [0, {prompt_length}], within the prompt; got {start}"
        )
    return start


def _spread(body: Mapping[str, Any], key: str, count: int, batched: bool, *, shared: bool = True) -> list[Any]:
    """One value per prompt: a batch may bring a list, else the value serves all where that makes sense."""
    value = body.get(key)
    if batched and isinstance(value, list):
        if len(value) != count:
            raise EngineRequestError(f"{key} must have one entry per prompt, {count}; got {len(value)}")
        return value
    if batched and value is not None and not shared:
        raise EngineRequestError(f"{key} of a batch must be a list of {count}; got {_short(value)}")
    return [value] * count


def _typed(key: str, value: Any, kind: Any, expected: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise EngineRequestError(f"{key} must be {expected}; got {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
