from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from miles_core.plugins.discovery import find_distributions

if TYPE_CHECKING:
    from pathlib import Path

ONE = {"miles.reward_models": {"exact": "good_mod:exact"}}


def _found(*folders):
    discovery = find_distributions([str(folder) for folder in folders])
    return {found.name: found.version for found in discovery.distributions}, discovery.problems


def test_reads_metadata_without_importing_the_plugin(site):
    site.module("good_mod", "raise RuntimeError('imported')")
    site.install("Good_Dist", "1.0", ONE)
    assert _found(site.folder) == ({"good-dist": "1.0"}, ())
    assert "good_mod" not in sys.modules


def test_ignores_distributions_that_offer_nothing_to_miles(site):
    site.install("other", "1.0", {"console_scripts": {"miles": "other:main"}})
    site.install("bare", "1.0", {})
    assert _found(site.folder) == ({}, ())


def test_a_stale_egg_info_first_on_the_path_does_not_hide_the_installed_plugin(site, tmp_path):
    source = type(site)(tmp_path / "src")
    source.install("edit", "1.0", {}, suffix="egg-info")
    site.install("edit", "2.0", ONE)
    found, problems = _found(source.folder, site.folder)
    assert found == {"edit": "2.0"}
    assert len(problems) == 1
    assert all(part in problems[0] for part in ("edit", "using 2.0", "ignoring 1.0", str(source.folder)))


def test_an_empty_left_over_folder_does_not_hide_the_new_version(site):
    (site.folder / "foo-1.0.dist-info").mkdir()
    site.install("foo", "2.0", ONE)
    found, problems = _found(site.folder)
    assert found == {"foo": "2.0"}
    assert "ignoring unknown" in problems[0]


def test_the_first_copy_on_the_path_wins_and_the_other_is_reported(site, tmp_path):
    late = type(site)(tmp_path / "late")
    site.install("foo", "1.0", ONE)
    late.install("foo", "2.0", ONE)
    found, problems = _found(site.folder, late.folder)
    assert found == {"foo": "1.0"}
    assert "ignoring 2.0" in problems[0]


def test_two_copies_in_one_folder_are_decided_by_version_not_by_directory_order(site):
    for version in ("1.10", "1.9", "1.2"):
        site.install("foo", version, ONE)
    assert _found(site.folder)[0] == {"foo": "1.10"}


def test_identical_copies_are_not_worth_a_word(site, tmp_path):
    source = type(site)(tmp_path / "src")
    source.install("foo", "1.0", ONE, suffix="egg-info")
    site.install("foo", "1.0", ONE)
    assert _found(source.folder, site.folder) == ({"foo": "1.0"}, ())


def test_a_mistyped_group_is_reported_with_the_nearest_one(site):
    site.install("foo", "1.0", {"miles.enviroments": {"maze": "maze:Maze"}})
    found, problems = _found(site.folder)
    assert found == {}
    assert "miles.environments" in problems[0]


def test_an_entry_without_a_name_is_a_problem_of_that_entry_only(site):
    site.install("foo", "1.0", {"miles.reward_models": {"": "m:f", "exact": "m:g"}})
    discovery = find_distributions([str(site.folder)])
    assert [entry.name for entry in discovery.distributions[0].entries] == ["exact"]
    assert "'m:f' without a name" in discovery.problems[0]


@pytest.mark.parametrize("text", [b"[miles.filters]\nno equals sign here\n", b"[miles.filters]\n\xff\xfe = a:b\n"])
def test_malformed_metadata_is_a_problem_and_never_an_exception(site, text: bytes):
    info: Path = site.install("broken", "1.0", {})
    (info / "entry_points.txt").write_bytes(text)
    site.install("good", "1.0", ONE)
    found, problems = _found(site.folder)
    assert found == {"good": "1.0"}
    assert "broken" in problems[0]
    assert "cannot be read" in problems[0]
