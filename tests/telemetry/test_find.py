"""What a person types finds the folder of a run, or an error that helps."""

from __future__ import annotations

import os

import pytest

from miles_core.errors import DataError
from miles_core.telemetry.find import find_run


@pytest.fixture
def runs(tmp_path):
    """Three runs, ``b`` started last, and a folder that is no run."""
    for age, name in ((30, "a"), (10, "b"), (20, "c")):
        config = tmp_path / "runs" / name / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text("")
        (config.parent / "plugins.json").write_text("[]")
        then = config.stat().st_mtime - age
        os.utime(config, (then, then))
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


@pytest.mark.parametrize(("reference", "name"), [("a", "a"), ("latest", "b")])
def test_an_id_and_latest_are_found_below_runs(runs, reference, name):
    assert find_run(reference, runs) == runs / name


def test_a_path_is_found_wherever_it_lies(runs, tmp_path):
    assert find_run(str(runs / "c"), tmp_path / "nowhere") == runs / "c"


@pytest.mark.parametrize(("reference", "problem"), [("typo", "there is no such folder"), ("notes", "no config.toml")])
def test_what_is_no_run_is_an_error_that_lists_recent_ones(runs, reference, problem):
    with pytest.raises(DataError) as caught:
        find_run(reference, runs)
    assert problem in str(caught.value)
    assert f"recent runs in {runs}/: b, c, a" in str(caught.value)
    assert "`latest`" in str(caught.value)


def test_without_any_run_the_error_says_where_it_looked(tmp_path):
    with pytest.raises(DataError, match="there is no run in"):
        find_run("latest", tmp_path / "runs")
    with pytest.raises(DataError, match="there are no runs in"):
        find_run("x", tmp_path / "runs")
