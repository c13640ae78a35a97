"""Metrics of one step's rollout, by the names that every tracker uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.types.versions import NONE_SKIPPED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.types import Group, Trajectory
    from miles_core.types.versions import SkippedVersions


def rollout_metrics(
    groups: Sequence[Group],
    kept: Sequence[Group],
    dropped: Mapping[str, int],
    *,
    version: int,
    skipped: SkippedVersions = NONE_SKIPPED,
) -> dict[str, float]:
    """What the step generated; ``version`` is the committed policy version that staleness is counted from.

    ``skipped`` versions count as no update.

    ``rollout/reward`` is over all scored trajectories, ``rollout/reward_kept`` over those that filters kept: the
    second alone hides progress.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    samples = [sample for trajectory in trajectories for sample in trajectory.samples]
    lengths = [sum(sample.trained_tokens for sample in t.samples) for t in trajectories if t.samples]
    metrics = {
        "rollout/reward": _mean([reward for group in groups for reward in group.rewards]),
        "rollout/reward_kept": _mean([reward for group in kept for reward in group.rewards]),
        "rollout/response_length_mean": _mean(lengths),
        "rollout/response_length_max": max(lengths, default=0),
        "rollout/repetition": _mean([repetition(sample.tokens[sample.loss_mask == 1].tolist()) for sample in samples]),
        "rollout/turns": _mean([trajectory.turns for trajectory in trajectories]),
        "rollout/env_retries": sum(turn.retries for sample in samples for turn in sample.turns),
        "rollout/groups_kept": len(kept),
        **{f"rollout/dropped/{reason}": count for reason, count in sorted(dropped.items())},
        **_truncated(trajectories),
        **_agent_rewards(trajectories),
    }
    lags = [skipped.updates(group.oldest_version, version) for group in kept if group.oldest_version is not None]
    metrics["rollout/staleness_mean"] = _mean(lags)
    metrics["rollout/staleness_max"] = max(lags, default=0)
    return {name: float(value) for name, value in metrics.items() if value is not None}


def repetition(tokens: Sequence[int], n: int = 4) -> float:
    """The share of n-grams that stood before in the same sequence: 0 for text that never repeats itself."""
    grams = [tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _truncated(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for trajectory in trajectories:
        if trajectory.status == "truncated":
            name = f"rollout/truncated/{trajectory.stop_reason}"
            counts[name] = counts.get(name, 0) + 1
    return counts


def _agent_rewards(trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    """Mean rewards of agents other than the main one, over the trajectories that may be trained."""
    rewards: dict[str, list[float]] = {}
    for trajectory in trajectories:
        if trajectory.status.trainable:
            for agent, reward in trajectory.agent_rewards.items():
                rewards.setdefault(agent, []).append(reward)
    return {f"rollout/agent_reward/{agent}": _mean(values) for agent, values in sorted(rewards.items())}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
