"""Which way an update goes: by which transport, and by our receivers or the engine's own endpoints."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from miles_core.errors import WeightSyncError
from miles_core.weights.engine_facts import LAYOUT, ask_facts
from miles_core.weights.misfits import misfits
from miles_core.weights.plan import Receiver
from miles_core.weights.receiver_updates import ReceiverUpdates
from miles_core.weights.sglang_distributed_updates import SglangDistributedUpdates
from miles_core.weights.sglang_tensor_updates import SglangTensorUpdates
from miles_core.weights.sglang_updates import SglangUpdates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from miles_core.kinds.engines import WeightUpdates as UpdatesKind
    from miles_core.types import Layout
    from miles_core.weights.engine_facts import EngineFacts
    from miles_core.weights.exchange import EngineExchange
    from miles_core.weights.ports import WeightUpdates
    from miles_core.weights.publish import PauseMode
    from miles_core.weights.receiver_updates import LayoutOf
    from miles_core.weights.transport_facts import TransportFacts

    MakeUpdates: TypeAlias = Callable[[str, PauseMode], WeightUpdates]

_logger = logging.getLogger("miles.weights")

OWN_ENDPOINTS: Mapping[str, MakeUpdates] = {
    "disk": SglangUpdates,
    "distributed": SglangDistributedUpdates,
    "tensor": SglangTensorUpdates,
}
"""By a transport's ``sglang_update``: how stock SGLang takes it."""


async def all_facts(engines: EngineExchange) -> list[EngineFacts]:
    """The facts of every engine; those that do not answer are lost."""
    return list((await engines.each(partial(ask_facts, engines), stage=LAYOUT)).values())


class TransportWay:
    """One transport, and how engines take it.

    Our receivers are preferred: they check every byte. ``namings`` are those that ``layout_of`` knows; where one engine
    has another, or no receiver, or parameters that the trainer's tensors do not fill, all take the update by their own
    endpoints, if the transport feeds those.
    """

    def __init__(
        self,
        transport: TransportFacts,
        kind: UpdatesKind,
        pause_mode: PauseMode,
        layout_of: LayoutOf,
        namings: frozenset[str],
    ) -> None:
        self.transport = transport
        self._namings = namings
        self._layout_of = layout_of
        self._has_endpoints = kind == "sglang"
        self._fits: dict[str, tuple[object, str | None]] = {}
        self._receivers = ReceiverUpdates(transport.name, layout_of, pause_mode) if transport.receivers else None
        make = OWN_ENDPOINTS.get(transport.sglang_update or "") if kind == "sglang" else None
        self._own = None if make is None else make(transport.name, pause_mode)

    def why_not(self, engines: Sequence[EngineFacts], source: Layout) -> str | None:
        """Why these engines cannot be updated so from the trainer's ``source``; ``None`` if they can."""
        if self.transport.unavailable is not None:
            return self.transport.unavailable
        if self._own is not None:
            return None
        if self._receivers is None:
            return "engines have no receiver of ours for it"
        return self._without_receiver(engines, source)

    def updates(self, engines: Sequence[EngineFacts], source: Layout) -> WeightUpdates:
        """How these engines are updated, for which :meth:`why_not` found no reason."""
        if self._receivers is not None and (self._own is None or self._without_receiver(engines, source) is None):
            return self._receivers
        assert self._own is not None
        return self._own

    def _without_receiver(self, engines: Sequence[EngineFacts], source: Layout) -> str | None:
        for facts in engines:
            if (reason := facts.why_not(self.transport.name)) is not None:
                return reason
            naming = facts.ranks[0].naming if facts.ranks else ""
            if naming not in self._namings:
                return f"the bridge does not know how engine {facts.url} names its parameters ({naming})"
            if self._has_endpoints and (reason := self._misfit(facts, source)) is not None:
                return reason
        return None

    def _misfit(self, facts: EngineFacts, source: Layout) -> str | None:
        """Why a receiver cannot be filled; kept, since it takes a while for large models."""
        known, reason = self._fits.get(facts.url, (None, None))
        if known != (facts.ranks, source):
            ranks = enumerate(facts.ranks or ())
            layouts = {Receiver(facts.url, rank): self._layout_of(table, source) for rank, table in ranks}
            reason = misfits(source, layouts).get(facts.url)
            self._fits[facts.url] = (facts.ranks, source), reason
        return reason


class NamedChoice:
    """Implements :class:`~miles_core.weights.ports.UpdateChoice` for the transport that the config names."""

    def __init__(self, way: TransportWay) -> None:
        self._way = way

    async def choose(self, engines: EngineExchange, source: Layout) -> WeightUpdates:
        """The way for these engines, all of them the same.

        Raises:
            WeightSyncError: if there is none, with the reason.
        """
        facts = await all_facts(engines)
        if (reason := self._way.why_not(facts, source)) is not None:
            raise WeightSyncError(
                f"the engines cannot be updated by the transport {self._way.transport.name}: {reason}",
                remedy='Set [weights] use = "auto" or "disk", or give SGLang our plugin (docs/weights.md).',
            )
        return self._way.updates(facts, source)

    def measured(self, transport: str, nbytes: int, seconds: float) -> None:
        """Nothing to learn: the config has chosen."""


class AutoChoice:
    """Implements :class:`~miles_core.weights.ports.UpdateChoice` by reach and measured rates.

    Each transport has an expected rate at first. Those whose expected time is within ``trial`` of the best are tried
    twice each, since the first time sets up, while the same engines live; from then on the fastest is used. What was
    chosen, why, and what was ruled out is logged when it changes.
    """

    def __init__(self, ways: Sequence[TransportWay], *, has_folder: bool, trial: float = 4.0) -> None:
        self._ways = tuple(ways)
        self._has_folder = has_folder
        self._trial = trial
        self._seconds: dict[str, list[float]] = {}
        self._engines: frozenset[tuple[str, bool]] = frozenset()
        self._said = ""

    async def choose(self, engines: EngineExchange, source: Layout) -> WeightUpdates:
        """The best way for these engines.

        Raises:
            WeightSyncError: if there is none, with a reason for each.
        """
        facts = await all_facts(engines)
        kinds = frozenset((one.url, one.ranks is not None) for one in facts)
        if kinds != self._engines:  # rates of other engines say little
            self._engines, self._seconds = kinds, {}
        reasons = {way.transport.name: self._why_not(way, facts, source) for way in self._ways}
        able = [way for way in self._ways if reasons[way.transport.name] is None]
        if not able:
            listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise WeightSyncError(
                f"no transport can update these engines: {listed}",
                remedy="Install one that can, give SGLang our plugin, or set [weights] dir to a shared folder.",
            )
        nbytes = sum(spec.nbytes for spec in source.tensors.values())
        way = self._best(able, nbytes)
        self._say(way, facts, reasons, nbytes)
        return way.updates(facts, source)

    def measured(self, transport: str, nbytes: int, seconds: float) -> None:
        """Note an update by a transport."""
        self._seconds.setdefault(transport, []).append(seconds)

    def _why_not(self, way: TransportWay, facts: Sequence[EngineFacts], source: Layout) -> str | None:
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
        return self._seconds.get(way.transport.name, [])

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


EXPECTED_RATES: Mapping[str, float] = {
    "memory": 4e9,
    "disk": 1.5e9,
    "disk_delta": 1.5e9,
    "mooncake": 1e9,
    "distributed": 5e8,
    "tensor": 2e9,
}
"""Bytes per second that a transport is credited with before it was measured; only their order matters."""

OTHER_RATE = 1e9
TRIES = 2
