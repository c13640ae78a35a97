"""``miles data check``: what a run would see, bad rows included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from miles_core.app.data_check import guess_use
from miles_core.cli.main import main
from miles_core.errors import ConfigError

ROOT = Path(__file__).parents[2]
CSV = "miles_plugins.sources.csv:Csv"
GOOD = {"id": "a", "prompt": "What is 1 + 1?", "label": 2, "metadata": {"level": "easy"}}


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*argv):
        with pytest.raises(SystemExit) as caught:
            main(["data", "check", *argv])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


def write(folder, *lines, name="tasks.jsonl"):
    (folder / name).write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))


def config(folder, **rollout):
    quickstart = ROOT / "examples" / "quickstart"
    text = (quickstart / "config.toml").read_text().replace('path = "model"', f'path = "{quickstart / "model"}"')
    for key, value in rollout.items():
        text = text.replace(f"{key} = 96", f"{key} = {value}")
    (folder / "run.toml").write_text(text)


def test_good_data_is_counted_described_and_rendered(run, tmp_path):
    write(tmp_path, GOOD, {"prompt": "x\ny", "environment": "chess"})
    code, out, err = run("tasks.jsonl")
    assert (code, err) == (0, "")
    assert out.startswith("tasks.jsonl (use = jsonl): 2 rows, 0 bad\n")
    assert "label         50.0 % of rows  integer" in out
    assert "prompt       100.0 % of rows  text" in out
    assert (
        'tasks.jsonl:1  id a\n  user         What is 1 + 1?\n  label        2\n  metadata     {"level": "easy"}' in out
    )
    assert "user         x\\ny\n  environment  chess" in out


def test_every_bad_row_is_named_and_the_check_goes_on(run, tmp_path):
    write(tmp_path, GOOD, "{", {"prompt": 5}, GOOD)
    code, out, _ = run("tasks.jsonl")
    assert code == 1
    assert "4 rows, 2 bad" in out
    assert "tasks.jsonl:2: not JSON" in out
    assert "tasks.jsonl:3: `prompt` must be text or a list of messages; got integer 5" in out
    assert "tasks.jsonl:4  id a" in out


def test_at_most_twenty_bad_rows_are_shown_and_all_are_counted(run, tmp_path):
    write(tmp_path, GOOD, *["{"] * 50)
    _, out, _ = run("tasks.jsonl")
    assert "51 rows, 50 bad" in out
    assert out.count("not JSON") == 20
    assert "and 30 more" in out


def test_files_are_checked_one_after_the_other_even_if_one_is_unreadable(run, tmp_path):
    write(tmp_path, GOOD)
    (tmp_path / "packed.jsonl").write_bytes(b"\x1f\x8b\x08")
    code, out, _ = run("packed.jsonl", "missing.jsonl", "tasks.jsonl")
    assert code == 1
    assert "packed.jsonl is gzip" in out
    assert "no data file" in out
    assert "tasks.jsonl (use = jsonl): 1 row, 0 bad" in out


def test_options_can_be_set_without_a_config(run, tmp_path):
    (tmp_path / "t.csv").write_text("question,answer\nq,1\n")
    settings = ["--set", "data.columns.prompt=question", "--set", "data.columns.label=answer"]
    code, out, _ = run("t.csv", "--use", CSV, *settings)
    assert code == 0
    assert "user         q\n  label        1" in out
    assert run("t.csv", "--use", CSV)[0] == 1


def test_a_config_gives_its_data_and_its_chat_template(run, tmp_path):
    config(tmp_path)
    write(tmp_path, {"prompt": "value of a?"}, {"prompt": "value of a? value of b?"})
    code, out, _ = run("--config", "run.toml", "--set", "data.max_prompt_tokens=19")
    assert code == 0
    assert out.startswith("[data] of run.toml (use = jsonl): 2 rows, 0 bad")
    assert "min 19, median 25, max 31" in out
    assert "1 exceed data.max_prompt_tokens = 19, and are left out" in out
    assert "0 leave no room in rollout.max_context_tokens = 96" in out


@pytest.mark.parametrize(("context", "without_room"), [(19, 1), (20, 0)])
def test_a_prompt_that_leaves_one_token_has_room(run, tmp_path, context, without_room):
    config(tmp_path, max_context_tokens=context)
    write(tmp_path, {"prompt": "value of a?"})
    _, out, _ = run("--config", "run.toml")
    assert f"{without_room} leave no room in rollout.max_context_tokens = {context}" in out


def test_a_file_stands_in_for_the_configs_path(run, tmp_path):
    config(tmp_path)
    write(tmp_path, GOOD, name="other.jsonl")
    code, out, _ = run("other.jsonl", "--config", "run.toml")
    assert code == 0
    assert out.startswith("other.jsonl (use = jsonl): 1 row, 0 bad")


def test_a_conversation_that_the_template_refuses_is_a_bad_row(run, tmp_path):
    config(tmp_path)
    write(tmp_path, {"messages": [{"role": "narrator", "content": "x"}]})
    template = "{% if messages[0].role == 'narrator' %}{{ raise_exception('no narrators') }}{% endif %}"
    model = tmp_path / "model"
    model.mkdir()
    for file in (ROOT / "examples" / "quickstart" / "model").iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    (model / "chat_template.jinja").write_text(template)
    code, out, _ = run("--config", "run.toml", "--set", "model.path=model")
    assert code == 1
    assert "tasks.jsonl:1: the chat template refuses a conversation of roles [narrator]: no narrators" in out


def test_nested_sources_are_checked_one_after_the_other(run, tmp_path):
    config(tmp_path)
    write(tmp_path, GOOD, name="a.jsonl")
    write(tmp_path, {"prompt": ""}, name="b.jsonl")
    text = (tmp_path / "run.toml").read_text().replace('use = "jsonl"\npath = "tasks.jsonl"', "SOURCES")
    tables = "".join(f'[[data.sources]]\nuse = "jsonl"\npath = "{name}.jsonl"\nweight = 1\n' for name in "ab")
    (tmp_path / "run.toml").write_text(
        text.replace("SOURCES", f'use = "miles_plugins.sources.mixture:Mixture"\n{tables}')
    )
    code, out, _ = run("--config", "run.toml")
    assert code == 1
    assert "2 rows, 1 bad" in out
    assert "b.jsonl:1: `prompt` must be text or a list of messages; got empty text" in out


SOURCE = """
from miles_core.api import DataError, Message, Task


