"""Generation on a fleet: an engine's death costs time, not trajectories."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from miles_core.errors import EngineError, EngineRequestError
from miles_core.rollout.clock import clock_stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from miles_core.app.fleet import Fleet
    from miles_core.kinds.engines import EngineClient
    from miles_core.types import GenerateRequest, Generation


class FleetClient:
    """Implements ``EngineClient`` on another one: what died with an engine is generated again.

    While no engine serves, calls wait, and the episode's clock stands still. Nothing of a failed request was stored, so
    its tokens are never trained, and none twice.
    """

    def __init__(self, client: EngineClient, fleet: Fleet) -> None:
        self._client = client
        self._fleet = fleet

    async def generate(
        self, request: GenerateRequest, *, on_tokens: Callable[[Sequence[int]], None] | None = None
    ) -> Generation:
        """Generate from token ids; ``on_tokens`` gets the output ids as they come, and once it did nothing is repeated.

        Raises:
            EngineRequestError: if the request is invalid.
            RoutingError: if the routing that came does not fit the tokens.
            EngineError: if the engine failed and lives, or died in the middle of a stream.
        """
        stream = None if on_tokens is None else _Noting(on_tokens)
        while True:
            with clock_stopped():
                await self._fleet.available()
            before = self._fleet.outages.count
            try:
                return await self._client.generate(request, on_tokens=stream)
            except EngineRequestError:
                raise
            except EngineError:
                if stream is not None and stream.begun:
                    raise
                with clock_stopped():
                    is_outage = await self._fleet.outages.met_since(before)
                if not is_outage:
                    raise
            # a server that lives may still hold the old rid, or abort what takes the rid of a stream that just ended
            request = replace(request, rid=f"again-{request.rid}")


class _Noting:
    """Passes tokens on, and notes that there were some."""

    def __init__(self, on_tokens: Callable[[Sequence[int]], None]) -> None:
        self._on_tokens = on_tokens
        self.begun = False

    def __call__(self, ids: Sequence[int]) -> None:
        self.begun = True
        self._on_tokens(ids)
