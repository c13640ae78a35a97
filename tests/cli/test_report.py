"""``miles report`` on a run's folder, with the run's own tokenizer."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from base64 import b64decode
from pathlib import Path

import cyclopts
import pytest

from miles_core.cli.report import report
from miles_core.errors import CheckpointError, DataError
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.telemetry.episodes import write_episodes
from miles_core.types import Sample, Status, Task, Trajectory

MODEL = Path(__file__).parents[2] / "examples" / "quickstart" / "model"


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """A run below runs/ with one episode that reads "get c" in the quickstart's tokens."""
    import numpy as np

    folder = tmp_path / "runs" / "toy"
    shutil.copytree(MODEL, folder / "checkpoints" / "step-0")
    (folder / "config.toml").write_text("[run]\nsteps = 1\n")
    (folder / "metrics.jsonl").write_text('{"step": 1, "rollout/reward": 0.5}\n')
    tokens = np.array(ChatTokenizer.load(MODEL).encode("get c"), np.int32)
    zeros = np.zeros(len(tokens), np.float32)
    sample = Sample("t", "g", "a", "policy", tokens, zeros.astype(np.uint8), zeros, (), (), Status.FAILED)
    write_episodes(folder / "episodes", 1, [Trajectory("a", Task("t", ()), (), (sample,), Status.FAILED)], (), 0)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def miles():
    app = cyclopts.App()
    app.command(report)
    return lambda *argv: app(["report", *argv], result_action="return_value", exit_on_error=False)


def vocabulary(page):
    block = re.search(r'id="vocabulary">([^<]*)<', page.read_text("utf-8"))[1]
    return json.loads(gzip.decompress(b64decode(block)))["texts"].values()


def test_it_writes_the_page_into_the_run_s_folder_and_prints_its_path(run_dir, miles, capsys):
    miles("latest")
    assert capsys.readouterr().out == f"{run_dir / 'report.html'}\n"
    assert set("get c") <= set("".join(vocabulary(run_dir / "report.html")))


def test_output_and_open_are_what_they_say(run_dir, miles, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    miles("toy", "--output", "page.html", "--open")
    assert opened == [(tmp_path / "page.html").as_uri()]
    assert (tmp_path / "page.html").is_file()
    assert not (run_dir / "report.html").exists()


def test_without_a_tokenizer_tokens_are_ids_and_the_page_says_so(run_dir, miles):
    shutil.rmtree(run_dir / "checkpoints")
    miles(str(run_dir))
    page = run_dir / "report.html"
    assert "tokens are shown as ids" in page.read_text("utf-8")
    assert list(vocabulary(page)) == []


def test_a_folder_that_is_no_run_and_a_file_that_cannot_be_written_are_clear_errors(run_dir, miles, tmp_path):
    with pytest.raises(DataError, match="recent runs in runs/: toy"):
        miles("typo")
    with pytest.raises(CheckpointError, match="--output"):
        miles("toy", "--output", str(tmp_path / "nowhere" / "page.html"))
