"""Train backends: the model, its gradients and its optimizer on one kind of machinery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from miles_core.kinds.base import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch

    from miles_core.kinds.losses import TokenOutputs
    from miles_core.kinds.model_bridges import ModelBridge
    from miles_core.types import RoutingSpec, Sample


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW: ``betas``, ``weight_decay`` and the clipping of the global gradient norm."""

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Which model to train: a Hugging Face directory, its bridge, and how to begin (``"pretrained"``, ``"random"``)."""

    path: str
    bridge: ModelBridge
    routing: RoutingSpec | None
    dtype: str = "float32"
    init: str = "pretrained"
    seed: int = 0


class ModelSnapshot(Protocol):
    """A copy of model, optimizer and random states that writes itself once; ``nbytes`` is about what that takes."""

    @property
    def nbytes(self) -> int:
        """Bytes that calling it writes."""

    def __call__(self, path: Path) -> None:
        """Write the copy into the folder ``path``, created if need be; may run in any thread."""


@runtime_checkable
class TrainBackend(Protocol):
    """Made by ``cls(config, context)``; the services hold ``model_source``, a :class:`ModelSource`.

    A micro-batch is a sequence of samples. Token outputs are ``[B, T]`` with T the longest sample, padded on the
    right; position t is about token t, so position 0 is never valid.
    """

    def forward(self, samples: Sequence[Sample], *, replay: bool, reference: bool = False) -> TokenOutputs:
        """Detached logprobs and entropies ``[B, T]`` at each turn's temperature."""

    def forward_backward(
        self,
        samples: Sequence[Sample],
        loss: Callable[[TokenOutputs], torch.Tensor],
        *,
        replay: bool,
        entropy: bool,
    ) -> None:
        """Run one micro-batch, call ``loss`` on its outputs and add the gradient of the scalar that it returns."""

    def reset_optimizer(self, settings: OptimizerSettings) -> None:
        """Start with a fresh optimizer."""

    def optimizer_step(self, learning_rate: float) -> float:
        """Clip, update, clear the gradients; returns the gradient norm before clipping."""

    def keep_reference(self, path: Path | None = None) -> None:
        """Freeze a copy of the present weights, or of those in the checkpoint ``path``, as the reference model."""

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """The trained model's parameters and persistent buffers by module name."""

    def snapshot(self) -> ModelSnapshot:
        """Copy weights, optimizer and random states now; returns what writes the copy into a folder, in any thread.

        The folder becomes a Hugging Face directory (config, safetensors, tokenizer), and what only :meth:`restore`
        needs lies in its sub-folder ``state/``.
        """

    def restore(self, path: Path) -> None:
        """Load weights, optimizer and random states that :meth:`snapshot` wrote; call :meth:`reset_optimizer` before.

        Raises:
            CheckpointError: naming the file that is cut short, or the tensors that are missing, unexpected or of
                another shape; nothing is loaded in part.
        """

    def replay_metrics(self) -> Mapping[str, float]:
        """Routing metrics gathered since the last call."""

    def close(self) -> None:
        """Release everything."""


KIND = Kind(
    plural="train_backends",
    singular="train backend",
    summary="model, gradients and optimizer on one kind of machinery",
    table="[train]",
    protocol=TrainBackend,
    members=("forward", "forward_backward", "optimizer_step", "parameters", "snapshot", "restore"),
)
