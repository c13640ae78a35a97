"""AdamW's state by parameter name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from miles_core.errors import CheckpointError
from miles_core.train.tensor_files import check_tensors, raise_unless_equal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class OptimizerState:
    """``steps`` of each trained parameter; ``tensors`` are ``exp_avg.NAME`` and ``exp_avg_sq.NAME`` of those above 0.

    ``exp_avg`` and ``exp_avg_sq`` are the moving averages of the gradient and of its square (Kingma & Ba, 2015).
    """

    steps: dict[str, int]
    tensors: dict[str, torch.Tensor]

    @classmethod
    def of(
        cls, optimizer: torch.optim.Optimizer | None, parameters: Mapping[str, torch.nn.Parameter]
    ) -> OptimizerState:
        """The live state, empty without an optimizer; ``parameters`` are all that it trains, by name."""
        steps, tensors = {}, {}
        for name, parameter in parameters.items():
            state = optimizer.state.get(parameter, {}) if optimizer else {}
            steps[name] = int(state["step"]) if state else 0
            for moment in MOMENTS if state else ():
                tensors[f"{moment}.{name}"] = state[moment]
        return cls(steps, tensors)

    @classmethod
    def checked(
        cls,
        path: Path,
        steps: str,
        tensors: dict[str, torch.Tensor],
        parameters: Mapping[str, torch.nn.Parameter],
    ) -> OptimizerState:
        """The state in a file, as far as it fits ``parameters``.

        Raises:
            CheckpointError: naming the file and what does not fit.
        """
        try:
            counts = {str(name): int(count) for name, count in json.loads(steps).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} holds no step counts: {error}") from error
        raise_unless_equal(path, counts, parameters)
        trained = {name: parameters[name] for name, count in counts.items() if count}
        check_tensors(path, tensors, {f"{moment}.{name}": p for moment in MOMENTS for name, p in trained.items()})
        return cls(counts, tensors)

    def apply(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        """Put a copy of the state into ``optimizer``, and drop gradients that wait for a step."""
        optimizer.zero_grad(set_to_none=True)
        optimizer.state.clear()
        for name, count in self.steps.items():
            if count:
                parameter = parameters[name]
                moments = {m: self.tensors[f"{m}.{name}"].to(parameter.device, copy=True) for m in MOMENTS}
                optimizer.state[parameter] = {"step": torch.tensor(float(count)), **moments}
