"""The ``torch`` train backend: one process, a Hugging Face model, AdamW."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from miles_core.errors import TrainError
from miles_core.kinds.losses import TokenOutputs
from miles_core.train.batching import temperatures
from miles_core.train.copy_buffers import CopyBuffers
from miles_core.train.replay import RoutingReplay
from miles_core.train.snapshot import Snapshot, load_weights, restore_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from miles_core.kinds.base import PluginContext
    from miles_core.kinds.train_backends import ModelSource, OptimizerSettings
    from miles_core.train.replay import Routes
    from miles_core.types import Sample


class TorchBackendConfig(BaseModel):
    """Options of ``[train] use = "torch"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int | None = Field(None, ge=1, description="CPU threads; default: torch's choice")
    activation_checkpointing: bool = Field(False, description="recompute layers in the backward pass to save memory")


class TorchBackend:
    """See :class:`miles_core.kinds.train_backends.TrainBackend`; batches are padded on the right."""

    Config = TorchBackendConfig

    def __init__(self, config: TorchBackendConfig, context: PluginContext) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self._source: ModelSource = context.service("model_source")
        self._checkpointing = config.activation_checkpointing
        self.model = self._build(self._source.init)
        self.replay = self._make_replay()
        if self._checkpointing:
            options: dict[str, Any] = {"use_reentrant": False}
            if self.replay is not None:
                options["context_fn"] = self.replay.checkpoint_contexts
            self.model.activation_checkpointing_enable(options)
        self._reference: Any = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._max_grad_norm = 1.0
        self._copies = CopyBuffers()

    def forward(self, samples: Sequence[Sample], *, replay: bool, reference: bool = False) -> TokenOutputs:
        """Detached logprobs and entropies ``[B, T]``; the actor replays as its training pass does."""
        if reference and self._reference is None:
            raise TrainError("no reference model is kept", remedy="Call keep_reference() before the first step.")
        routes = self._routes(samples, replay and not reference)
        self.model.eval()
        with torch.no_grad(), self._replaying(routes, compare=True):
            outputs = self._outputs(self._reference if reference else self.model, samples, entropy=True)
        self._verify(routes, passes=1)
        return outputs

    def forward_backward(
        self,
        samples: Sequence[Sample],
        loss: Callable[[TokenOutputs], torch.Tensor],
        *,
        replay: bool,
        entropy: bool,
    ) -> None:
        """Run one micro-batch and add its gradient; the routes stay in force until recompute is over."""
        routes = self._routes(samples, replay)
        self.model.train()
        with self._replaying(routes):
            loss(self._outputs(self.model, samples, entropy=entropy)).backward()  # type: ignore[no-untyped-call]
        self._verify(routes, passes=2 if self._checkpointing else 1)

    def reset_optimizer(self, settings: OptimizerSettings) -> None:
        """Start with a fresh AdamW."""
        self._max_grad_norm = settings.max_grad_norm
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )

    def optimizer_step(self, learning_rate: float) -> float:
        """Clip, update, clear; returns the gradient norm before clipping.

        Raises:
            TrainError: if the norm is not finite; the weights are left as they were.
        """
        if self._optimizer is None:
            raise TrainError("the optimizer is not set", remedy="Call reset_optimizer() first.")
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._max_grad_norm))
        if not np.isfinite(norm):
            raise TrainError(
                f"the gradient norm is {norm}",
                remedy="Lower optimizer.learning_rate, or look at the samples of this step for extreme values.",
            )
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def keep_reference(self, path: Path | None = None) -> None:
        """Freeze a copy of the present weights, or of those in the checkpoint ``path``."""
        reference = self._build("random").eval().requires_grad_(False)
        if path is None:
            reference.load_state_dict(self.model.state_dict())
        else:
            load_weights(path, reference, self._source.bridge.mapping)
        self._reference = reference

    def parameters(self) -> Mapping[str, torch.Tensor]:
        """Parameters and persistent buffers by module name, tied ones under each name."""
        state: dict[str, torch.Tensor] = self.model.state_dict(keep_vars=True)
        return state

    def snapshot(self) -> Snapshot:
        """Copy weights, AdamW's state and random states; returns what writes the copy into a folder, once."""
        source = self._source
        return Snapshot(self.model, source.bridge.mapping, self._optimizer, Path(source.path), self._copies)

    def restore(self, path: Path) -> None:
        """Load what :meth:`snapshot` wrote, in place: views of the parameters stay valid.

        Raises:
            CheckpointError: naming the file and what does not fit; nothing is loaded in part.
        """
        if self._optimizer is None:
            raise TrainError("the optimizer is not set", remedy="Call reset_optimizer() first.")
        restore_snapshot(path, self.model, self._source.bridge.mapping, self._optimizer)

    def replay_metrics(self) -> Mapping[str, float]:
        """Routing metrics gathered since the last call."""
        return self.replay.take_metrics() if self.replay is not None else {}

    def close(self) -> None:
        """Nothing is held beyond the process."""

    def _build(self, init: str) -> Any:
        source = self._source
        return source.bridge.build(source.path, dtype=source.dtype, init=init, seed=source.seed)

    def _make_replay(self) -> RoutingReplay | None:
        spec = self._source.routing
        return None if spec is None else RoutingReplay(self._source.bridge.replay_points(self.model), spec)

    def _routes(self, samples: Sequence[Sample], replay: bool) -> Routes | None:
        return self.replay.routes(samples) if replay and self.replay is not None else None

    def _replaying(self, routes: Routes | None, *, compare: bool = False) -> Any:
        return nullcontext() if self.replay is None else self.replay.active(routes, compare=compare)

    def _verify(self, routes: Routes | None, *, passes: int) -> None:
        if routes is not None and self.replay is not None:
            self.replay.verify(routes, passes=passes)

    def _outputs(self, model: Any, samples: Sequence[Sample], *, entropy: bool) -> TokenOutputs:
        """Causal attention hides the padding on the right, so no attention mask is needed."""
        tokens, scale = _pad(samples)
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits.float() / scale[:, 1:, None]
        normaliser = logits.logsumexp(-1)
        logprobs = logits.gather(-1, tokens[:, 1:, None])[..., 0] - normaliser
        spread = None
        if entropy:
            spread = _first(normaliser - (logits.softmax(-1) * logits).sum(-1))
        return TokenOutputs(_first(logprobs), spread)


def _first(values: torch.Tensor) -> torch.Tensor:
    """Align to tokens: the first token of a sequence has no value."""
    return torch.nn.functional.pad(values, (1, 0))


def _pad(samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(sample.tokens) for sample in samples)
    tokens = np.zeros((len(samples), width), np.int64)
    scale = np.ones((len(samples), width), np.float32)
    for row, sample in enumerate(samples):
        tokens[row, : len(sample.tokens)] = sample.tokens
        scale[row, : len(sample.tokens)] = temperatures(sample)
    return torch.from_numpy(tokens), torch.from_numpy(scale)
