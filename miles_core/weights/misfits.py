"""Why engines cannot be updated from what a trainer holds, found before the first byte moves."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from miles_core.weights.holders import holders_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from miles_core.types import Layout
    from miles_core.weights.holders import Holders, Sources
    from miles_core.weights.plan import Receiver

_SHOWN = 3
_UNFILLED = "{} has parameters that no checkpoint tensor fills"
_CASTS = frozenset({"float64", "float32", "float16", "bfloat16"})
"""Types between which a cast is only a rounding; all others carry scales or meanings that a cast would lose."""


def misfits(source: Sources, receivers: Mapping[Receiver, Layout]) -> dict[str, str]:
    """Why engines cannot be updated whole from ``source``, by engine; those that can are left out."""
    engines: dict[str, dict[int, Layout]] = {}
    for receiver, layout in receivers.items():
        engines.setdefault(receiver.engine, {})[receiver.rank] = layout
    holders = holders_of(source)
    unfilled = list(_named(_UNFILLED.format("the trainer"), holders.unclaimed))
    found: dict[tuple[tuple[int, int], ...], list[str]] = {}  # engines that are alike share their layouts
    alike = {engine: tuple((rank, id(layout)) for rank, layout in ranks.items()) for engine, ranks in engines.items()}
    for engine, key in alike.items():
        if key not in found:
            found[key] = unfilled + list(_problems(holders, engines[engine]))
    return {
        engine: f"the trainer's weights do not fit engine {engine}: {_shortened(found[key], '; ')}"
        for engine, key in alike.items()
        if found[key]
    }


def _problems(holders: Holders, ranks: Mapping[int, Layout]) -> Iterator[str]:
    sent, claimed = holders.tensors, set[str]()
    for rank, layout in ranks.items():
        who, wanted = f"rank {rank}" if len(ranks) > 1 else "it", layout.tensors
        claimed |= wanted.keys()
        yield from _named(_UNFILLED.format(who), layout.unclaimed)
        yield from _named(f"no one sends what {who} needs", wanted.keys() - sent.keys())
        unfit = {
            name: f"{name} {sent[name].dtype} {list(sent[name].shape)} / {spec.dtype} {list(spec.shape)}"
            for name, spec in wanted.items()
            if name in sent and not (sent[name].shape == spec.shape and _castable(sent[name].dtype, spec.dtype))
        }
        yield from _named(f"{who} has other shapes or types than the trainer sends", unfit.values())
        fit = (one for one in layout.placements if one.tensor.name in sent and one.tensor.name not in unfit)
        parts = (one.label for one in fit if not holders.covers(one))
        yield from _named(f"no one sends all of what {who} needs of", parts)
    yield from _named("it claims nothing of what the trainer sends as", sent.keys() - claimed)


def _castable(one: str, other: str) -> bool:
    return one == other or {one, other} <= _CASTS


def _named(what: str, names: Iterable[str]) -> Iterator[str]:
    found = sorted(names)
    if found:
        yield f"{what}: {len(found)} ({_shortened(found, ', ')})"


def _shortened(texts: Sequence[str], separator: str) -> str:
    rest = len(texts) - _SHOWN
    return separator.join(islice(texts, _SHOWN)) + (f"{separator}and {rest} more" if rest > 0 else "")
