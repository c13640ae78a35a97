"""``miles tito audit``: what is printed for recorded sessions, and the exit code."""

from __future__ import annotations

import io
import json
from pathlib import Path

import anyio
import numpy as np
import pytest

from miles_core.cli.main import main
from miles_core.session.record import session_record
from miles_core.session.session import TokenSession
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import FinishReason, GenerateRequest, Generation, Message, SamplingParams, VersionSpan

MODEL = Path(__file__).parents[2] / "examples" / "quickstart" / "model"
END = 2


class Says:
    """An engine that says ``b``."""

    async def generate(self, request: GenerateRequest) -> Generation:
        output = np.array([14, END], np.int32)
        spans = (VersionSpan(0, 0, 2),)
        return Generation(output, np.full(2, -1.0, np.float32), FinishReason("stop", matched=END), spans)


@pytest.fixture
def record() -> dict:
    """Two turns of the quickstart's model."""
    tokenizer = ChatTokenizer.load(MODEL)
    session = TokenSession(tokenizer, Says(), None, task_id="t", group_id="g", trajectory_id="x")

    async def play() -> None:
        messages = [Message("user", "value of c?")]
        for _ in range(2):
            turn = await session.generate(session.prepare(messages), SamplingParams())
            messages += [turn.message, Message("user", "next")]

    anyio.run(play)
    return session_record(session)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*argv, stdin=""):
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as caught:
            main(["tito", "audit", *argv, "--model", str(MODEL)])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


def spoiled(record: dict) -> dict:
    """The same with the close of the first turn written twice."""
    first, second = record["turns"]
    return {**record, "turns": [first, {**second, "context_ids": [END, *second["context_ids"]]}]}


def test_a_session_that_is_right_is_told_so(run, record) -> None:
    Path("session.json").write_text(json.dumps(record, indent=2))
    code, out, _ = run("session.json")
    assert (code, out.splitlines()[0]) == (0, "session.json: 2 turns, as the template writes it")


def test_a_bug_is_shown_with_both_texts_and_ends_with_one(run, record) -> None:
    code, out, _ = run("-", stdin=json.dumps(spoiled(record)))
    assert code == 1
    assert "special_tokens  1 (bug)" in out
    start = len(record["turns"][0]["context_ids"]) + 2
    assert f"turn 1, token {start}: stored '<|im_end|>', fresh ''" in out


def test_sessions_one_per_line_give_one_object_each(run, record) -> None:
    code, out, _ = run("-", "--json", stdin=f"{json.dumps(record)}\n\n{json.dumps(spoiled(record))}\n")
    reports = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [(each["session"], each["clean"]) for each in reports] == [("-, line 1", True), ("-, line 3", False)]
    assert reports[1]["counts"] == {"special_tokens": 1, "other_text": 0, "assistant_text": 0}
    assert reports[1]["differences"][0]["turn"] == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "- holds no session"),
        ("[]", "-: a session is a JSON object; got list"),
        ("{}", "-: this is no record of a session: 'turns' is missing"),
        ('{"turns": []}\n{', "-, line 2 is no JSON"),
        ('{"turns": [], "clock": "noon"}', "-: the clock of a session is an ISO time"),
    ],
)
def test_what_is_no_record_is_refused(run, text: str, problem: str) -> None:
    code, _, err = run("-", stdin=text)
    assert code == 1
    assert problem in err


def test_a_file_that_is_missing_is_named(run) -> None:
    code, _, err = run("gone.json")
    assert code == 1
    assert "cannot read gone.json" in err
