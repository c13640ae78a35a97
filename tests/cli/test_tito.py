"""``miles tito``: the next prompt of each line, and the proof of a template."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from miles_core.cli.main import main

MODEL = Path(__file__).parents[2] / "examples" / "quickstart" / "model"
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
ROW = {
    "template": "chat.jinja",
    "messages": [{"role": "user", "content": "Hi"}],
    "generated": "four</s>",
    "stop": "</s>",
    "appended": [{"role": "user", "content": "Next?"}],
}
PROMPT = "<|start|>user\nHi</s>\n<|start|>assistant\nfour</s>\n<|start|>user\nNext?</s>\n<|start|>assistant\n"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.jinja").write_text(CHAT)

    def run(*argv):
        with pytest.raises(SystemExit) as caught:
            main(["tito", *argv])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


def answers(run, *rows, code=0):
    Path("rows.jsonl").write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    came, out, err = run("next", "rows.jsonl")
    assert came == code, err
    return [json.loads(line) for line in out.splitlines()], err


def test_each_line_is_answered_in_order(run):
    inline = {**ROW, "template": CHAT, "generated": "five</s>"}
    refused = {**ROW, "template": "{{ messages[0].content }}"}
    found, _ = answers(run, ROW, "", inline, refused)
    assert found[0] == {"prompt": PROMPT}
    assert found[1] == {"prompt": PROMPT.replace("four", "five")}
    assert "shows the assistant's turn 0 times" in found[2]["refused"]


def test_lines_come_from_standard_input_too(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(ROW) + "\n"))
    code, out, _ = run("next", "-")
    assert (code, json.loads(out)) == (0, {"prompt": PROMPT})


def test_arguments_and_clock_reach_the_template(run):
    dated = CHAT.replace("{{ bos_token }}", "{{ bos_token }}{{ strftime_now('%Y') }} {{ mood }} ")
    row = {**ROW, "template": dated, "template_kwargs": {"bos_token": "<s>", "mood": "calm"}}
    named = {**row, "template_kwargs": {**row["template_kwargs"], "now": "2024-01-01T00:00:00"}}
    found, _ = answers(run, {**row, "clock": "2025-07-10T12:00:00"}, named)
    assert [each["prompt"][:13] for each in found] == ["<s>2025 calm ", "<s>2024 calm "]


def test_a_stop_that_is_not_in_the_text_is_added_to_it(run):
    assert answers(run, {**ROW, "generated": "four"})[0] == [{"prompt": PROMPT}]


def test_a_cut_turn_needs_the_end_token_that_the_template_writes(run):
    cut = {**ROW, "generated": "fo", "stop": None}
    found, _ = answers(run, cut, {**cut, "template_kwargs": {"eos_token": "</s>"}})
    assert "eos_token" in found[0]["refused"]
    assert found[1]["prompt"] == PROMPT.replace("four", "fo")


def test_a_model_with_a_tokenizer_gives_ids(run):
    row = {**ROW, "model": str(MODEL), "generated": "four<|im_end|>", "stop": "<|im_end|>"}
    del row["template"]
    (found,), _ = answers(run, row)
    from miles_core.session.tokenizer import ChatTokenizer

    assert ChatTokenizer.load(MODEL).decode(found["ids"]) == found["prompt"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 2: it is no JSON"),
        ("[]", "line 2: expected a JSON object; got list"),
        ({**ROW, "model": "x"}, "line 2: expected either 'template' or 'model'"),
        ({**ROW, "appended": None}, "line 2: 'appended' is missing"),
        ({**ROW, "generated": 3}, "line 2: 'generated' must be a text; got int"),
        ({**ROW, "messages": [{"content": "x"}]}, "line 2: message 0 of 'messages' has no text 'role'"),
        ({**ROW, "clock": "noon"}, "line 2: the clock 'noon' is no ISO time"),
        ({**ROW, "template": "gone.jinja"}, "line 2: there is no template 'gone.jinja'"),
    ],
)
def test_a_malformed_line_is_named_after_the_answers_before_it(run, line, reason):
    found, err = answers(run, ROW, line, code=1)
    assert found == [{"prompt": PROMPT}]
    assert reason in err


def test_check_prints_the_proof(run):
    code, out, _ = run("check", "chat.jinja", "--set", "eos_token=</s>")
    assert code == 0
    assert "chat.jinja: can be continued token by token" in out
    assert "close, next header  '</s>\\n<|start|>user\\n'" in out


def test_check_of_a_model_knows_its_stop_tokens(run):
    code, out, _ = run("check", str(MODEL), "--json")
    found = json.loads(out)
    assert (code, found["stops"], found["token_difference"]) == (0, ["<|im_end|>"], None)
    assert [each["roles"] for each in found["appends"] if each["allowed"]][:2] == [["user"], ["tool"]]


def test_check_exits_with_one_if_nothing_can_be_appended(run, tmp_path):
    (tmp_path / "first.jinja").write_text("{{ messages[0].content }}")
    code, out, _ = run("check", "first.jinja")
    assert code == 1
    assert "append user         no: " in out
