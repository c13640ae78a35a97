"""Generation on a fleet: an engine's death or a weight update costs time, not trajectories."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from miles_core.errors import EngineError, EngineRequestError
from miles_core.lib.generations import join_generations, rest_of
from miles_core.rollout.clock import clock_stopped
from miles_core.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from miles_core.app.fleet import Fleet
    from miles_core.kinds.engines import EngineClient
    from miles_core.types import GenerateRequest, Generation, RoutingSpec


class FleetClient:
    """Implements ``EngineClient`` on another one: what died with an engine is generated again.

    While no engine serves, calls wait, and the episode's clock stands still. Nothing of a failed request was stored, so
    its tokens are never trained, and none twice. What a weight update aborted (``engine.pause_mode = "abort"``) goes on
    after it from its last token: each token keeps the version that generated it. ``routing`` is what replies hold.
    """

    def __init__(self, client: EngineClient, fleet: Fleet, routing: RoutingSpec | None = None) -> None:
        self._client = client
        self._fleet = fleet
        self._routing = routing

    async def generate(
        self, request: GenerateRequest, *, on_tokens: Callable[[Sequence[int]], None] | None = None
    ) -> Generation:
        """Generate from token ids; ``on_tokens`` gets the output ids as they come, each once.

        A stream that showed what cannot be continued is not repeated: it ends in the abort, or the error.

        Raises:
            EngineRequestError: if the request is invalid.
            RoutingError: if the routing that came does not fit the tokens.
            EngineError: if the engine failed and lives, or died in the middle of a stream.
        """
        stream = None if on_tokens is None else _Counting(on_tokens)
        done: Generation | None = None
        while True:
            with clock_stopped():
                await self._fleet.available()
            before, updates = self._fleet.outages.count, self._fleet.updates
            try:
                part = await self._client.generate(request, on_tokens=stream)
            except EngineRequestError:
                raise
            except EngineError:
                if not _can_go_on(done, stream):
                    raise
                with clock_stopped():
                    is_outage = await self._fleet.outages.met_since(before)
                if not is_outage:
                    raise
            else:
                whole = part if done is None else join_generations(done, part, self._routing)
                if part.finish_reason.type != "abort" or not self._fleet.aborted_since(updates):
                    return whole
                if (reason := _reached(request, part)) is not None:
                    return replace(whole, finish_reason=reason)
                if (rest := _rest(request, part)) is not None:
                    request, done = rest, whole
                if not _can_go_on(done, stream):
                    return whole
            # a server that lives may still hold the old rid, or abort what takes the rid of a stream that just ended
            request = replace(request, rid=f"again-{request.rid}")


def _reached(request: GenerateRequest, part: Generation) -> FinishReason | None:
    """The end that a generation had just reached when it was aborted: engines look at the abort first."""
    last = int(part.output_ids[-1]) if len(part.output_ids) else None
    if last in request.sampling.stop_token_ids:
        return FinishReason("stop", matched=last)
    return FinishReason("length") if len(part.output_ids) >= request.sampling.max_new_tokens else None


def _rest(request: GenerateRequest, part: Generation) -> GenerateRequest | None:
    """What is left to generate of a request; ``None`` if it must be made again from its beginning."""
    sampling, tokens = request.sampling, len(part.output_ids)
    if not tokens or sampling.json_schema is not None or sampling.stop:
        return None  # the text of a stop, or the state of a schema, may lie across the cut
    ids = np.concatenate([np.asarray(request.input_ids, np.int32), part.output_ids])
    start = len(ids) - 1 if part.routed_experts is not None else request.routed_experts_start_len
    return replace(request, input_ids=ids, sampling=rest_of(sampling, tokens), routed_experts_start_len=start)


def _can_go_on(done: Generation | None, stream: _Counting | None) -> bool:
    """Whether whoever reads the stream has seen exactly what is kept."""
    return stream is None or stream.count == (0 if done is None else len(done.output_ids))


class _Counting:
    """Passes tokens on, and counts them."""

    def __init__(self, on_tokens: Callable[[Sequence[int]], None]) -> None:
        self._on_tokens = on_tokens
        self.count = 0

    def __call__(self, ids: Sequence[int]) -> None:
        self.count += len(ids)
        self._on_tokens(ids)
