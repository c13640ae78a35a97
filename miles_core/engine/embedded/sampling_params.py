"""SGLang's ``sampling_params``: what the embedded engine accepts, and why it refuses the rest."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from miles_core.errors import EngineRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL_TOKENS = 1 << 30
MAX_STOPS = 32

_UNSUPPORTED = {
    "stop_regex": (None, []),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "spaces_between_special_tokens": (None, True),
    "custom_params": (None,),
    "stream_interval": (None,),
    "logit_bias": (None, {}),
    "beam_width": (None, 1),
    "watermark": (None,),
}
_CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag")


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """One request's sampling, checked; the names and defaults are SGLang's.

    ``max_new_tokens`` of ``None`` means all that the context leaves. ``n`` samples are drawn of the prompt.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = ALL_TOKENS
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None
    n: int = 1


def parse_sampling(raw: Mapping[str, Any]) -> SamplingOptions:
    """Options from the JSON object of a request; ``null`` means the default, but no bound as ``max_new_tokens``.

    Raises:
        EngineRequestError: for an unknown key, a key that this engine does not implement, or a bad value.
    """
    for key, value in raw.items():
        if key in _CONSTRAINTS:
            _require_unconstrained(key, value)
        elif key in _UNSUPPORTED:
            _require_default(key, value)
        elif key not in _PARSERS:
            raise _unknown(key)
    given = {key: _PARSERS[key](key, value) for key, value in raw.items() if key in _PARSERS and value is not None}
    if raw.get("max_new_tokens", 0) is None:
        given["max_new_tokens"] = None
    options = SamplingOptions(**given)
    if options.max_new_tokens is not None and options.min_new_tokens > options.max_new_tokens:
        raise EngineRequestError(
            f"min_new_tokens must not exceed max_new_tokens; got {options.min_new_tokens} > {options.max_new_tokens}"
        )
    return options


def _unknown(key: str) -> EngineRequestError:
    known = sorted([*_PARSERS, *_UNSUPPORTED, *_CONSTRAINTS])
    near = difflib.get_close_matches(key, known, n=1)
    remedy = f"Did you mean {near[0]!r}?" if near else "Remove it."
    return EngineRequestError(f"unknown sampling_params key {key!r}; known keys: {', '.join(known)}", remedy=remedy)


def _require_default(key: str, value: Any) -> None:
    if not any(value is allowed or value == allowed for allowed in _UNSUPPORTED[key]):
        raise EngineRequestError(
            f"the embedded engine does not support {key}; got {value!r}",
            remedy=f"Leave {key} out, or serve the model with SGLang.",
        )


def _require_unconstrained(key: str, value: Any) -> None:
    if value is not None:
        raise EngineRequestError(
            f"the embedded engine has no constrained decoding, so it does not support {key}; got {value!r}",
            remedy=f"Leave {key} out, or serve the model with SGLang.",
        )


def _number(key: str, value: Any, low: float, high: float, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise EngineRequestError(f"{key} must be {expected}; got {value!r}")
    return float(value)


def _integer(key: str, value: Any, low: int | None, expected: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or (low is not None and value < low):
        raise EngineRequestError(f"{key} must be {expected}; got {value!r}")
    return value


def _temperature(key: str, value: Any) -> float:
    return _number(key, value, 0.0, sys.float_info.max, "a finite number of at least 0")


def _top_p(key: str, value: Any) -> float:
    number = _number(key, value, 0.0, 1.0, "in (0, 1]")
    if number == 0:
        raise EngineRequestError(f"{key} must be in (0, 1]; got {value!r}")
    return number


def _top_k(key: str, value: Any) -> int:
    if value == -1:
        return ALL_TOKENS
    return _integer(key, value, 1, "an integer of at least 1, or -1 for all tokens")


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise EngineRequestError(f"{key} must be true or false; got {value!r}")
    return value


def _stop(key: str, value: Any) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(text, str) and text for text in strings):
        raise EngineRequestError(f"{key} must be a non-empty string or a list of them; got {value!r}")
    if len(strings) > MAX_STOPS:
        raise EngineRequestError(f"{key} must be at most {MAX_STOPS} strings; got {len(strings)}")
    if any("\ud800" <= letter <= "\udfff" for text in strings for letter in text):
        raise EngineRequestError(f"{key} must be text without lone surrogates; got {value!r}")
    return tuple(strings)


def _ids(key: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise EngineRequestError(f"{key} must be a list of token ids; got {value!r}")
    return tuple(_integer(key, item, None, "a list of token ids, integers") for item in value)


def _seed(key: str, value: Any) -> int:
    seed = _integer(key, value, None, "an integer")
    if not -(1 << 63) <= seed < 1 << 63:
        raise EngineRequestError(f"{key} must be in [-2**63, 2**63); got {value!r}")
    return seed


_PARSERS: dict[str, Any] = {
    "max_new_tokens": lambda key, value: _integer(key, value, 0, "an integer of at least 0"),
    "min_new_tokens": lambda key, value: _integer(key, value, 0, "an integer of at least 0"),
    "temperature": _temperature,
    "top_p": _top_p,
    "top_k": _top_k,
    "min_p": lambda key, value: _number(key, value, 0.0, 1.0, "in [0, 1]"),
    "stop": _stop,
    "stop_token_ids": _ids,
    "ignore_eos": _flag,
    "skip_special_tokens": _flag,
    "no_stop_trim": _flag,
    "sampling_seed": _seed,
    "n": lambda key, value: _integer(key, value, 1, "an integer of at least 1"),
}
assert set(_PARSERS) == {field.name for field in fields(SamplingOptions)}
