from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from miles_core import __version__
from miles_core.plugins.installed.discovery import find_distributions

if TYPE_CHECKING:
    from pathlib import Path

ONE = {"miles.reward_models": {"exact": "good_mod:exact"}}


def _found(*folders):
    discovery = find_distributions([str(folder) for folder in folders])
    problems = tuple(str(problem) for problem in discovery.problems)
    return {found.name: found.version for found in discovery.distributions}, problems


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
    assert "'m:f' without a name" in str(discovery.problems[0])


@pytest.mark.parametrize(
    "text",
    [
        b"[miles.filters]\nno equals sign here\n",
        b"[miles.filters]\n\xff\xfe = a:b\n",
        b"# not ours, but libraries that read all entry points fail\n[console_scripts]\njunk\n",
    ],
)
def test_malformed_metadata_is_a_problem_and_never_an_exception(site, text: bytes):
    info: Path = site.install("broken", "1.0", {})
    (info / "entry_points.txt").write_bytes(text)
    site.install("good", "1.0", ONE)
    found, problems = _found(site.folder)
    assert found == {"good": "1.0"}
    assert "broken" in problems[0]
    assert "cannot be read" in problems[0]


def test_spellings_of_one_name_are_one_distribution(site, tmp_path):
    late = type(site)(tmp_path / "late")
    site.install("Acme_Kit", "1.0", ONE)
    late.install("acme.kit", "2.0", ONE)
    found, problems = _found(site.folder, late.folder)
    assert found == {"acme-kit": "1.0"}
    assert "ignoring 2.0" in problems[0]


def test_metadata_that_is_missing_is_reported_and_the_plugin_stays(site):
    (site.install("bare", "1.0", ONE) / "METADATA").unlink()
    found, problems = _found(site.folder)
    assert found == {"bare": "unknown"}
    assert "bare in" in problems[0]
    assert "METADATA is missing" in problems[0]


def test_metadata_that_is_not_text_is_reported_and_the_plugin_stays(site):
    (site.install("junk", "1.0", ONE) / "METADATA").write_bytes(b"\x00\xff\xfeName: other\n")
    found, problems = _found(site.folder)
    assert found == {"junk": "unknown"}
    assert len(problems) == 1


@pytest.mark.parametrize("value", ["", "no_attribute", "a:b:c", "a b", "m:f extra"])
def test_a_target_that_is_none_is_a_problem_and_still_listed(site, value):
    info = site.install("foo", "1.0", {})
    (info / "entry_points.txt").write_text(f"[miles.filters]\nodd = {value}\n")
    discovery = find_distributions([str(site.folder)])
    assert [entry.name for entry in discovery.distributions[0].entries] == ["odd"]
    assert "which is not module:attribute" in str(discovery.problems[0])


def test_a_line_that_stands_twice_counts_once(site):
    info = site.install("foo", "1.0", {})
    (info / "entry_points.txt").write_text("[miles.filters]\na = m:f\na = m:f\na = m:g\n")
    entries = find_distributions([str(site.folder)]).distributions[0].entries
    assert [(entry.name, entry.value) for entry in entries] == [("a", "m:f"), ("a", "m:g")]


def test_an_editable_install_wins_over_an_earlier_build_in_its_own_source(site, tmp_path):
    project = tmp_path / "project with space"
    source = type(site)(project / "src")
    source.install("edit", "1.0", {"miles.filters": {"old": "m:f"}}, suffix="egg-info")
    info = site.install("edit", "2.0", ONE)
    (info / "direct_url.json").write_text(json.dumps({"url": project.as_uri(), "dir_info": {"editable": True}}))
    found, problems = _found(source.folder, site.folder)
    assert found == {"edit": "2.0"}
    assert "ignoring 1.0" in problems[0]


@pytest.mark.parametrize("text", ["", "[]", "null", '{"url": 3}', '{"url": "file:///x", "dir_info": {}}', "\xff"])
def test_an_odd_direct_url_is_no_editable_install(site, text):
    (site.install("foo", "1.0", ONE) / "direct_url.json").write_text(text)
    assert find_distributions([str(site.folder)]).distributions[0].editable is None


def test_a_stranger_that_calls_itself_miles_hub_does_not_replace_the_running_one(site):
    site.install("Miles.Hub", "9.0", {"miles.losses": {"ppo_clip": "evil:Loss"}})
    discovery = find_distributions([str(site.folder), *sys.path])
    (own,) = [found for found in discovery.distributions if found.name == "miles-hub"]
    assert own.version == __version__
    assert ("grpo", "miles_plugins.advantages.grpo:Grpo") in [(entry.name, entry.value) for entry in own.entries]
    assert [str(problem) for problem in discovery.problems if str(site.folder) in problem.text]
    assert find_distributions([str(site.folder)]).distributions == ()


def test_facts_for_a_person_come_from_the_metadata(site):
    info = site.install("foo", "1.0", ONE)
    (info / "METADATA").write_text(
        "Name: foo\nVersion: 1.0\nSummary: Does it.\nProject-URL: Issues, https://i.example\n"
        "Project-URL: Documentation, https://d.example\n\nVersion: 7 is only in the description\n"
    )
    facts = find_distributions([str(site.folder)]).distributions[0].facts
    assert (facts.version, facts.summary, facts.url) == ("1.0", "Does it.", "https://d.example")


def test_any_installed_distribution_has_a_version(site):
    site.install("plain", "1.5", {})
    site.install("foo", "1.0", ONE)
    discovery = find_distributions([str(site.folder)])
    assert [discovery.version_of(name) for name in ("plain", "foo", "absent")] == ["1.5", "1.0", None]
