"""The ``torch`` train backend: one process, a Hugging Face model, AdamW."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from miles_core.errors import TrainError
from miles_core.kinds.losses import TokenOutputs
from miles_core.train.batching import DEMONSTRATION
from miles_core.train.copy_buffers import CopyBuffers
from miles_core.train.device import DeviceName, pick_device
from miles_core.train.layout import packed_layout, padded_layout
from miles_core.train.replay import RoutingReplay
from miles_core.train.snapshot import Snapshot, load_weights, restore_snapshot
from miles_core.train.token_outputs import batch_outputs, one_by_one_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from miles_core.kinds.base import PluginContext
    from miles_core.kinds.train_backends import ModelSource, OptimizerSettings
    from miles_core.train.layout import InputLayout
    from miles_core.train.replay import Routes
    from miles_core.types import Sample


class TorchBackendConfig(BaseModel):
    """Options of ``[train] use = "torch"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: DeviceName = Field(
        "auto", description="auto: cuda where torch sees a GPU, else cpu, and always cpu if deterministic"
    )
    threads: int | None = Field(None, ge=1, description="CPU threads; default: torch's choice")
    activation_checkpointing: bool = Field(False, description="recompute layers in the backward pass to save memory")
    packing: bool = Field(False, description="samples of a micro-batch in one row, without padding")
    deterministic: bool = Field(
        False, description="logprobs bit-equal with a deterministic embedded engine's, many times slower"
    )

    @model_validator(mode="after")
    def _deterministic_alone(self) -> TorchBackendConfig:
        for other in ("activation_checkpointing", "packing"):
            if self.deterministic and getattr(self, other):
                raise ValueError(f"{other} = true has no place beside deterministic = true: each token is a pass")
        if self.deterministic and self.device == "cuda":
            raise ValueError("deterministic = true needs device = 'cpu': that is where the embedded engine computes")
        return self


class TorchBackend:
    """The model, its gradients and AdamW in one PyTorch process.

    See :class:`miles_core.kinds.train_backends.TrainBackend`.
    """

    Config = TorchBackendConfig

    def __init__(self, config: TorchBackendConfig, context: PluginContext) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self._device = pick_device("cpu" if config.deterministic else config.device)
        self._source: ModelSource = context.service("model_source")
        self._checkpointing = config.activation_checkpointing
        self._deterministic = config.deterministic
        self._packing = config.packing
        self.model = self._build(self._source.init)
        _check_attention(self.model, config)
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
        """Detached logprobs and entropies ``[B, T]`` on the CPU; the actor replays as its training pass does."""
        if reference and self._reference is None:
            raise TrainError("no reference model is kept", remedy="Call keep_reference() before the first step.")
        layout = self._layout(samples)
        routes = self._routes(samples, layout, replay and not reference)
        self.model.eval()
        with torch.no_grad(), self._replaying(routes, compare=True):
            model = self._reference if reference else self.model
            outputs = self._outputs(model, samples, layout, routes, entropy=True)
        self._verify(routes, layout, passes=1)
        return TokenOutputs(outputs.logprobs.cpu(), None if outputs.entropy is None else outputs.entropy.cpu())

    def forward_backward(
        self,
        samples: Sequence[Sample],
        loss: Callable[[TokenOutputs], torch.Tensor],
        *,
        replay: bool,
        entropy: bool,
    ) -> None:
        """Run one micro-batch and add its gradient; the routes stay in force until recompute is over."""
        layout = self._layout(samples)
        routes = self._routes(samples, layout, replay)
        # dropout has no place where a ratio of exactly 1 is asked for
        self.model.train(not self._deterministic)
        with self._replaying(routes):
            total = loss(self._outputs(self.model, samples, layout, routes, entropy=entropy))
            if layout.fed:
                total.backward()  # type: ignore[no-untyped-call]
        self._verify(routes, layout, passes=2 if self._checkpointing else 1)

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
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # colocated engines take their memory back after the step
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
        return source.bridge.build(source.path, dtype=source.dtype, init=init, seed=source.seed).to(self._device)

    def _make_replay(self) -> RoutingReplay | None:
        spec = self._source.routing
        return None if spec is None else RoutingReplay(self._source.bridge.replay_points(self.model), spec)

    def _one_by_one(self, samples: Sequence[Sample]) -> bool:
        """No engine sampled a demonstration, so there is nothing for it to be bit-equal with."""
        return self._deterministic and any(sample.agent_id != DEMONSTRATION for sample in samples)

    def _layout(self, samples: Sequence[Sample]) -> InputLayout:
        lay_out = packed_layout if self._packing or self._one_by_one(samples) else padded_layout
        return lay_out([len(sample.tokens) for sample in samples])

    def _routes(self, samples: Sequence[Sample], layout: InputLayout, replay: bool) -> Routes | None:
        return self.replay.routes(samples, layout).to(self._device) if replay and self.replay is not None else None

    def _replaying(self, routes: Routes | None, *, compare: bool = False) -> AbstractContextManager[None]:
        return nullcontext() if self.replay is None else self.replay.active(routes, compare=compare)

    def _verify(self, routes: Routes | None, layout: InputLayout, *, passes: int) -> None:
        """Check that the routes were used; a micro-batch that feeds nothing ran no pass."""
        if routes is not None and self.replay is not None and layout.fed:
            self.replay.verify(routes, passes=passes)

    def _outputs(
        self, model: Any, samples: Sequence[Sample], layout: InputLayout, routes: Routes | None, *, entropy: bool
    ) -> TokenOutputs:
        if not layout.fed:
            nothing = torch.zeros(layout.output_shape)
            return TokenOutputs(nothing, nothing if entropy else None)
        if not self._one_by_one(samples):
            return batch_outputs(model, samples, layout, entropy=entropy)
        passes = 0

        def token_pass(number: int) -> AbstractContextManager[None]:
            nonlocal passes
            passes += 1
            return nullcontext() if self.replay is None or routes is None else self.replay.narrowed(routes, number)

        keys = [b""] * layout.fed if routes is None else routes.keys()
        outputs = one_by_one_outputs(model, samples, layout, entropy=entropy, routes=keys, token_pass=token_pass)
        if routes is not None:
            routes.count_as_one(passes)
        return outputs


def _check_attention(model: Any, config: TorchBackendConfig) -> None:
    """Refuse what would silently attend across samples, or past a window."""
    text = model.config.get_text_config()
    implementation = text._attn_implementation
    if (config.packing or config.deterministic) and implementation != "sdpa":
        raise TrainError(
            f"train.packing and train.deterministic need attention implementation 'sdpa'; "
            f"{type(model).__name__} has {implementation!r}",
            remedy="Leave train.packing and train.deterministic off for this model.",
        )
    window = getattr(text, "sliding_window", None)
    if config.deterministic and window is not None and window < text.max_position_embeddings:
        raise TrainError(
            f"train.deterministic needs full attention; {type(model).__name__} has a window of {window} tokens",
            remedy="Leave train.deterministic off for this model.",
        )
