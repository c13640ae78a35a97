"""What lifecycle hooks get: a run, and the trainer that they may act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.errors import PluginError

if TYPE_CHECKING:
    from pathlib import Path

    from miles_core.kinds.train_backends import TrainBackend


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run: the name and path of its folder, and the step that it starts or went on from."""

    id: str
    path: Path
    step: int = 0


class TrainerHandle:
    """The trainer as hooks may act on it: its ``backend``, and the module that is trained."""

    def __init__(self, backend: TrainBackend) -> None:
        self.backend = backend

    @property
    def model(self) -> Any:
        """The ``torch.nn.Module`` that is trained; changes in place count.

        Raises:
            PluginError: if the backend has no single module, which is then reached through its own attributes.
        """
        try:
            return self.backend.model  # type: ignore[attr-defined]
        except AttributeError:
            raise PluginError(
                f"the train backend {type(self.backend).__name__} offers no `model`",
                remedy="Use trainer.backend, or a backend that has one, such as torch.",
            ) from None
