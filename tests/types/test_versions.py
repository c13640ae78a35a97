"""Counting weight updates between version numbers of which some stand for none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from miles_core.types.versions import NONE_SKIPPED, SkippedVersions


@st.composite
def histories(draw: st.DrawFn) -> tuple[SkippedVersions, list[int]]:
    """Updates and resumes in any order: the skipped versions, and how many updates led to each version number."""
    skipped, updates = NONE_SKIPPED, [0]
    for resumed in draw(st.lists(st.integers(0, 3), max_size=12)):
        if resumed:  # engines had heard of so many versions that no checkpoint knows
            skipped = skipped.extended(len(updates), len(updates) + resumed)
            updates += [updates[-1]] * (resumed + 1)
        else:
            updates.append(updates[-1] + 1)
    return skipped, updates


@given(histories(), st.data())
def test_updates_are_counted_and_numbers_are_not(
    history: tuple[SkippedVersions, list[int]], data: st.DataObject
) -> None:
    skipped, updates = history
    newer = data.draw(st.integers(0, len(updates) - 1))
    older = data.draw(st.integers(0, newer))
    assert skipped.updates(older, newer) == updates[newer] - updates[older]


@given(histories(), st.data())
def test_the_oldest_version_is_the_last_that_so_many_updates_allow(
    history: tuple[SkippedVersions, list[int]], data: st.DataObject
) -> None:
    skipped, updates = history
    version = data.draw(st.integers(0, len(updates) - 1))
    allowed = data.draw(st.integers(0, 4))
    oldest = skipped.oldest(version, allowed)
    assert skipped.updates(oldest, version) <= allowed
    assert skipped.updates(oldest - 1, version) > allowed


def test_without_a_resume_numbers_are_updates() -> None:
    assert NONE_SKIPPED.updates(2, 5) == 3
    assert NONE_SKIPPED.oldest(5, 3) == 2


def test_versions_still_to_come_count_as_updates() -> None:
    skipped = SkippedVersions(((3, 6),))
    assert skipped.updates(2, 6) == 0
    assert skipped.updates(2, 8) == 2
    assert skipped.oldest(8, 1) == 7
    assert skipped.oldest(8, 2) == 2
