"""Files of episodes: what is written comes back, whole files only, and damage is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from miles_core.errors import DataError
from miles_core.telemetry.episodes import read_episodes, write_episodes
from miles_core.types import (
    Message,
    Reward,
    RoutingTrace,
    Sample,
    SamplingParams,
    Status,
    Task,
    Trajectory,
    TurnRecord,
    VersionSpan,
)


def trajectory(name: str, tokens: int = 3, **changes: object) -> Trajectory:
    """One sample of two prompt tokens and ``tokens`` generated ones."""
    length = 2 + tokens
    sample = Sample(
        task_id="t", group_id="g", trajectory_id=name, agent_id="policy",
        tokens=np.arange(length, dtype=np.int32),
        loss_mask=np.array([0, 0, *[1] * tokens], np.uint8),
        logprobs=np.linspace(-1, 0, length, dtype=np.float32),
        versions=(VersionSpan(5, 2, length),) if tokens else (),
        turns=(TurnRecord(2, length, SamplingParams(sampling_seed=2**62), "stop", info={"of": Status.FAILED}),),
        status=Status.COMPLETED,
        routing=RoutingTrace(np.zeros((length - 1, 2, 2), np.uint8), (0, 1)),
        media_tensors={"pixels": np.zeros((4, 4), np.float32)},
    )  # fmt: skip
    task = Task("t", (Message("user", "q"),), metadata={"lone surrogate": "\ud800", "nested": [1, {"a": (2,)}]})
    made = Trajectory(name, task, (*task.messages, Message("assistant", "a")), (sample,), Status.COMPLETED, Reward(0.5))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_episodes_come_back_without_the_tensors_that_nobody_reads(tmp_path):
    empty = trajectory("none", samples=(), status=Status.FAILED, reward=None, error="no engine")
    written = [trajectory("a"), empty, trajectory("b", tokens=0), trajectory("c", tokens=7)]
    write_episodes(tmp_path / "episodes", 4, written, {"a", "c", "of another step"}, version=3)
    (step,) = read_episodes(tmp_path)
    assert (step.step, step.version, step.kept) == (4, 3, {"a", "c"})
    assert [t.id for t in step.trajectories] == ["a", "none", "b", "c"]
    assert step.trajectories[1].error == "no engine"
    assert step.trajectories[1].status is Status.FAILED
    for before, after in zip(written, step.trajectories, strict=True):
        assert (after.task, after.messages, after.reward) == (before.task, before.messages, before.reward)
        for old, new in zip(before.samples, after.samples, strict=True):
            for name in ("tokens", "loss_mask", "logprobs"):
                np.testing.assert_array_equal(getattr(old, name), getattr(new, name))
                assert getattr(old, name).dtype == getattr(new, name).dtype
            assert (new.versions, new.turns[0].sampling) == (old.versions, old.turns[0].sampling)
            assert (new.routing, new.media_tensors) == (None, {})
    assert step.trajectories[0].samples[0].turns[0].info == {"of": "failed"}


def test_steps_come_in_their_order_and_a_step_written_again_replaces_the_first(tmp_path):
    for step, name in ((10, "ten"), (9, "nine"), (10, "ten again"), (1, "one")):
        write_episodes(tmp_path / "episodes", step, [trajectory(name)], (), version=0)
    assert [(s.step, s.trajectories[0].id) for s in read_episodes(tmp_path)] == [
        (1, "one"), (9, "nine"), (10, "ten again"),
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "episodes").iterdir()) == [
        "step-1.npz", "step-10.npz", "step-9.npz",
    ]  # fmt: skip


def test_a_step_without_trajectories_and_a_run_without_episodes_are_fine(tmp_path):
    assert list(read_episodes(tmp_path)) == []
    write_episodes(tmp_path / "episodes", 1, [], (), version=0)
    assert [step.trajectories for step in read_episodes(tmp_path)] == [()]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = write_episodes(tmp_path / "episodes", 1, [trajectory("old")], (), version=0)

    def full(self, data):
        self.open("wb").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        write_episodes(tmp_path / "episodes", 1, [trajectory("new")], (), version=0)
    assert [path.name for path in (tmp_path / "episodes").iterdir()] == ["step-1.npz"]
    assert next(read_episodes(tmp_path)).trajectories[0].id == "old"


@pytest.mark.parametrize("damage", ["cut", "other"])
def test_a_damaged_file_is_named_and_the_others_can_still_be_read(tmp_path, damage):
    for step in (1, 2, 3):
        path = write_episodes(tmp_path / "episodes", step, [trajectory("x")], (), version=0)
    whole = path.with_name("step-2.npz").read_bytes()
    path.with_name("step-2.npz").write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"not a zip")
    with pytest.raises(DataError, match=r"step-2\.npz"):
        list(read_episodes(tmp_path))
    skipped = []
    assert [step.step for step in read_episodes(tmp_path, skipped=skipped.append)] == [1, 3]
    assert len(skipped) == 1
    assert "step-2.npz" in skipped[0]
