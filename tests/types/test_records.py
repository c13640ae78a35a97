"""Records: files of older and newer versions load, and nothing in them runs code."""

from __future__ import annotations

import numpy as np
import pytest

from miles_core.lib.archive import dump_archive, load_archive
from miles_core.types import (
    Group,
    ImagePart,
    MediaSpan,
    Message,
    Reward,
    RoutingTrace,
    Sample,
    SamplingParams,
    Status,
    Task,
    TextPart,
    Trajectory,
    TurnRecord,
    VersionSpan,
)
from miles_core.types.records import from_record, to_record


def whole_group() -> Group:
    task = Task(
        "t",
        (Message("user", (TextPart("look"), ImagePart("a.png"))),),
        "7",
        ("a.png",),
        metadata={"k": [1, {"n": None}]},
    )
    reward = Reward(0.5, None, {"a": 1.0, "b": None})
    turn = TurnRecord(1, 3, SamplingParams(0.7, 5, (2,), 11), "stop", 0.1, 0.2, 1, 4, 0.5, {"path": "x"})
    sample = Sample(
        "t", "g", "x", "policy",
        np.int32([5, 6, 7]), np.uint8([0, 1, 1]), np.float32([0, -0.5, -1e-7]),
        (VersionSpan(3, 1, 2), VersionSpan(4, 2, 3)), (turn,), Status.TRUNCATED,
        RoutingTrace(np.uint8([[[1, 2]], [[0, 3]]]), (1,)),
        (MediaSpan("image", 0, 0, 1),), {"pixels": np.ones((1, 2), np.float32)}, reward,
    )  # fmt: skip
    trajectory = Trajectory(
        "x", task, task.messages, (sample,), Status.TRUNCATED, reward, (0.5,), "max_turns", None, {"n": 1}
    )
    return Group("g", 2, task, (trajectory,))


def test_a_group_comes_back_to_the_bit() -> None:
    before = whole_group()
    after = from_record(load_archive(dump_archive(to_record(before))), Group)
    assert (after.id, after.index, after.task) == (before.id, before.index, before.task)
    old, new = before.trajectories[0], after.trajectories[0]
    for name in ("id", "messages", "status", "reward", "step_rewards", "stop_reason", "error", "info"):
        assert getattr(old, name) == getattr(new, name)
    for name in ("tokens", "loss_mask", "logprobs"):
        a, b = getattr(old.samples[0], name), getattr(new.samples[0], name)
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()
    assert new.samples[0].turns == old.samples[0].turns
    assert new.samples[0].versions == old.samples[0].versions
    assert new.samples[0].media == old.samples[0].media
    assert np.array_equal(new.samples[0].media_tensors["pixels"], old.samples[0].media_tensors["pixels"])
    assert np.array_equal(new.samples[0].routing.experts, old.samples[0].routing.experts)
    assert new.samples[0].routing.layer_ids == (1,)


def test_fields_of_another_version_are_skipped_or_have_their_defaults() -> None:
    record = to_record(whole_group().trajectories[0])
    record["colour"] = "blue"
    del record["info"], record["stop_reason"]
    trajectory = from_record(record, Trajectory)
    assert (trajectory.info, trajectory.stop_reason) == ({}, "")


def test_a_record_without_a_needed_field_or_of_another_class_is_refused() -> None:
    record = to_record(whole_group())
    del record["task"]
    with pytest.raises(ValueError, match="record of Group is incomplete.*task"):
        from_record(record, Group)
    with pytest.raises(ValueError, match="must hold a Group; it holds a Task"):
        from_record(to_record(whole_group().task), Group)


def test_what_plugins_left_in_info_never_keeps_a_run_from_being_saved() -> None:
    class Board:
        def __repr__(self) -> str:
            return "<board>"

    record = to_record(Trajectory("x", whole_group().task, (), (), Status.FAILED, info={"board": Board(), 3: {1}}))
    assert load_archive(dump_archive(record))["info"] == {"board": "<board>", "3": [1]}


def test_an_unknown_class_is_plain_data() -> None:
    assert from_record({"$": "os.system", "command": "true"}, dict) == {"command": "true"}
