from __future__ import annotations

import tomllib

import pytest

from miles_core.cli.main import main


@pytest.fixture
def run(capsys):
    def run(*argv):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


def test_show_prints_the_resolved_config_as_toml(run, write_config):
    path = write_config()
    code, out, err = run("config", "show", str(path), "--set", "run.steps=7", "--set", "data.path=x.jsonl")
    assert (code, err) == (0, "")
    document = tomllib.loads(out)
    assert document["run"]["steps"] == 7
    assert document["data"] == {"use": "jsonl", "path": "x.jsonl", "timeout": 600.0}
    assert document["advantage"]["use"] == "grpo"


def test_show_of_a_wrong_config_fails_with_the_key(run, write_config):
    code, out, err = run("config", "show", str(write_config(("steps", "stps"))))
    assert (code, out) == (1, "")
    assert "run.stps: unknown key; did you mean 'steps'?" in err


def test_reference_describes_every_table(run):
    code, out, _ = run("config", "reference")
    assert code == 0
    assert "[[environments]]" in out
    assert "run.steps" in out
