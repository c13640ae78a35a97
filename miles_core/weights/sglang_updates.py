"""Updates of SGLang by its own endpoints: it reads all buckets from a folder in one call."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from miles_core.errors import WeightSyncError
from miles_core.weights.exchange import RefusedError
from miles_core.weights.staged_files import check_files, check_unchanged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.types import Layout
    from miles_core.weights.exchange import EngineExchange
    from miles_core.weights.ports import Staged
    from miles_core.weights.publish import PauseMode

_logger = logging.getLogger("miles.weights")

_COMPARABLE = ("dtype", "quantization", "tp_size", "pp_size", "ep_size", "dp_size", "moe_runner_backend")
"""Server arguments that decide which bytes an engine keeps of a checkpoint."""


class SglangUpdates:
    """Loads by ``/update_weights_from_disk`` and commits by ``/update_weight_version``, on engines that are paused.

    The load names no version: it would take effect on each engine by itself, before the others have loaded. When a load
    fails, SGLang loads again from the same folder, which it calls a roll back; what it holds then is not to be trusted.
    Written from the source of SGLang 0.5.23.
    """

    at_once = True

    def __init__(self, pause_mode: PauseMode) -> None:
        self._pause_mode = pause_mode
        self._torn: set[str] = set()

    async def layouts(self, engines: EngineExchange) -> Sequence[Layout]:
        """None: SGLang publishes no layout; it casts what the trainer has."""
        return ()

    async def begin(self, engines: EngineExchange, version: int) -> None:
        """Nothing to open."""

    async def receive(self, engines: EngineExchange, version: int, staged: Staged) -> None:
        """Nothing to do before all buckets are there."""

    async def verify(self, engines: EngineExchange, version: int, staged: Sequence[Staged]) -> None:
        """Check the files, have every engine load them, and compare what engines of one kind hold."""
        folder, marks = await anyio.to_thread.run_sync(check_files, staged)
        body = {"model_path": str(folder), "load_format": "auto", "flush_cache": False}
        # Shielded: files that vanish under a load would end the server.
        with anyio.CancelScope(shield=True):
            self._torn.update(engines.urls)
            await engines.accepted("/update_weights_from_disk", body, stage=f"load of version {version}")
        await anyio.to_thread.run_sync(check_unchanged, staged, marks)
        await self._flush(engines)
        if len(engines.urls) > 1:
            await _compare(engines)

    async def commit(self, engines: EngineExchange, version: int) -> None:
        """Name the weights, and see that each engine says so."""
        body = {"new_version": str(version), "abort_all_requests": False}
        await engines.accepted("/update_weight_version", body, stage="commit")
        replies = await engines.all("/model_info", None, stage="asking for the version")
        for url, text in zip(engines.urls, replies, strict=True):
            if (found := _value(text, "weight_version")) != str(version):
                raise WeightSyncError(
                    f"engine {url}: expected weight_version {str(version)!r} after the commit; it says {found!r}",
                    remedy="See the engine's log; restart the engine if it recurs.",
                )
        self._torn.difference_update(engines.urls)

    async def abort(self, engines: EngineExchange, url: str, version: int) -> str | None:
        """Nothing to undo; an engine that was told to load must not serve."""
        return "it began to load an update that failed; publish again or restart it" if url in self._torn else None

    async def _flush(self, engines: EngineExchange) -> None:
        """Forget prefixes of the old weights; those of requests that are paused in place stay, and no salt matches."""
        try:
            await engines.all("/flush_cache", {}, stage="flush of the prefix cache")
        except RefusedError:
            if self._pause_mode != "in_place":
                raise


async def _compare(engines: EngineExchange) -> None:
    """Engines that keep weights alike must hold the same ones."""
    facts = await engines.all("/server_info", None, stage="asking for the server's settings")
    try:
        sums = await engines.accepted("/weights_checker", {"action": "checksum"}, stage="checksum of the weights")
    except RefusedError as error:  # some quantisations have none
        _logger.warning("engines are not compared with each other: %s", error.message)
        return
    first: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for url, text, found in zip(engines.urls, facts, sums, strict=True):
        kind = json.dumps([_value(text, name) for name in _COMPARABLE])
        other, expected = first.setdefault(kind, (url, found))
        if expected.get("per_engine_checksum") != found.get("per_engine_checksum"):
            names = ", ".join(_differing(expected, found)[:3]) or "no parameter that they name"
            raise WeightSyncError(
                f"engines {other} and {url} loaded the same files and hold different weights: {names}",
                remedy="Publish again; if it recurs, see whether both read the same folder, and check their hosts.",
            )


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    pairs = zip(one.get("ranks") or (), other.get("ranks") or (), strict=False)
    return [
        name
        for left, right in pairs
        for name in sorted(left["checksums"].keys() | right["checksums"].keys())
        if left["checksums"].get(name) != right["checksums"].get(name)
    ]


def _value(text: str, key: str) -> object:
    try:
        return json.loads(text).get(key)
    except (ValueError, AttributeError):
        return None
