"""Updates of engines that hold our receiver: each bucket goes into the live parameters as it comes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from miles_core.errors import WeightSyncError
from miles_core.types import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.weights.exchange import EngineExchange
    from miles_core.weights.ports import Staged


class ReceiverUpdates:
    """Calls ``/weights/*``, which :class:`~miles_core.weights.receive.WeightReceiver` answers."""

    at_once = False

    async def layouts(self, engines: EngineExchange) -> Sequence[Layout]:
        """The layout that each receiver publishes."""
        replies = await engines.all("/weights/layout", None, stage="asking for the layout")
        return [_layout(url, text) for url, text in zip(engines.urls, replies, strict=True)]

    async def begin(self, engines: EngineExchange, version: int) -> None:
        """Open the update."""
        await engines.all("/weights/begin", {"version": version}, stage=f"begin of version {version}")

    async def receive(self, engines: EngineExchange, version: int, staged: Staged) -> None:
        """Have each engine fetch the bucket."""
        bucket = staged.bucket
        body = {"version": version, "bucket": bucket.to_json(), "delivery": dict(staged.delivery)}
        await engines.all("/weights/receive", body, stage=f"receive of bucket {bucket.index}")

    async def verify(self, engines: EngineExchange, version: int, staged: Sequence[Staged]) -> None:
        """Have each engine compare what it holds with the checksums."""
        body = {"version": version, "checksums": [one.checksum for one in staged]}
        await engines.all("/weights/verify", body, stage="verify")

    async def commit(self, engines: EngineExchange, version: int) -> None:
        """Commit."""
        await engines.all("/weights/commit", {"version": version}, stage="commit")

    async def abort(self, engines: EngineExchange, url: str, version: int) -> str | None:
        """Abort; the receiver says whether it holds a mixture, or has committed already."""
        try:
            status = json.loads(await engines.call(url, "/weights/abort", {}, stage="abort"))
            return f"{status}" if status["torn"] or status["version"] >= version else None
        except (ValueError, TypeError, KeyError) as error:
            raise WeightSyncError(f"engine {url}: abort answered no status: {type(error).__name__} {error}") from error


def _layout(url: str, text: str) -> Layout:
    try:
        return Layout.from_json(json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise WeightSyncError(
            f"engine {url}: its layout must be {{placements, unclaimed}} in JSON: {type(error).__name__} {error}",
            remedy="Run the same version of miles in driver and engines.",
        ) from error
