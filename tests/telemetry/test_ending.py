"""How a run ended stays in its folder, until the run goes on."""

from __future__ import annotations

import os

import pytest

from miles_core.telemetry.ending import Ending, read_ending, write_ending


def test_an_ending_comes_back(tmp_path):
    assert read_ending(tmp_path) is None
    ending = Ending("failed", "the engine-0 process died (signal SIGKILL)\n  -> read the log")
    write_ending(tmp_path, ending)
    assert read_ending(tmp_path) == ending


def test_a_run_that_was_resumed_has_no_ending_until_it_ends_again(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    write_ending(tmp_path, Ending("interrupted"))
    assert read_ending(tmp_path) == Ending("interrupted")
    later = (tmp_path / "ending.json").stat().st_mtime_ns + 1_000_000_000
    os.utime(tmp_path / "metrics.jsonl", ns=(later, later))
    assert read_ending(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"kind":'])
def test_a_file_that_cannot_be_read_counts_as_none(tmp_path, text):
    (tmp_path / "ending.json").write_text(text)
    assert read_ending(tmp_path) is None
