"""Texts of what plugins raise and return: short, and always there."""

from __future__ import annotations

import json

import pytest

from miles_core.errors import MilesError
from miles_core.lib.error_text import LONGEST, error_text, place_of, value_text


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class Unshown:
    def __repr__(self) -> str:
        raise ValueError("no")


def test_it_is_type_and_message_and_the_type_alone_without_one() -> None:
    assert error_text(KeyError("x")) == "KeyError: 'x'"
    assert error_text(ValueError()) == "ValueError"


def test_the_remedy_of_an_error_inside_another_is_left_out() -> None:
    assert error_text(MilesError("expected a", remedy="Write a.")) == "MilesError: expected a"


def test_a_message_of_ten_megabytes_is_cut() -> None:
    assert len(error_text(ValueError("x" * 10_000_000))) <= LONGEST + len("ValueError: ")


def test_an_error_whose_text_cannot_be_made_still_has_one() -> None:
    assert error_text(Mute()) == "Mute (its text cannot be had: SystemExit)"


def test_a_value_is_shown_short_or_by_its_type() -> None:
    assert value_text([1, 2]) == "[1, 2]"
    assert len(value_text(list(range(1000)))) == 60
    assert value_text(Unshown()) == "a Unshown"


def test_the_place_of_an_error_is_the_innermost_code_of_neither_ours_nor_a_librarys() -> None:
    with pytest.raises(ValueError, match="Expecting") as raised:
        json.loads("{")
    assert place_of(raised.value) == f"{__file__}:{raised.value.__traceback__.tb_lineno}"  # type: ignore[union-attr]
    assert place_of(ValueError("never raised")) == ""
