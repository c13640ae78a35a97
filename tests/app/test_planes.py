"""The rollout plane of a config: its budget is what engines can serve."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from miles_core.app.planes import build_runner, load_tokenizer
from miles_core.app.wiring import wire
from miles_core.engine.prompt import check_prompt
from miles_core.errors import SessionError
from miles_core.rollout.groups import GroupWork
from miles_core.rollout.tasks import Pending
from miles_core.types import FinishReason, Generation, Message, Status, Task, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from miles_core.config.load import LoadedConfig
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.types import GenerateRequest, Trajectory

pytestmark = pytest.mark.anyio
IM_END = 2


class Engine:
    """Answers a look-up at first, refuses prompts as a client of such a context does."""

    def __init__(self, chat: ChatTokenizer, context_length: int) -> None:
        self._chat, self._context_length = chat, context_length
        self._texts = iter(["get c", "2"])

    async def generate(self, request: GenerateRequest) -> Generation:
        check_prompt(request.input_ids, vocab_size=1000, context_length=self._context_length)
        ids = [*self._chat.encode(next(self._texts)), IM_END][: request.sampling.max_new_tokens]
        reason = FinishReason("stop", IM_END) if ids[-1] == IM_END else FinishReason("length")
        return Generation(
            np.array(ids, np.int32), np.full(len(ids), -1, np.float32), reason, (VersionSpan(0, 0, len(ids)),)
        )


@pytest.fixture
def play(quickstart: Callable[..., LoadedConfig], model: Path) -> Callable[[int], object]:
    """One episode of the quickstart with a model of this context, and no other limit on it."""

    async def run(context_length: int) -> Trajectory:
        file = model / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "max_position_embeddings": context_length}))
        wiring = wire(
            quickstart(
                f"model.path={model}",
                "rollout.max_context_tokens=9999",
                "rollout.group_size=1",
                "train.replay_routing=false",
            ),
            model,
        )
        chat = load_tokenizer(wiring)
        work = GroupWork("g", 0, Pending(0, Task("t", (Message("user", "value of c?"),), label="2")))
        await build_runner(wiring, Engine(chat, context_length), chat).run(work)
        assert work.group is not None
        return work.group.trajectories[0]

    return run


@pytest.mark.parametrize(("context_length", "turns"), [(40, 1), (41, 1), (42, 2)])
async def test_a_trajectory_ends_truncated_where_engines_take_no_more_tokens(
    play: Callable[..., object], context_length: int, turns: int
) -> None:
    """The second prompt has 35 tokens: engines take it from a context of 42 on."""
    trajectory: Trajectory = await play(context_length)  # type: ignore[misc]
    assert trajectory.error is None
    assert trajectory.samples[0].status.trainable
    assert trajectory.turns == turns
    if turns == 1:
        assert (trajectory.status, trajectory.stop_reason) == (Status.TRUNCATED, "token_budget")


class Renderer:
    """Writes nothing."""

    def __init__(self, tokenizer: object) -> None: ...

    def prompt(self, messages: object, tools: object) -> list[int]:
        return [0]

    def boundary(self, turn: object, appended: object) -> list[int]:
        return []


def test_a_renderer_of_somebody_elses_takes_over_where_the_template_cannot_be_proved(
    quickstart: Callable[..., LoadedConfig], model: Path
) -> None:
    file = model / "tokenizer_config.json"
    config = {**json.loads(file.read_text()), "chat_template": "{{ messages[0].content }}"}
    file.write_text(json.dumps(config))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(SessionError, match=r"set \[session\] renderer"):
        load_tokenizer(wire(quickstart(f"model.path={model}"), model))
    wiring = wire(quickstart(f"model.path={model}", f"session.renderer={__name__}:Renderer"), model)
    chat = load_tokenizer(wiring)
    build_runner(wiring, Engine(chat, 99), chat)
