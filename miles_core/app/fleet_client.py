"""Generation on a fleet: an engine's death costs time, not trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import EngineError, EngineRequestError
from miles_core.rollout.clock import clock_stopped

if TYPE_CHECKING:
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

    async def generate(self, request: GenerateRequest) -> Generation:
        """Generate from token ids.

        Raises:
            EngineRequestError: if the request is invalid.
            RoutingError: if the routing that came does not fit the tokens.
            EngineError: if the engine failed and lives.
        """
        while True:
            with clock_stopped():
                await self._fleet.available()
            before = self._fleet.outages.count
            try:
                return await self._client.generate(request)
            except EngineRequestError:
                raise
            except EngineError:
                with clock_stopped():
                    is_outage = await self._fleet.outages.met_since(before)
                if not is_outage:
                    raise
