"""The HTTP process of a server, in which the front answers."""

from __future__ import annotations

import inspect
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from miles_core.app.sglang_receiver.front import Front
from miles_core.app.sglang_receiver.health import ServiceHealth
from miles_core.app.sglang_receiver.shard import rank_count
from miles_core.errors import EngineError, WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_LOG = logging.getLogger(__name__)


class Server:
    """Stands around functions of SGLang; ``needed`` are those that must be hooked for it to answer at all."""

    def __init__(self) -> None:
        self.needed: frozenset[str] = frozenset()
        self._front: Front | None = None

    def run(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Add our routes before SGLang runs its own."""
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        reason = self._why_not()
        if reason is None:
            self._mount(given["tokenizer_manager"])
        else:
            _LOG.error("this server takes no weights by miles' receiver: %s", reason)
        return original(*args, **kwargs)

    async def continue_generation(self, original: Any, manager: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse where the weights must not serve."""
        if self._front is None:
            return await original(manager, *args, **kwargs)
        return await _or_refuse(self._front.resume, lambda: original(manager, *args, **kwargs))

    async def release_memory_occupation(self, original: Any, manager: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse under an open update."""
        if self._front is None:
            return await original(manager, *args, **kwargs)
        return await _or_refuse(self._front.release, lambda: original(manager, *args, **kwargs))

    def _why_not(self) -> str | None:
        from sglang.srt.plugins.hook_registry import HookRegistry  # type: ignore[import-not-found]
        from sglang.srt.runtime_context import get_parallel, get_serving  # type: ignore[import-not-found]

        if missing := self.needed - HookRegistry._patched:
            return f"this version of SGLang has no {', '.join(sorted(missing))}"
        if (nodes := get_parallel().nnodes) > 1:
            return f"it has ranks on {nodes} nodes, and only those of one can be reached"
        if (workers := get_serving().tokenizer_worker_num) > 1:
            return f"it has {workers} HTTP processes (--tokenizer-worker-num), and each would know but itself"
        return None

    def _mount(self, manager: Any) -> None:
        from sglang.srt.entrypoints.http_server import app  # type: ignore[import-not-found]
        from sglang.srt.utils.auth import AuthLevel, auth_level  # type: ignore[import-not-found]

        self._front = Front(rank_count(), manager)
        for path, (method, endpoint) in self._front.endpoints().items():
            app.router.add_route(path, auth_level(AuthLevel.ADMIN_OPTIONAL)(partial(endpoint)), methods=[method])
        app.add_middleware(ServiceHealth, front=self._front)


async def _or_refuse(step: Callable[[Callable[[], Awaitable[Any]]], Awaitable[None]], call: Any) -> None:
    from fastapi import HTTPException

    try:
        await step(call)
    except (WeightSyncError, EngineError) as error:
        raise HTTPException(503, str(error)) from error
