"""Advantage estimators: from rewards to a value per token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from miles_core.kinds.base import Kind, PluginContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.types import Estimates, StepBatch

Need = Literal["reference_logprobs", "proximal_logprobs"]


@runtime_checkable
class AdvantageEstimator(Protocol):
    """Called once over the whole step, so that statistics never depend on how the step is split.

    ``needs`` names the optional fields of :class:`StepBatch` that it reads; this version computes no ``values``. The
    arrays that it gets are read-only.
    """

    needs: tuple[Need, ...]

    def estimate(self, step_batch: StepBatch) -> Estimates:
        """Advantages (and maybe returns) aligned to the step's tokens, float32 ``[N]``."""


def adapt(function: Callable[..., Any]) -> Callable[[Any, PluginContext], AdvantageEstimator]:
    """A factory for a plain ``fn(step_batch) -> Estimates | array``."""
    from miles_core.types import Estimates  # here, so that listing plugins does not import all data types

    class FunctionEstimator:
        needs: tuple[Need, ...] = ()

        def __init__(self, config: Any, context: PluginContext) -> None:
            del config, context

        def estimate(self, step_batch: StepBatch) -> Estimates:
            result = function(step_batch)
            return result if isinstance(result, Estimates) else Estimates(result)

    return FunctionEstimator


KIND = Kind(
    plural="advantage_estimators",
    singular="advantage estimator",
    summary="turns rewards into an advantage per token",
    table="[advantage]",
    protocol=AdvantageEstimator,
    members=("needs", "estimate"),
    awaited={"estimate": False},
    choices={"needs": get_args(Need)},
    adapt=adapt,
    function=("step_batch",),
)
