"""What every advantage estimator must keep."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from miles_core.testing.builders import make_group
from miles_core.testing.step_batch import OPTIONAL_FIELDS, make_step_batch
from miles_core.testing.suites.base import PluginSuite
from miles_core.types import Estimates
from miles_core.types.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from miles_core.types import Group, StepBatch


def example_groups() -> tuple[Group, ...]:
    """Groups of different sizes, lengths and rewards, among them one without a signal and one of one trajectory."""
    rewards = ((1.0, 0.0, 0.5, 0.0), (1.0, 1.0, 1.0), (0.3,), (-2.0, 5.0, 1.0, 0.0, 0.0, 2.5))
    return tuple(make_group(*each, id=f"group-{n}", index=n) for n, each in enumerate(rewards))


class AdvantageEstimatorSuite(PluginSuite):
    """Conformance of advantage estimators.

    ``examples`` are the groups of a step; ``tolerance`` is how far results may differ where sums are taken in another
    order.
    """

    kind = "advantage_estimators"
    examples: ClassVar[Sequence[Group]] = ()
    tolerance: ClassVar[float] = 1e-5

    @property
    def groups(self) -> tuple[Group, ...]:
        """The step's groups."""
        return tuple(self.examples) or example_groups()

    def batch(self, groups: Sequence[Group] | None = None, fields: Sequence[str] | None = None) -> StepBatch:
        """A step with the optional fields that the estimator declares, read-only as in a run."""
        needs = self.make().needs if fields is None else fields
        batch: StepBatch = frozen(make_step_batch(self.groups if groups is None else groups, fields=needs))
        return batch

    def advantages(self, batch: StepBatch) -> NDArray[Any]:
        """The advantages of a step, ``[N]``."""
        return np.asarray(self.make().estimate(batch).advantages)

    def test_returns_float32_per_token(self) -> None:
        """``estimate`` returns ``Estimates`` whose arrays are float32 ``[N]``, aligned to the step's tokens."""
        batch = self.batch()
        estimates = self.make().estimate(batch)
        self.check(
            isinstance(estimates, Estimates), expected="Estimates", got=type(estimates).__name__, remedy="Return it."
        )
        for name in ("advantages", "returns"):
            values = getattr(estimates, name)
            if values is None and name == "returns":
                continue
            found = (getattr(values, "dtype", None), getattr(values, "shape", None))
            self.check(
                found == (np.dtype(np.float32), batch.tokens.shape),
                expected=f"{name} as a float32 array of shape {batch.tokens.shape}",
                got=f"{type(values).__name__} of dtype {found[0]}, shape {found[1]}",
                remedy="Spread values of samples with step_batch.per_token(values).astype(np.float32).",
            )

    def test_is_always_finite(self) -> None:
        """No NaN and no infinity: equal rewards, a group of one, huge rewards, samples without trained tokens."""
        groups = [*self.groups, make_group(0.0, 0.0), make_group(1e30, -1e30, 0.0), make_group(7.0)]
        batch = self.batch(groups)
        mask = batch.loss_mask.copy()
        mask[batch.cu_seqlens[0] : batch.cu_seqlens[1]] = False
        for case, step in {
            "extreme rewards": batch,
            "a sample without trained tokens": replace(batch, loss_mask=mask),
            "one trajectory in all": self.batch([make_group(1.0)]),
        }.items():
            values = self.advantages(step)
            self.check(
                bool(np.isfinite(values).all()),
                expected=f"finite advantages with {case}",
                got=f"{int((~np.isfinite(values)).sum())} of {len(values)} that are not",
                remedy="Guard each division: a spread may be 0, a count may be 0; compute in float64.",
            )

    def test_the_order_of_groups_does_not_matter(self) -> None:
        """Groups in another order get the same advantages: nothing leaks from one group's place to another."""
        groups = self.groups
        straight, reverse = self._by_trajectory(groups), self._by_trajectory(groups[::-1])
        self._check_equal(straight, reverse, "with the groups in reverse")

    def test_the_order_of_trajectories_does_not_matter(self) -> None:
        """The trajectories of a group in another order get the same advantages."""
        turned = [replace(group, trajectories=group.trajectories[::-1]) for group in self.groups]
        self._check_equal(
            self._by_trajectory(self.groups), self._by_trajectory(turned), "with the trajectories of groups in reverse"
        )

    def test_estimates_the_same_again(self) -> None:
        """The same step gets the same advantages: an estimator draws nothing and keeps nothing between steps."""
        made, batch = self.make(), self.batch()
        first = np.asarray(made.estimate(batch).advantages)
        made.estimate(self.batch([make_group(3.0, -3.0)]))
        self.check(
            np.array_equal(first, np.asarray(made.estimate(batch).advantages)),
            expected="the same advantages after another step",
            got="other ones",
            remedy="Keep no state between calls.",
        )

    def test_reads_only_what_it_needs(self) -> None:
        """Fields that ``needs`` does not name may be there or not: the result is the same."""
        needs = self.make().needs
        filled = self.batch(fields=OPTIONAL_FIELDS)
        undeclared: dict[str, Any] = {name: None for name in OPTIONAL_FIELDS if name not in needs}
        bare = replace(filled, **undeclared)
        self.check(
            np.array_equal(self.advantages(bare), self.advantages(filled)),
            expected=f"advantages that depend on needs = {tuple(needs)} alone",
            got="others when more fields are filled",
            remedy="Add the field to `needs`, so that every run computes it.",
        )

    def test_ignores_what_is_not_trained(self) -> None:
        """Tokens outside ``loss_mask`` hold the prompt: their numbers change no trained token's advantage."""
        batch = self.batch()
        other: dict[str, Any] = {
            name: np.where(batch.loss_mask, values, values + 3).astype(values.dtype)
            for name in ("tokens", "rollout_logprobs", *OPTIONAL_FIELDS)
            if (values := getattr(batch, name)) is not None
        }
        mask = batch.loss_mask
        changed = self.advantages(replace(batch, **other))[mask]
        self.check(
            np.allclose(self.advantages(batch)[mask], changed, atol=self.tolerance),
            expected="advantages of trained tokens that depend on trained tokens alone",
            got="others when numbers outside loss_mask change",
            remedy="Select with step_batch.loss_mask before you sum.",
        )

    def test_does_not_change_the_step(self) -> None:
        """The step's arrays are the same afterwards: the loss reads them too."""
        batch = make_step_batch(self.groups, fields=OPTIONAL_FIELDS)
        before = {field.name: np.copy(getattr(batch, field.name)) for field in fields(batch)}
        self.make().estimate(batch)
        changed = [name for name, values in before.items() if not np.array_equal(values, getattr(batch, name))]
        self.check(
            not changed, expected="an unchanged StepBatch", got=f"other {', '.join(changed)}", remedy="Copy first."
        )

    def _by_trajectory(self, groups: Sequence[Group]) -> dict[str, NDArray[Any]]:
        """Advantages of each trajectory's tokens; optional fields follow the trajectory, whatever its place."""
        order = [(t.id, sample) for group in groups for t in group.trajectories for sample in t.samples]
        batch = self.batch(groups, fields=())
        needed: dict[str, Any] = {
            name: np.concatenate([_noise(name, key, len(sample.tokens)) for key, sample in order])
            for name in self.make().needs
        }
        values = self.advantages(replace(batch, **needed))
        bounds = batch.cu_seqlens
        return {key: values[bounds[n] : bounds[n + 1]] for n, (key, _) in enumerate(order)}

    def _check_equal(self, one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]], how: str) -> None:
        for key, values in one.items():
            self.check(
                values.shape == other[key].shape and np.allclose(values, other[key], atol=self.tolerance),
                expected=f"the same advantages for {key} {how}: {values[-1:]}",
                got=str(other[key][-1:]),
                remedy="Use group_index and trajectory_index, never the place in the batch.",
            )


def _noise(name: str, key: str, length: int) -> NDArray[np.float32]:
    seed = [*name.encode(), *key.encode()]
    return (np.random.default_rng(seed).normal(size=length) / 4).astype(np.float32)
