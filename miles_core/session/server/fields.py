"""Fields of a JSON body, by type; what is wrong is a 400 that names the field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from miles_core.session.server.request import ClientError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


MAX_SEED = (1 << 31) - 1
_MAX_TEMPERATURE = 2.0


def wrong(param: str, expected: str, got: object) -> ClientError:
    """The error for a field that holds something else than was expected."""
    return ClientError(f"{param} must be {expected}; got {shown(got)}", param=param)


def shown(value: object) -> str:
    """A value as JSON, cut after 80 characters."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."


def text(body: Mapping[str, Any], name: str, default: str | None = None, *, at: str = "") -> str | None:
    """A text; ``None`` in JSON is as good as nothing. ``at`` is the path of ``body``, such as ``messages[0].``."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise wrong(f"{at}{name}", "a text", value)
    return value


def stop_texts(given: object, param: str, most: int | None = None) -> tuple[str, ...]:
    """Texts that end a turn; engines look for them in what they decode, so each must be one that can be encoded."""
    limit = "" if most is None else f" of at most {most}"
    good = isinstance(given, list) and (most is None or len(given) <= most) and all(map(_encodable, given))
    if not good:
        raise wrong(param, f"a list{limit} of texts that are not empty and have no lone surrogates", given)
    return tuple(given) if isinstance(given, list) else ()


def _encodable(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def flag(body: Mapping[str, Any], name: str, default: bool = False, *, at: str = "") -> bool:
    """A truth value."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(f"{at}{name}", "true or false", value)
    return value


def whole(body: Mapping[str, Any], name: str, *, at: str = "", low: int = 0, high: int | None = None) -> int | None:
    """A whole number from ``low`` to ``high``; ``None`` if it is not given."""
    value = body.get(name)
    if value is None:
        return None
    good = isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high)
    if not good:
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise wrong(f"{at}{name}", f"a whole number {bounds}", value)
    return int(value)


def number(body: Mapping[str, Any], name: str, *, at: str = "", low: float, high: float) -> float | None:
    """A finite number from ``low`` to ``high``; ``None`` if it is not given."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise wrong(f"{at}{name}", f"a number from {low:g} to {high:g}", value)
    return float(value)


def temperature(body: Mapping[str, Any], *, at: str = "") -> float | None:
    """The temperature of sampling, 0 for greedy."""
    return number(body, "temperature", at=at, low=0.0, high=_MAX_TEMPERATURE)


def items(body: Mapping[str, Any], name: str, *, at: str = "") -> list[Any]:
    """A list; nothing is an empty one."""
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong(f"{at}{name}", "a list", value)
    return value


def mapping(value: object, param: str) -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise wrong(param, "an object", value)
    return value


def only(body: Mapping[str, Any], known: Collection[str], *, at: str = "", remedy: str | None = None) -> None:
    """Refuse fields that are not ``known``, unless they are ``null``."""
    others = sorted(f"{at}{name}" for name, value in body.items() if name not in known and value is not None)
    if others:
        word = "field" if len(others) == 1 else "fields"
        remedy = remedy or "Leave out what this server does not know: it would be ignored."
        raise ClientError(f"unknown {word} {', '.join(others)}", param=others[0], remedy=remedy)
