"""Estimators and losses as the trainer calls them: with copies of their inputs, measured, and with checked results."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from miles_core.errors import MilesError, TrainError
from miles_core.kinds.losses import LossBatch, TokenLoss, TokenOutputs
from miles_core.lib.error_text import error_text, value_text
from miles_core.types import Estimates
from miles_core.types.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.kinds.advantage_estimators import AdvantageEstimator
    from miles_core.kinds.losses import Loss
    from miles_core.lib.plugin_calls import PluginCalls
    from miles_core.types import StepBatch

Tensors = TypeVar("Tensors", TokenOutputs, LossBatch)


class GuardedEstimator:
    """An estimator that gets read-only arrays; ``calls`` name and count what it does."""

    def __init__(self, estimator: AdvantageEstimator, calls: PluginCalls) -> None:
        self._estimator = estimator
        self._calls = calls
        self.needs = tuple(estimator.needs)

    def estimate(self, step_batch: StepBatch) -> Estimates:
        """What the estimator returns, float32 copies.

        Raises:
            TrainError: if it fails, or returns other than one finite number per token.
        """
        with _attributed(self._calls, "estimate"):
            estimates = self._estimator.estimate(frozen(step_batch))
            if not isinstance(estimates, Estimates):
                raise TrainError(f"{self._calls.title} must return Estimates; got {value_text(estimates)}")
            advantages = self._checked("advantages", estimates.advantages, step_batch)
            returns = estimates.returns
            return Estimates(advantages, None if returns is None else self._checked("returns", returns, step_batch))

    def _checked(self, name: str, values: object, batch: StepBatch) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        array = np.array(values, np.float32)
        if array.shape != batch.tokens.shape or not np.isfinite(array).all():
            raise TrainError(
                f"{self._calls.title} must return {batch.tokens.shape} finite {name}; got shape {array.shape} with "
                f"{int((~np.isfinite(array)).sum())} not finite"
            )
        return array


class GuardedLoss:
    """A loss that gets copies of its tensors; ``calls`` name and count what it does."""

    def __init__(self, loss: Loss, calls: PluginCalls) -> None:
        self._loss = loss
        self._calls = calls
        self.needs = tuple(loss.needs)

    def loss(self, outputs: TokenOutputs, batch: LossBatch) -> TokenLoss:
        """What the loss returns.

        Raises:
            TrainError: if it fails, or returns other than a value and a mask per token.
        """
        with _attributed(self._calls, "loss"):
            result = self._loss.loss(_copied(outputs), _copied(batch))
            if not isinstance(result, TokenLoss):
                raise TrainError(f"{self._calls.title} must return a TokenLoss; got {value_text(result)}")
            for name, values in (("per_token", result.per_token), ("mask", result.mask)):
                if not isinstance(values, torch.Tensor) or values.shape != batch.mask.shape:
                    got = tuple(values.shape) if isinstance(values, torch.Tensor) else value_text(values)
                    raise TrainError(f"{self._calls.title}: {name} must be {tuple(batch.mask.shape)}; got {got}")
            if result.mask.dtype != torch.bool:
                raise TrainError(f"{self._calls.title}: mask must be bool; got {result.mask.dtype}")
            if not result.per_token.is_floating_point():
                raise TrainError(f"{self._calls.title}: per_token must be float; got {result.per_token.dtype}")
            self._check_metrics(result)
            return result

    def _check_metrics(self, result: TokenLoss) -> None:
        try:
            for total, count in result.metrics.values():
                float(total), float(count)
        except Exception as error:
            raise TrainError(
                f"{self._calls.title}: metrics must map each name to (sum, count), two numbers: {error_text(error)}"
            ) from error


@contextmanager
def _attributed(calls: PluginCalls, method: str) -> Iterator[None]:
    """Counts and watches the call, and names the plugin in whatever it raises."""
    try:
        with calls.measured(method), calls.watched(method):
            yield
    except KeyboardInterrupt:
        raise
    except MilesError as error:
        if calls.title not in str(error):
            error.add_note(f"in {method}() of the {calls.title}")
        raise
    except BaseException as error:
        raise TrainError(f"{calls.title}: {method}() raised {error_text(error)}", remedy="Mend the plugin.") from error


def _copied(tensors: Tensors) -> Tensors:
    """The same with each tensor copied; gradients flow through the copy."""
    copies = {
        field.name: value.clone() if isinstance(value := getattr(tensors, field.name), torch.Tensor) else value
        for field in fields(tensors)
    }
    return type(tensors)(**copies)
