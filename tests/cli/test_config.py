from __future__ import annotations

import tomllib

import pytest

from miles_core.cli.main import main

CONFIG = """
[run]
steps = 3
[model]
path = "model"
[data]
use = "jsonl"
[rollout]
groups_per_step = 2
group_size = 4
max_context_tokens = 64
max_response_tokens = 16
[[environments]]
use = "lookup"
"""


@pytest.fixture
def run(capsys):
    def run(*argv):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


def test_show_prints_the_resolved_config_as_toml(run, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    code, out, err = run("config", "show", str(path), "--set", "run.steps=7", "--set", "data.path=x.jsonl")
    assert (code, err) == (0, "")
    document = tomllib.loads(out)
    assert document["run"]["steps"] == 7
    assert document["data"] == {"use": "jsonl", "path": "x.jsonl"}
    assert document["advantage"]["use"] == "grpo"


def test_show_of_a_wrong_config_fails_with_the_key(run, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(CONFIG.replace("steps", "stps"))
    code, out, err = run("config", "show", str(path))
    assert (code, out) == (1, "")
    assert "run.stps: unknown key; did you mean 'steps'?" in err


def test_reference_describes_every_table(run):
    code, out, _ = run("config", "reference")
    assert code == 0
    assert "[[environments]]" in out
    assert "run.steps" in out
