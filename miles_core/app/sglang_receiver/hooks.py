"""Where SGLang meets our receiver: a few functions of SGLang, called around."""

from __future__ import annotations

import multiprocessing
import sys
from typing import TYPE_CHECKING, Any

from miles_core.app.sglang_receiver.folder import make_folder
from miles_core.app.sglang_receiver.http_process import Server
from miles_core.app.sglang_receiver.rank import Rank
from miles_core.app.sglang_receiver.unread import record_weight_version_change

if TYPE_CHECKING:
    from collections.abc import Callable

_SCHEDULER = "sglang.srt.managers.scheduler"
_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_HTTP = "sglang.srt.entrypoints.http_server"


def install() -> None:
    """Register the hooks of this process: all of them in a server's first one, from which others may be forked.

    A process that SGLang spawns gets those of a scheduler, if it is one.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # type: ignore[import-not-found]

    first = multiprocessing.parent_process() is None
    hooks = _scheduler_hooks() if first or _SCHEDULER in sys.modules else {}
    if first:
        make_folder()
        hooks |= _http_hooks(tuple(hooks))
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def _scheduler_hooks() -> dict[str, Callable[..., Any]]:
    rank = Rank()

    def get_init_info(original: Any, scheduler: Any) -> Any:
        """The last that a scheduler does before the server listens; an error here ends the server."""
        rank.serve(scheduler)
        return original(scheduler)

    def run_batch(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        with rank.gate.forward():
            return original(scheduler, *args, **kwargs)

    def release_memory_occupation(original: Any, updater: Any, request: Any) -> Any:
        if not _loses_weights(updater, request):
            return original(updater, request)
        with rank.discarding():
            return original(updater, request)

    return {
        f"{_SCHEDULER}.Scheduler.get_init_info": get_init_info,
        f"{_SCHEDULER}.Scheduler.run_batch": run_batch,
        f"{_SCHEDULER}.Scheduler.record_weight_version_change": record_weight_version_change,
        f"{_UPDATER}.release_memory_occupation": release_memory_occupation,
    }


def _loses_weights(updater: Any, request: Any) -> bool:
    from sglang.srt.runtime_context import get_exec  # type: ignore[import-not-found]

    backed_up = get_exec().features.enable_weights_cpu_backup
    asked = not request.tags or "weights" in request.tags
    return asked and updater.memory_saver_adapter.enabled and not backed_up


def _http_hooks(others: tuple[str, ...]) -> dict[str, Callable[..., Any]]:
    server = Server()
    targets = {
        f"{_HTTP}._setup_and_run_http_server": server.run,
        f"{_MANAGER}.continue_generation": server.continue_generation,
        f"{_MANAGER}.release_memory_occupation": server.release_memory_occupation,
    }
    server.needed = frozenset({*targets, *others})
    return targets
