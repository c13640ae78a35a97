"""Reading ``tp=8,pp=4`` and ``rdma=50,latency=20us``."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING

from miles_core.config.suggest import did_you_mean
from miles_core.errors import ConfigError
from miles_core.weights.planning.grid import EngineGrid, TrainerGrid
from miles_core.weights.planning.traffic import Links

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d+)?)(s|ms|us)?")
_REPLICAS = re.compile(r"(\d+)x")


def trainer_grid(text: str) -> TrainerGrid:
    """Of ``tp=8,pp=4,ep=8,dp=2``.

    Raises:
        ConfigError: if it is no such text, or its sizes contradict each other.
    """
    return TrainerGrid(**_sizes("--trainer", text, [field.name for field in fields(TrainerGrid)]))


def engine_grid(text: str) -> tuple[int, EngineGrid]:
    """How many engines, and their sizes, of ``4xtp=8,ep=8``; the number may be left out, or stand alone.

    Raises:
        ConfigError: if it is no such text, or its sizes contradict each other.
    """
    count = _REPLICAS.match(text)
    replicas, rest = (int(count[1]), text[count.end() :]) if count else (1, text)
    if replicas < 1:
        raise ConfigError(f"--engines must be at least one; got {text!r}", remedy="Write --engines 4xtp=8,ep=8.")
    return replicas, EngineGrid(**_sizes("--engines", rest, [field.name for field in fields(EngineGrid)]))


def links(texts: Sequence[str]) -> Links:
    """Of ``rdma=50,node=300,latency=20us``; a later value replaces an earlier one.

    Raises:
        ConfigError: if it is no such text.
    """
    known = [field.name for field in fields(Links)]
    return Links(**{name: _rate(name, value) for text in texts for name, value in _pairs("--link", text, known)})


def _rate(name: str, value: str) -> float:
    match = _NUMBER.fullmatch(value)
    if match is None or bool(match[2]) is not (name == "latency") or (float(match[1]) == 0 and not match[2]):
        raise ConfigError(
            f"--link {name} cannot be {value!r}",
            remedy="Write --link rdma=50,node=300,latency=20us: rates in 10^9 bytes per second, and s, ms or us.",
        )
    return float(match[1]) * _SECONDS.get(match[2], 1.0)


def _sizes(flag: str, text: str, known: Sequence[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, value in _pairs(flag, text, known):
        if not value.isdecimal():
            raise ConfigError(f"{flag} {name} must be a number of ranks; got {value!r}", remedy=f"Write {name}=8.")
        sizes[name] = int(value)
    return sizes


def _pairs(flag: str, text: str, known: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The NAME=VALUE of a list with commas; each name once."""
    seen: set[str] = set()
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals or name not in known:
            raise ConfigError(
                f"{flag} takes {'=, '.join(known)}=; got {item!r}",
                remedy=did_you_mean(name, known) or f"Write {flag} {known[0]}=8.",
            )
        if name in seen:
            raise ConfigError(f"{flag} has {name} twice: {text!r}", remedy="Leave one of them out.")
        seen.add(name)
        yield name, value
