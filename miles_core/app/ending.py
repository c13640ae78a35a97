"""How a run ends: by a limit, because nothing is left to learn, because the data or the user ended it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from miles_core.errors import RolloutError

if TYPE_CHECKING:
    from miles_core.app.run_state import EmptySteps, RunState
    from miles_core.config.schema import RunTable

Ending = Literal["steps", "hours", "data", "solved", "exhausted", "stopped"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: steps done, weight updates, the first and the last steps' rewards, and what ended it."""

    steps: int
    updates: int
    first_reward: float | None
    last_reward: float | None
    ending: Ending


def outcome(state: RunState, ending: Ending) -> Outcome:
    """The outcome of a run that ended in ``state``."""
    return Outcome(state.step, state.updates, state.first_reward, state.last_reward, ending)


def limit_reached(run: RunTable, state: RunState) -> Ending | None:
    """The limit of the config that a run in ``state`` has reached, checked between steps.

    ``"solved"`` and ``"exhausted"``: too many steps in a row had no group to train on; the reward says which.
    """
    if state.empty.steps >= run.max_empty_steps:
        return "solved" if _is_solved(state.empty, run.solved_reward) else "exhausted"
    if run.steps is not None and state.step >= run.steps:
        return "steps"
    if run.max_hours is not None and state.seconds >= run.max_hours * 3600:
        return "hours"
    return None


def exhausted(empty: EmptySteps, solved_reward: float) -> RolloutError:
    """The error of a run that has nothing to learn from, though its reward does not say that the task is solved."""
    mean = empty.mean_reward
    counted = ", ".join(f"{count} {reason}" for reason, count in empty.dropped.most_common())
    got = "no reward at all" if mean is None else f"a mean reward of {mean:.3f}"
    return RolloutError(
        f"{empty.steps} steps in a row had no group to train on ({counted}), with {got} where "
        f"run.solved_reward is {solved_reward:g}; the last checkpoint is saved"
        + "".join(f"\n  {reason}: {cause}" for reason, cause in empty.causes.items()),
        remedy="Look at samples/; make the task easier or the groups larger, loosen the filters, or set "
        "run.solved_reward to what counts as solved.",
    )


def _is_solved(empty: EmptySteps, solved_reward: float) -> bool:
    mean = empty.mean_reward
    return not empty.causes and not empty.dropped["stale"] and mean is not None and mean >= solved_reward - 1e-6
