"""Which way an update goes: by which transport, and by our receivers or the engine's own endpoints."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from miles_core.errors import WeightSyncError
from miles_core.weights.engine_facts import LAYOUT, ask_facts
from miles_core.weights.exchange import RefusedError
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
        """The way for these engines, all of them the same; those that cannot take it are left behind by the others.

        Raises:
            WeightSyncError: if none can, with the reason.
        """
        facts = await all_facts(engines)
        if (reason := self._way.why_not(facts, source)) is not None:
            fit = fitting(facts, lambda some: self._way.why_not(some, source))
            if not fit:
                raise WeightSyncError(
                    f"the engines cannot be updated by the transport {self._way.transport.name}: {reason}",
                    remedy='Set [weights] use = "auto" or "disk", or give SGLang our plugin (docs/weights.md).',
                )
            facts = leave_others(engines, facts, fit, reason)
        return self._way.updates(facts, source)

    def measured(self, transport: str, nbytes: int, seconds: float) -> None:
        """Nothing to learn: the config has chosen."""

    def failed(self, transport: str, reason: str) -> bool:
        """There is no other way."""
        return False


def fitting(facts: Sequence[EngineFacts], why_not: Callable[[Sequence[EngineFacts]], str | None]) -> list[EngineFacts]:
    """The engines that could take an update if they were alone."""
    return [one for one in facts if why_not([one]) is None]


def leave_others(
    engines: EngineExchange, facts: Sequence[EngineFacts], fit: list[EngineFacts], reason: str
) -> list[EngineFacts]:
    """Lose the engines that are not ``fit``; the others."""
    for one in facts:
        if one not in fit:
            engines.lose(one.url, RefusedError(f"engine {one.url} cannot be updated as others are: {reason}"))
    return fit