class Two:
    def __init__(self, config, context):
        self.given = 0

    def take(self, count):
        self.given += 1
        if self.given == 3:
            raise DataError("the third is broken")
        return [(0, Task(str(self.given), (Message("user", "x"),)))]

    def state(self): return {}
    def restore(self, state): ...
    def metrics(self): return {}
"""


def test_a_source_that_cannot_be_inspected_gives_its_tasks(run, tmp_path, monkeypatch):
    config(tmp_path)
    (tmp_path / "two_tasks_of_the_data_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    text = (tmp_path / "run.toml").read_text().replace('path = "tasks.jsonl"\n', "")
    (tmp_path / "run.toml").write_text(text)
    code, out, _ = run("--config", "run.toml", "--set", "data.use=two_tasks_of_the_data_test:Two")
    assert code == 1
    assert "3 rows, 1 bad" in out
    assert "task 3: the third is broken" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "there is nothing to check"),
        (["notes.txt"], "the name notes.txt does not tell its format"),
        (["a.jsonl", "--set", "run.steps=3"], "only keys of data have a meaning without --config"),
        (["a.jsonl", "--set", "data.shufle=true"], "shufle"),
        (["a.jsonl", "--use", "jsnl"], "jsnl"),
    ],
)
def test_a_wrong_command_line_is_explained(run, argv, message):
    code, out, err = run(*argv)
    assert (code, out) == (1, "")
    assert message in err
    assert "->" in err


def test_the_suffix_tells_the_source(tmp_path):
    names = ["a.jsonl", "a.json", "a.ndjson", "a.csv", "a.parquet", "a.jsonl.gz", str(tmp_path), "mod:rows"]
    expected = ["jsonl", "jsonl", "jsonl", "csv", "parquet", "jsonl", "huggingface", "iterable"]
    assert [guess_use(name) for name in names] == expected
    with pytest.raises(ConfigError):
        guess_use("a.txt")


def test_a_check_without_a_config_starts_without_torch_and_transformers(tmp_path):
    write(tmp_path, GOOD)
    code = (
        "import sys\nfrom miles_core.cli.main import main\n"
        "try:\n    main(['data', 'check', sys.argv[1]])\nfinally:\n"
        "    print(sorted({'torch', 'transformers', 'pyarrow', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "tasks.jsonl")],
        capture_output=True, text=True, check=True, env={**os.environ},
    )  # fmt: skip
    assert done.stdout.endswith("[]\n")
