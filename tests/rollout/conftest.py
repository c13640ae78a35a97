from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from miles_core.kinds.base import PluginContext
from miles_core.rollout.budget import Budget
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.rollout.episode import Episode
from miles_core.session.session import TokenSession
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import (
    FinishReason,
    GenerateRequest,
    Generation,
    Message,
    Reward,
    Sample,
    SamplingParams,
    Status,
    Task,
    Trajectory,
    VersionSpan,
)
from miles_plugins.environments.lookup import Lookup

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
IM_END = 2


class ScriptedEngine:
    """Answers with scripted texts in order and ends each with the stop token."""

    def __init__(self, chat: ChatTokenizer, *texts: str, version: int = 0) -> None:
        self.chat, self.texts, self.version = chat, list(texts), version
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        text = self.texts[len(self.requests)]
        self.requests.append(request)
        ids = [*self.chat.encode(text), IM_END][: request.sampling.max_new_tokens]
        stopped = ids[-1] == IM_END
        reason = FinishReason("stop", IM_END) if stopped else FinishReason("length")
        output = np.array(ids, np.int32)
        versions = (VersionSpan(self.version, 0, len(ids)),)
        return Generation(output, np.full(len(ids), -1.0, np.float32), reason, versions)


@pytest.fixture(scope="session")
def chat() -> ChatTokenizer:
    return ChatTokenizer.load(QUICKSTART / "model")


@pytest.fixture
def task() -> Task:
    return Task("t0", (Message("user", "value of c?"),), label="2")


@pytest.fixture
def lookup() -> Lookup:
    return Lookup(None, PluginContext())


@pytest.fixture
def play(chat: ChatTokenizer, task: Task) -> Callable[..., object]:
    """Run one episode of an environment against scripted texts."""

    async def run(
        environment: object, *texts: str, timeout: float = 5.0, engine: ScriptedEngine | None = None, **budget: int
    ) -> Trajectory:
        limits = {"max_turns": 2, "max_context_tokens": 200, "max_response_tokens": 50, "max_new_tokens": 20}
        session = TokenSession(
            chat, engine or ScriptedEngine(chat, *texts), None, task_id="t0", group_id="g", trajectory_id="x"
        )
        episode = Episode(
            task,
            lambda: EnvironmentRunner(environment, "env", timeout),  # type: ignore[arg-type]
            session,
            Budget(**(limits | budget)),
            lambda turn: SamplingParams(sampling_seed=turn),
            trajectory_id="x",
        )
        return await episode.run(seed=7)

    return run


def make_trajectory(
    name: str,
    reward: float | None = None,
    *,
    status: Status = Status.COMPLETED,
    step_rewards: Sequence[float] = (),
    version: int = 0,
    tokens: int = 3,
) -> Trajectory:
    """A trajectory of one sample whose last ``tokens`` tokens were generated."""
    scored = None if reward is None else Reward(reward)
    sample = Sample(
        task_id="t0",
        group_id="g",
        trajectory_id=name,
        agent_id="policy",
        tokens=np.arange(2 + tokens, dtype=np.int32),
        loss_mask=np.array([0, 0, *[1] * tokens], np.uint8),
        logprobs=np.zeros(2 + tokens, np.float32),
        versions=(VersionSpan(version, 2, 2 + tokens),),
        turns=(),
        status=status,
        reward=scored,
    )
    task = Task("t0", (Message("user", "q"),), label="2")
    messages = (*task.messages, Message("assistant", "2"))
    return Trajectory(name, task, messages, (sample,), status, scored, tuple(step_rewards))
