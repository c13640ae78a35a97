"""What SGLang's scheduler offers to our receiver."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from miles_core.errors import WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.app.sglang_receiver.gate import Gate


class SchedulerHost:
    """One rank's scheduler; :class:`~miles_core.weights.receive.ReceiverHost` says what its methods mean."""

    def __init__(self, scheduler: Any, gate: Gate) -> None:
        self._scheduler = scheduler
        self._gate = gate

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """On a GPU the passes that were launched come to their end first, and what is written before the next."""
        with self._gate.exclusive():
            _synchronise()
            yield
            _synchronise()

    def set_out_of_service(self, reason: str | None) -> None:
        """The front refuses to resume while there is a reason."""
        self._gate.reason = reason

    def finalise(self) -> None:
        """What SGLang runs after weights came past its loader."""
        from sglang.srt.model_loader.loader import post_load_weights  # type: ignore[import-not-found]

        with torch.inference_mode(False), torch.no_grad():
            post_load_weights(self.model)

    def commit_version(self, version: int) -> None:
        """Nothing: ``/flush_cache`` and ``/update_weight_version`` go to all ranks; the driver calls them."""

    @property
    def model(self) -> torch.nn.Module:
        """The model that is served."""
        return self._scheduler.tp_worker.model_runner.model  # type: ignore[no-any-return]

    @property
    def draft_model(self) -> torch.nn.Module | None:
        """The one that speculates, if any."""
        draft = self._scheduler.draft_worker
        runners = [] if draft is None else draft.weight_update_runners()
        models = [runner.model for _, runner in runners if runner.model is not self.model]
        return models[0] if models else None

    def check(self) -> None:
        """Refuse an update that this scheduler cannot take now.

        Raises:
            WeightSyncError: with the reason.
        """
        from sglang.srt.runtime_context import get_parallel  # type: ignore[import-not-found]

        if "weights" in self._scheduler.weight_updater.offload_tags:
            raise WeightSyncError(
                "the memory of this engine's weights is released",
                remedy="Call /resume_memory_occupation before the update.",
            )
        if get_parallel().pp_size > 1 and self._scheduler._engine_paused:
            raise WeightSyncError(
                "SGLang goes on with running requests after a pause in_place or retract where it has pipeline stages",
                remedy='Pause with the mode "abort" ([engine] pause_mode = "abort").',
            )
        if reason := _held_elsewhere(self.model):
            raise WeightSyncError(reason)


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _held_elsewhere(model: torch.nn.Module) -> str | None:
    """Why writing the parameters would not be enough."""
    from sglang.srt.model_executor.model_runner_components.weight_updater import (  # type: ignore[import-not-found]
        _unsupported_derived_weight_cache_error,
    )
    from sglang.srt.runtime_context import get_model

    if (mode := get_model().weight_cache_mode) != "off":
        return f"other servers share these weights (--weight-cache-mode {mode})"
    reason: str | None = _unsupported_derived_weight_cache_error(model)
    return reason
