"""Which rewards are compared with each other."""

from __future__ import annotations

from dataclasses import replace

from miles_core.testing.builders import make_trajectory
from miles_core.train.batching import TrainStep, collect
from miles_core.types import Group, Reward, Trajectory


def acted(name: str, **rewards: float) -> Trajectory:
    made = make_trajectory(id=name, reward=0.0)
    samples = tuple(replace(made.samples[0], agent_id=agent, reward=Reward(value)) for agent, value in rewards.items())
    return replace(made, samples=samples)


def test_each_agent_of_a_task_is_compared_with_itself_alone() -> None:
    groups = [[acted("a", policy=1.0, helper=5.0), acted("b", policy=0.0, helper=7.0)], [acted("c", policy=2.0)]]
    made = [Group(str(i), i, group[0].task, tuple(group)) for i, group in enumerate(groups)]
    _, batch = collect(TrainStep(0, tuple(made), 1000, 1e-3))
    assert batch.rewards.tolist() == [1.0, 5.0, 0.0, 7.0, 2.0]
    assert batch.group_index.tolist() == [0, 1, 0, 1, 2]
    assert batch.trajectory_index.tolist() == [0, 1, 2, 3, 4]


def test_the_samples_of_one_agents_trajectory_count_as_one() -> None:
    trajectory = acted("a", policy=1.0)
    split = replace(trajectory, samples=trajectory.samples * 2)
    _, batch = collect(TrainStep(0, (Group("g", 0, split.task, (split, acted("b", policy=0.0))),), 1000, 1e-3))
    assert batch.trajectory_index.tolist() == [0, 0, 1]
    assert batch.group_index.tolist() == [0, 0, 0]
