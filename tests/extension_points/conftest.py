"""The quickstart's real parts in one process, with functions and classes that it finds by import path."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from miles_core.app.planes import build_runner
from miles_core.app.wiring import Wiring, wire
from miles_core.config.load import load_config
from miles_core.rollout.groups import GroupWork
from miles_core.rollout.tasks import Pending
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import FinishReason, GenerateRequest, Generation, Group, Message, Task, VersionSpan

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
SMALL = ("rollout.group_size=2", "train.replay_routing=false", "rollout.max_turns=3")
IM_END = 2
_numbers = itertools.count()


class ScriptedClient:
    """Answers every trajectory's calls with the same texts in order."""

    def __init__(self, chat: ChatTokenizer, *texts: str) -> None:
        self.chat, self.texts = chat, texts
        self.prompts: list[str] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        call = int(request.rid.rstrip(".").rpartition("-")[2])
        self.prompts.append(self.chat.decode(list(request.input_ids)))
        output = np.array([*self.chat.encode(self.texts[call]), IM_END], np.int32)
        logprobs = np.full(len(output), -1.0, np.float32)
        return Generation(output, logprobs, FinishReason("stop", IM_END), (VersionSpan(0, 0, len(output)),))


@pytest.fixture(scope="session")
def chat() -> ChatTokenizer:
    return ChatTokenizer.load(QUICKSTART / "model")


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Write a module that can be imported; returns its name."""
    names: list[str] = []

    def write(text: str) -> str:
        names.append(f"theirs_{next(_numbers)}")
        (tmp_path / f"{names[-1]}.py").write_text(text, "utf-8")
        return names[-1]

    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def wired(tmp_path: Path) -> Callable[..., Wiring]:
    """The wiring of the quickstart with other values."""

    def make(*overrides: str) -> Wiring:
        return wire(load_config(QUICKSTART / "config.toml", (*SMALL, *overrides)), tmp_path)

    return make


@pytest.fixture
def play(chat: ChatTokenizer) -> Callable[..., object]:
    """Generate and score one group of a wiring against scripted texts."""

    async def run(wiring: Wiring, *texts: str, client: ScriptedClient | None = None) -> Group:
        task = Task("c3", (Message("user", "value of c?"),), label="3")
        work = GroupWork("g", 0, Pending(0, task))
        await build_runner(wiring, client or ScriptedClient(chat, *texts), chat).run(work)
        assert work.group is not None
        return work.group

    return run
