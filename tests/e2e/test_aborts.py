"""Updates that abort what runs cost no trajectory: each goes on under the next version."""

from __future__ import annotations

from itertools import pairwise

from miles_core.telemetry.episodes import read_episodes
from miles_core.types import Status

REWARD = "def by_length(trajectory): return float(sum(sample.loss_mask.sum() for sample in trajectory.samples) % 7)"


def test_with_generation_ahead_of_updates_that_abort_no_trajectory_is_lost(miles) -> None:
    (miles.folder / "by_length.py").write_text(REWARD)
    run = miles.train(
        sampling__max_new_tokens=200,
        rewards='[{use = "by_length:by_length"}]',
        warmup__steps=1,
        rollout__max_turns=1,
        rollout__max_context_tokens=256,
        rollout__max_response_tokens=200,
        engine__pause_mode="abort",
        rollout__max_staleness=2,
        rollout__max_steps_ahead=1,
        rollout__group_size=12,
        run__episodes_per_step=10_000,
        run__steps=6,
        run__max_empty_steps=20,
    )
    assert run.process.returncode == 0, run.output
    trajectories = [one for step in read_episodes(run.folder) for one in step.trajectories]
    assert {one.status for one in trajectories} <= {Status.COMPLETED, Status.TRUNCATED}
    assert len({one.id for one in trajectories}) == len(trajectories)
    assert len(trajectories) == 6 * 4 * 12
    assert {row["rollout/requeued"] for row in run.metrics} == {0}
    spans = [sample.versions for one in trajectories for sample in one.samples]
    inside = [1 for each in spans for one, other in pairwise(each) if one.end == other.start]
    assert inside, "some turns went on under another version"
    assert all(one.version < other.version for each in spans for one, other in pairwise(each) if one.end == other.start)
