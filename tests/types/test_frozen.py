from __future__ import annotations

from collections import Counter, namedtuple
from dataclasses import dataclass, field

import numpy as np
import pytest

from miles_core.types.frozen import frozen


@dataclass(frozen=True, slots=True)
class Inner:
    numbers: list[int]


@dataclass(frozen=True)
class Outer:
    inner: Inner
    array: np.ndarray
    label: str = "x"

    def __post_init__(self) -> None:
        assert self.label == "x", "a copy is not built anew"


@dataclass
class Open:
    value: int = 1
    seen: list[int] = field(default_factory=list)


Pair = namedtuple("Pair", "left right")


def test_containers_become_read_only_and_the_originals_stay_as_they_are():
    given = {"a": [1, {"b": {2}}], "c": Counter(x=1)}
    made = frozen(given)
    assert made == {"a": (1, {"b": {2}}), "c": {"x": 1}}
    for change in (lambda: made.update(z=1), lambda: made["c"].clear(), lambda: made["a"][1].pop("b")):
        with pytest.raises(TypeError, match="read-only"):
            change()
    assert isinstance(made["a"][1]["b"], frozenset)
    assert given == {"a": [1, {"b": {2}}], "c": {"x": 1}}


def test_arrays_become_views_that_cannot_be_written_and_ours_still_can():
    array = np.zeros(3)
    view = frozen(array)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    array[0] = 2
    assert view.tolist() == [2, 0, 0]
    assert frozen(view) is view


def test_dataclasses_are_copied_only_where_something_in_them_has_to_be():
    outer = Outer(Inner([1]), np.zeros(2))
    made = frozen(outer)
    assert (type(made), made.inner.numbers, made.label) == (Outer, (1,), "x")
    assert not made.array.flags.writeable
    assert outer.inner.numbers == [1]
    assert outer.array.flags.writeable
    assert frozen(made) is made


def test_a_dataclass_that_is_not_frozen_is_copied_so_that_ours_cannot_change():
    given = Open()
    made = frozen(given)
    made.value = 7
    assert (given.value, made.seen) == (1, ())


def test_what_is_read_only_already_is_shared():
    for value in ("text", 1, None, (1, "a"), Pair(1, 2), frozen({"a": (1,)})):
        assert frozen(value) is value
    assert frozen(Pair([1], 2)) == Pair((1,), 2)
    assert type(frozen(Pair([1], 2))) is Pair


def test_other_objects_pass_as_they_are():
    error = ValueError("x")
    assert frozen([error])[0] is error
