"""Samples check their own layout."""

from __future__ import annotations

import numpy as np
import pytest

from miles_core.errors import CheckpointError
from miles_core.types import (
    ImagePart,
    MediaSpan,
    Message,
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


def make(**changes):
    fields = {
        "task_id": "t",
        "group_id": "g",
        "trajectory_id": "x",
        "agent_id": "p",
        "tokens": np.arange(8, dtype=np.int32),
        "loss_mask": np.array([0, 0, 1, 1, 0, 0, 0, 1], np.uint8),
        "logprobs": np.zeros(8, np.float32),
        "versions": (VersionSpan(3, 2, 4), VersionSpan(4, 7, 8)),
        "turns": (),
        "status": Status.COMPLETED,
    }
    return Sample(**(fields | changes))


def test_the_oldest_and_the_newest_version_among_trained_tokens_are_told() -> None:
    assert make().oldest_version == 3
    assert make().newest_version == 4
    assert make().trained_tokens == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logprobs": np.zeros(7, np.float32)}, "logprobs has length 7, tokens have 8"),
        ({"loss_mask": np.zeros(9, np.uint8)}, "loss_mask has length 9"),
        ({"versions": (VersionSpan(3, 2, 4),)}, "exactly the trained tokens, 3; they cover 2 and differ at token 7"),
        ({"versions": (VersionSpan(3, 2, 5),)}, "they cover 3 and differ at token 4"),
        ({"versions": (VersionSpan(3, 2, 4), VersionSpan(4, 3, 4))}, "VersionSpan.*start=3, end=4.* overlaps"),
        ({"loss_mask": np.array([1, 0, 1, 0, 0, 0, 0, 1], np.uint8)}, "token 0 has no logprob"),
        ({"loss_mask": np.array([0, 0, 2, 0, 0, 0, 0, 1], np.uint8)}, "differ at token 2"),
        ({"versions": (VersionSpan(3, 6, 9),)}, "leaves the 8 tokens"),
        ({"media": (MediaSpan("image", 0, 4, 12),)}, "leaves the 8 tokens"),
        ({"routing": RoutingTrace(np.zeros((8, 1, 2), np.uint8), (0,))}, "8 tokens need 7 routing rows; got 8"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_numbers(changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_a_sample_is_frozen_down_to_its_arrays() -> None:
    with pytest.raises(ValueError, match="read-only"):
        make().tokens[0] = 9


def test_an_empty_sample_is_possible() -> None:
    empty = np.zeros(0)
    sample = make(
        tokens=empty.astype(np.int32), loss_mask=empty.astype(np.uint8), logprobs=empty.astype(np.float32), versions=()
    )
    assert (sample.trained_tokens, sample.oldest_version, sample.newest_version) == (0, None, None)


def test_messages_travel_to_chat_form_and_back() -> None:
    message = Message(
        "assistant",
        (TextPart("look"), ImagePart("a.png")),
        tool_calls=({"id": "1", "function": {"name": "f"}},),
        extra={"reasoning": "hm"},
    )
    assert Message.from_chat(message.to_chat()) == message
    assert message.text == "look"


@pytest.mark.parametrize(
    "chat", [{"content": "x"}, {"role": "user", "content": 3}, {"role": "user", "content": [{"type": "?"}]}]
)
def test_malformed_messages_are_refused(chat) -> None:
    with pytest.raises(ValueError, match="expected|needs|must be|is"):
        Message.from_chat(chat)


def test_our_errors_survive_pickling_with_their_remedy() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(CheckpointError("full", remedy="Free space.")))
    assert isinstance(error, CheckpointError)
    assert (error.message, error.remedy) == ("full", "Free space.")


def test_the_turns_of_a_trajectory_are_those_of_all_its_conversations_and_shared_ones_count_once() -> None:
    def turn(start: int, end: int, seconds: float) -> TurnRecord:
        return TurnRecord(start, end, SamplingParams(), "stop", generate_seconds=seconds)

    shared = turn(2, 4, 0.1)
    task = Task("t", (Message("user", "?"),))
    samples = (
        make(turns=(shared, turn(7, 8, 0.2))),
        make(turns=(shared, turn(7, 8, 0.3))),
        make(turns=(shared,), agent_id="critic"),
    )
    said = (*task.messages, Message("assistant", "a"))
    assert Trajectory("x", task, said, samples, Status.COMPLETED).turns == 4
    assert Trajectory("x", task, said, (), Status.FAILED).turns == 1
