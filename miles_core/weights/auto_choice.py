"""The transport that ``auto`` stands for: the fastest that works, as measured."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from miles_core.errors import WeightSyncError
from miles_core.weights.choice import all_facts, fitting, leave_others

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.types import Layout
    from miles_core.weights.choice import TransportWay
    from miles_core.weights.engine_facts import EngineFacts
    from miles_core.weights.exchange import EngineExchange
    from miles_core.weights.ports import WeightUpdates

    Engines: TypeAlias = frozenset[tuple[str, bool]]

_logger = logging.getLogger("miles.weights")

EXPECTED_RATES: Mapping[str, float] = {
    "memory": 4e9,
    "disk": 1.5e9,
    "disk_delta": 1.5e9,
    "mooncake": 1e9,
    "distributed": 5e8,
    "tensor": 2e9,
}
"""Bytes per second that a transport is credited with before it was measured; their ratios say which are tried."""

OTHER_RATE = 1e9
TRIES = 2


class AutoChoice:
    """Implements :class:`~miles_core.weights.ports.UpdateChoice` by reach and measured rates.

    Each transport has an expected rate at first. Those whose expected time is within ``trial`` of the best are tried
    twice each for the same engines, since the first time sets up; from then on the fastest is used. One that failed is
    not tried again for these engines. What was chosen, why, and what was ruled out is logged when it changes.
    """

    def __init__(self, ways: Sequence[TransportWay], *, has_folder: bool, trial: float = 4.0) -> None:
        self._ways = tuple(ways)
        self._has_folder = has_folder
        self._trial = trial
        self._engines: Engines = frozenset()
        self._seconds: dict[tuple[Engines, str], list[float]] = {}
        self._failures: dict[tuple[Engines, str], str] = {}
        self._reasons: dict[str, str | None] = {}
        self._said = ""

    async def choose(self, engines: EngineExchange, source: Layout) -> WeightUpdates:
        """The best way for these engines; where none is for all, for most of them, and the others are left behind.

        Raises:
            WeightSyncError: if there is none for any, with a reason for each.
        """
        facts = await all_facts(engines)
        self._engines = frozenset((one.url, one.ranks is not None) for one in facts)  # rates of others say little
        reasons = {way.transport.name: self._why_not(way, facts, source) for way in self._ways}
        if None not in reasons.values():
            listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            fit = max(
                (fitting(facts, partial(self._why_not, way, source=source)) for way in self._ways), key=len, default=[]
            )
            if not fit:
                raise WeightSyncError(
                    f"no transport can update these engines: {listed}",
                    remedy="Install one that can, give SGLang our plugin, or set [weights] dir to a shared folder.",
                )
            facts = leave_others(engines, facts, fit, listed)
            reasons = {way.transport.name: self._why_not(way, facts, source) for way in self._ways}
        self._reasons = reasons
        able = [way for way in self._ways if reasons[way.transport.name] is None]
        nbytes = sum(spec.nbytes for spec in source.tensors.values())
        way = self._best(able, nbytes)
        self._say(way, facts, reasons, nbytes)
        return way.updates(facts, source)

    def measured(self, transport: str, nbytes: int, seconds: float) -> None:
        """Note an update by a transport."""
        self._seconds.setdefault((self._engines, transport), []).append(seconds)

    def failed(self, transport: str, reason: str) -> bool:
        """Rule a transport out; whether there is another one."""
        self._failures[self._engines, transport] = self._reasons[transport] = f"it failed: {reason}"
        return None in self._reasons.values()

    def _why_not(self, way: TransportWay, facts: Sequence[EngineFacts], source: Layout) -> str | None:
        if (failure := self._failures.get((self._engines, way.transport.name))) is not None:
            return failure
        reach = way.transport.reach
        far = next((one.url for one in facts if not one.same_host), None)
        if far is not None and reach == "host":
            return f"engine {far} is on another host"
        if far is not None and reach == "folder" and not self._has_folder:
            return f"engine {far} is on another host, and [weights] dir names no folder that it shares"
        return way.why_not(facts, source)

    def _best(self, able: Sequence[TransportWay], nbytes: int) -> TransportWay:
        expected = {way: nbytes / EXPECTED_RATES.get(way.transport.name, OTHER_RATE) for way in able}
        bound = self._trial * min(expected.values())
        untried = [way for way in able if len(self._tries(way)) < TRIES and expected[way] <= bound]
        if untried:
            return min(untried, key=lambda way: expected[way])
        return min(able, key=lambda way: min(self._tries(way), default=float("inf")))

    def _tries(self, way: TransportWay) -> list[float]:
        return self._seconds.get((self._engines, way.transport.name), [])

    def _say(
        self, way: TransportWay, facts: Sequence[EngineFacts], reasons: Mapping[str, str | None], nbytes: int
    ) -> None:
        name = way.transport.name
        where = "all on this host" if all(one.same_host for one in facts) else "some on other hosts"
        tries = self._tries(way)
        settled = len(tries) >= TRIES
        why = f"the fastest, {nbytes / min(tries) / 1e9:.3f} GB/s" if settled else "to be measured"
        others = "; ".join(f"not {other}: {reason}" for other, reason in reasons.items() if reason is not None)
        said = f"weights go by {name}: {len(facts)} engines, {where}; {why}" + (f"; {others}" if others else "")
        if (key := f"{name} {where} {settled} {others}") != self._said:
            self._said = key
            _logger.info("%s", said)
