"""What lifecycle hooks get: a run, and the trainer that they may act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from miles_core.kinds.train_backends import TrainBackend


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run: the name and path of its folder, and the step that it starts or went on from."""

    id: str
    path: Path
    step: int = 0


class TrainerHandle(Protocol):
    """The trainer as hooks may act on it: its backend, and the module that is trained."""

    @property
    def backend(self) -> TrainBackend:
        """The train backend."""

    @property
    def model(self) -> Any:
        """The ``torch.nn.Module`` that is trained; changes in place count."""
