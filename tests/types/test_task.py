"""A task is shared by all trajectories in all epochs, so nobody can change it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from miles_core.types import Message, Task
from miles_core.types.frozen import FrozenDict, frozen


def task() -> Task:
    return Task("t", (Message("user", "hi"),), metadata={"a": 1, "board": [[1, 2], {"x": [3]}], "seen": {4}})


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.__setitem__("a", 2),
        lambda m: m.__delitem__("a"),
        lambda m: m.__ior__({"a": 2}),
        lambda m: m.update(a=2),
        lambda m: m.setdefault("b", 2),
        lambda m: m.pop("a"),
        lambda m: m.popitem(),
        lambda m: m.clear(),
        lambda m: m["board"][1].update(x=1),
    ],
)
def test_metadata_refuses_every_change_and_says_what_to_do(change: Callable[[Any], object]) -> None:
    shared = task()
    with pytest.raises(TypeError, match="read-only; change a copy"):
        change(shared.metadata)
    assert shared == task()


def test_lists_and_sets_inside_are_read_only_too_and_the_rest_stays() -> None:
    assert task().metadata == {"a": 1, "board": ((1, 2), {"x": (3,)}), "seen": frozenset({4})}


def test_the_source_s_own_mapping_may_change_without_the_task() -> None:
    mine: dict[str, Any] = {"inner": {"a": 1}}
    shared = Task("t", (), metadata=mine)
    mine["inner"]["a"] = 2
    assert shared.metadata == {"inner": {"a": 1}}


@pytest.mark.parametrize("again", [lambda t: pickle.loads(pickle.dumps(t)), copy.deepcopy])
def test_a_task_travels_to_another_process_and_stays_read_only(again: Callable[[Task], Task]) -> None:
    there = again(task())
    assert there == task()
    with pytest.raises(TypeError):
        there.metadata["board"][1]["x"] = 1


def test_metadata_is_a_dict_to_json_and_a_copy_of_it_may_change() -> None:
    metadata = frozen({"a": {"b": [1]}})
    assert json.loads(json.dumps(metadata)) == {"a": {"b": [1]}}
    assert {**metadata, "c": 2} == {"a": {"b": (1,)}, "c": 2}
    assert isinstance(metadata["a"], FrozenDict)
