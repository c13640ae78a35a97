"""The agent's example: an unmodified OpenAI SDK is trained, and its reward cannot be had without the tools."""

from __future__ import annotations

import json
import runpy

import pytest

from miles_core.app.session_server import serve_sessions
from miles_core.config.serving import SessionTable
from miles_core.session.parsing.derive import derive_parser
from miles_core.session.served import ClientSession
from miles_core.session.session import TokenSession
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.testing.scripted_engine import ScriptedEngine
from miles_core.testing.session import LoopbackClient
from miles_core.types import Message, Task

from .conftest import ROOT

EXAMPLE = ROOT / "examples" / "agent_tools"
CALL = '<tool_call>\n{{"name": "{}", "arguments": {{{}}}}}\n</tool_call>'
GET_C, GET_D = CALL.format("get", '"key": "c"'), CALL.format("get", '"key": "d"')
ADD_1_3 = CALL.format("add", '"a": 1, "b": 3')


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("asked", "label", "turns", "reward"),
    [
        pytest.param("c?", "8", [GET_C, "8"], 1.0, id="the value that the tool said"),
        pytest.param("1+3?", "4", [ADD_1_3, "4"], 1.0, id="the sum that the tool said"),
        pytest.param("c?", "8", ["8"], 0.0, id="a guess without a call"),
        pytest.param("c?", "8", [ADD_1_3, "8"], 0.0, id="a guess after a call for something else"),
        pytest.param("c?", "8", [GET_C, "0"], 0.0, id="another answer than the tool's"),
        pytest.param("c?", "8", [GET_D], 0.0, id="another key, which ends the episode"),
        pytest.param("1+3?", "4", [CALL.format("add", '"a": 1')], 0.0, id="half the arguments, which end the episode"),
        pytest.param("c?", "8", [GET_C, GET_C, GET_C], 0.0, id="calls without end"),
    ],
)
async def test_only_an_answer_that_a_tool_said_is_rewarded(asked, label, turns, reward) -> None:
    chat = ChatTokenizer.load(EXAMPLE / "model")
    agent = runpy.run_path(str(EXAMPLE / "agent.py"))["ToolUser"](None, None)
    task = Task("t", (Message("user", asked),), label=label)
    with ScriptedEngine(*turns, tokenizer=chat) as engine:
        client = LoopbackClient(engine, chat.vocab_size)
        parser = derive_parser(chat.deriver(tools=True).text)
        names = {"task_id": "t", "group_id": "g", "trajectory_id": "x"}
        session = ClientSession(
            TokenSession(chat, client, None, parser=parser, **names), context_length=200, max_tokens=1000
        )
        async with serve_sessions(SessionTable()) as server:
            with server.serving(session) as endpoint:
                assert await agent.run(task, endpoint) == reward
        assert len(engine.requests) == len(turns), "every turn was asked for, and none after the end"


def test_two_steps_of_the_example_train_what_the_sdk_asked_for(miles, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE))
    run = miles.start(
        config=EXAMPLE / "config.toml",
        run__steps=2,
        run__samples_every=1,
        rollout__groups_per_step=6,
        rollout__group_size=8,
        warmup__steps=60,
        warmup__batch_size=64,
    )
    assert run.wait() == 0, run.output
    assert "which tool is called with what is random" in run.output, "the warm-up is declared"
    assert [row["step"] for row in run.metrics] == [1, 2]
    trained = [row for row in run.metrics if "train/loss" in row]
    assert trained, "at least one step had something to learn"
    for row in trained:
        assert row["train/rollout_logprob_abs_diff_max"] < 1e-4, "what was sampled is what is trained"
        assert row["replay/mismatch_fraction"] == 0
    samples = (run.folder / "samples" / "step-0.txt").read_text()
    assert '{"name": "' in samples
    assert "[tool]" in samples


def test_the_examples_files_are_those_that_its_script_writes(tmp_path, monkeypatch) -> None:
    namespace: dict[str, object] = {"__name__": "make", "__file__": str(tmp_path / "make.py")}
    exec(compile((EXAMPLE / "make.py").read_text("utf-8"), "make.py", "exec"), namespace)
    namespace["main"]()  # type: ignore[operator]
    for name in ("tasks.jsonl", "warmup.jsonl", "model/chat_template.jinja", "model/tokenizer.json"):
        assert (tmp_path / name).read_text("utf-8") == (EXAMPLE / name).read_text("utf-8")
    ours, theirs = (json.loads((at / "model" / "config.json").read_text()) for at in (tmp_path, EXAMPLE))
    assert ours.pop("transformers_version")
    assert theirs.pop("transformers_version")
    assert ours == theirs
