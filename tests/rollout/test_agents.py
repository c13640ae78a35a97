"""Agents: over the real session server they act within the run's budgets, and every token of theirs is recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from miles_core.app.session_server import SessionServer, serve_sessions
from miles_core.config.serving import SessionTable
from miles_core.errors import MilesError
from miles_core.kinds.environments import AgentSession
from miles_core.kinds.generate import EpisodeResult
from miles_core.lib.signatures import is_async
from miles_core.rollout.agents import AgentPlayer
from miles_core.rollout.budget import Budget
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.rollout.episode import Episode
from miles_core.rollout.scoring import Scorer
from miles_core.session.parsing.derive import derive_parser
from miles_core.session.session import TokenSession
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import (
    FinishReason,
    GenerateRequest,
    Generation,
    Message,
    SamplingParams,
    Status,
    Task,
    Trajectory,
    VersionSpan,
)

pytestmark = pytest.mark.anyio

MODEL = Path(__file__).parents[2] / "examples" / "agent_tools" / "model"
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {"key": {}}}}}]
CALL = '<tool_call>\n{"name": "get", "arguments": {"key": "c"}}\n</tool_call>'
IM_END = 2
TASK = Task("t0", (Message("user", "c?"),), label="2")


@pytest.fixture(scope="module")
def tools_chat() -> ChatTokenizer:
    return ChatTokenizer.load(MODEL)


class Engine:
    """Answers by what the prompt ends in; the texts of one prompt come in order. ``None`` is never answered."""

    def __init__(self, chat: ChatTokenizer, says: dict[str, list[str | None]]) -> None:
        self.chat, self.says = chat, says
        self.requests: list[GenerateRequest] = []
        self.asked, self.cancelled = anyio.Event(), anyio.Event()

    async def generate(self, request: GenerateRequest) -> Generation:
        self.requests.append(request)
        self.asked.set()
        prompt = self.chat.decode(list(request.input_ids)).removesuffix("<|im_end|>\n<|im_start|>assistant\n")
        texts = next(texts for asked, texts in self.says.items() if prompt.endswith(asked))
        text = texts.pop(0)
        if text is None:
            try:
                await anyio.sleep_forever()
            finally:
                self.cancelled.set()
        aborted = text == "abort"
        ids = np.array([*self.chat.encode(text or ""), IM_END][: request.sampling.max_new_tokens], np.int32)
        reason = FinishReason("abort", message="weights change") if aborted else FinishReason("stop", IM_END)
        return Generation(ids, np.full(len(ids), -1.0, np.float32), reason, (VersionSpan(0, 0, len(ids)),))


class Play:
    """Plays episodes of agents against a scripted engine, each through the session server."""

    def __init__(self, chat: ChatTokenizer, server: SessionServer) -> None:
        self.chat, self.server = chat, server
        self.engine = Engine(chat, {})

    async def __call__(
        self,
        run: Any,
        says: dict[str, list[str | None]] | None = None,
        *,
        task: Task = TASK,
        name: str = "x",
        scored: bool = False,
        close: Any = None,
        **budget: Any,
    ) -> Trajectory:
        self.engine.says.update(says or {})
        limits = {"max_turns": 9, "max_context_tokens": 200, "max_response_tokens": 99, "max_new_tokens": 20}
        parser = derive_parser(self.chat.deriver(tools=True).text)

        def open_session(agent_id: str) -> TokenSession:
            names = {"task_id": task.id, "group_id": "g", "trajectory_id": name, "agent_id": agent_id}
            return TokenSession(self.chat, self.engine, None, parser=parser, **names)

        members = {"run": staticmethod(run), **({} if close is None else {"close": staticmethod(close)})}
        environment = type("Agent", (), members)()
        player = AgentPlayer(self.server, scored=scored)
        episode = Episode(
            task,
            lambda: EnvironmentRunner(environment, "env", 5.0, blocks=not is_async(run), player=player),
            open_session("policy"),
            Budget(**(limits | budget)),
            lambda turn: SamplingParams(temperature=0.7, sampling_seed=turn),
            trajectory_id=name,
            group_id="g",
            open_session=open_session,
        )
        with anyio.fail_after(20):
            return await episode.run(seed=7)


@pytest.fixture
async def play(tools_chat: ChatTokenizer) -> AsyncIterator[Play]:
    async with serve_sessions(SessionTable()) as server:
        yield Play(tools_chat, server)
        assert len(server.registry) == 0, "an episode left its session open"


async def ask(session: AgentSession, *texts: str, **options: Any) -> str:
    """One answer, through a client with URL and key alone."""
    async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as client:
        messages: Any = [{"role": "user", "content": text} for text in texts]
        reply = await client.chat.completions.create(model="any", messages=messages, **options)
        return str(reply.choices[0].message.content)


async def use_tool(task: Task, session: AgentSession) -> float:
    async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        messages: list[Any] = [message.to_chat() for message in task.messages]
        reply = await client.chat.completions.create(model="any", messages=messages, tools=TOOLS)  # type: ignore[arg-type]
        (call,) = reply.choices[0].message.tool_calls or []
        messages += [reply.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "2"}]
        reply = await client.chat.completions.create(model="any", messages=messages, tools=TOOLS)  # type: ignore[arg-type]
        return float(reply.choices[0].message.content == task.label)


async def test_every_token_of_two_turns_with_a_tool_is_recorded_and_none_is_made_again(play: Play) -> None:
    trajectory = await play(use_tool, {"c?": [CALL], "2": ["2"]})
    assert (trajectory.status, trajectory.step_rewards) == (Status.COMPLETED, (1.0,))
    assert [m.role for m in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    first, second = play.engine.requests
    generated = [*play.chat.encode(CALL), IM_END]
    start = [*list(first.input_ids), *generated]
    assert list(second.input_ids)[: len(start)] == start
    assert (
        play.chat.decode(list(second.input_ids)[len(start) :])
        == "\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n"
    )
    (sample,) = trajectory.samples
    assert sample.tokens.tolist() == [*list(second.input_ids), *play.chat.encode("2"), IM_END]
    spans = [(turn.start, turn.end) for turn in sample.turns]
    assert spans == [(len(first.input_ids), len(start)), (len(second.input_ids), len(sample.tokens))]
    assert sample.trained_tokens == len(generated) + 2
    assert all(turn.generate_seconds > 0 and turn.sampling.temperature == 0.7 for turn in sample.turns)


async def test_the_runs_sampling_holds_and_a_client_may_ask_for_less(play: Play) -> None:
    async def run(task: Task, session: AgentSession) -> float:
        assert (session.id, session.seed, session.evaluation) == ("x", 7, False)
        await ask(session, "a", temperature=0.1, seed=99, max_tokens=3)
        await ask(session, "b", max_tokens=1000)
        return 1.0

    await play(run, {"a": ["1"], "b": ["2"]})
    first, second = (request.sampling for request in play.engine.requests)
    assert (first.temperature, first.sampling_seed, first.max_new_tokens) == (0.7, 0, 3)
    assert (second.temperature, second.sampling_seed, second.max_new_tokens) == (0.7, 1, 20)


@pytest.mark.parametrize(
    ("answer", "status", "rewards"),
    [
        (None, Status.TRUNCATED, ()),
        (0.5, Status.TRUNCATED, (0.5,)),
        (EpisodeResult(Status.COMPLETED, 0.5), Status.COMPLETED, (0.5,)),
    ],
)
async def test_a_spent_budget_truncates_unless_the_agents_result_says_otherwise(
    play: Play, answer: object, status: Status, rewards: tuple[float, ...]
) -> None:
    async def run(task: Task, session: AgentSession) -> object:
        await ask(session, "a")
        with pytest.raises(BadRequestError, match=r"max_turns = 1 turns are generated") as raised:
            await ask(session, "b")
        assert raised.value.code == "context_length_exceeded"
        return answer

    trajectory = await play(run, {"a": ["1"], "b": ["2"]}, max_turns=1)
    assert (trajectory.status, trajectory.step_rewards) == (status, rewards)
    assert len(play.engine.requests) == 1


@pytest.mark.parametrize(
    ("budget", "reason"), [({"max_turns": 1}, "max_turns"), ({"max_response_tokens": 11}, "token_budget")]
)
async def test_an_agent_that_ends_by_a_spent_budget_is_truncated(
    play: Play, budget: dict[str, int], reason: str
) -> None:
    trajectory = await play(use_tool, {"c?": [CALL], "2": ["2"]}, **budget)
    assert (trajectory.status, trajectory.stop_reason) == (Status.TRUNCATED, reason)
    assert trajectory.samples[0].status.trainable


async def test_a_first_prompt_without_room_fails_with_both_numbers(play: Play) -> None:
    trajectory = await play(use_tool, max_context_tokens=5)
    assert (trajectory.status, trajectory.samples) == (Status.FAILED, ())
    assert "max_context_tokens = 5 nothing can be generated" in (trajectory.error or "")


async def test_messages_that_cannot_fit_are_refused_as_a_spent_budget(play: Play) -> None:
    async def run(task: Task, session: AgentSession) -> float:
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            with pytest.raises(BadRequestError, match="200000 characters") as refused:
                await client.chat.completions.create(model="p", messages=[{"role": "user", "content": "a" * 200_000}])
            assert refused.value.code == "context_length_exceeded"
        return 0.0

    trajectory = await play(run)
    assert trajectory.status is Status.FAILED
    assert "200000 characters" in (trajectory.error or "")


async def test_a_crash_leaves_a_failed_trajectory_whose_turns_stay_readable(play: Play) -> None:
    async def run(task: Task, session: AgentSession) -> float:
        await ask(session, "a")
        raise RuntimeError("docker gone")

    trajectory = await play(run, {"a": ["13"]}, scored=True)
    assert trajectory.status is Status.FAILED
    assert "environment env: run() raised RuntimeError: docker gone" in (trajectory.error or "")
    assert [m.text for m in trajectory.messages] == ["a", "13"]
    (sample,) = trajectory.samples
    assert (sample.status, sample.trained_tokens) == (Status.FAILED, 3)
    (scored,) = await Scorer([]).score([trajectory])
    assert scored.reward is not None
    assert scored.reward.value is None


async def test_the_episodes_time_out_cancels_the_agent_and_its_request(play: Play) -> None:
    trajectory = await play(use_tool, {"c?": [None]}, episode_timeout=1)
    assert (trajectory.status, trajectory.stop_reason) == (Status.FAILED, "episode_timeout")
    assert "environment env: longer than 1 s (rollout.episode_timeout)" in (trajectory.error or "")
    assert trajectory.samples == ()
    with anyio.fail_after(5):
        await play.engine.cancelled.wait()


async def test_cancelling_an_episode_cancels_its_request_and_closes_its_session_once(play: Play) -> None:
    closed = []
    async with anyio.create_task_group() as tasks:

        async def one() -> None:
            await play(use_tool, {"c?": [None]}, close=lambda: closed.append(1))

        tasks.start_soon(one)
        await play.engine.asked.wait()
        tasks.cancel_scope.cancel()
    assert closed == [1]
    with anyio.fail_after(5):
        await play.engine.cancelled.wait()


async def test_an_aborted_turn_aborts_the_episode_and_is_not_stored(play: Play) -> None:
    trajectory = await play(use_tool, {"c?": ["abort"]})
    assert (trajectory.status, trajectory.error) == (Status.ABORTED, "weights change")
    assert trajectory.samples == ()
    assert len(play.engine.requests) == 1, "no client tries again"


async def test_agents_have_conversations_and_rewards_of_their_own(play: Play) -> None:
    async def run(task: Task, session: AgentSession) -> dict[str, float]:
        helper = session.agent("helper")
        assert session.agent("helper") is helper
        assert session.agent("policy") is session
        assert helper.api_key != session.api_key
        await ask(session, "a")
        await ask(helper, "b")
        await ask(helper, "d")
        return {"policy": 1.0, "helper": -0.5}

    trajectory = await play(run, {"a": ["1"], "b": ["2"], "d": ["3"]})
    assert [message.text for message in trajectory.messages] == ["a", "1"]
    (scored,) = await Scorer([]).score([trajectory])
    assert [(s.agent_id, s.reward and s.reward.value) for s in scored.samples] == [
        ("policy", 1.0),
        ("helper", -0.5),
        ("helper", -0.5),
    ]


async def test_a_plain_function_runs_in_a_thread_with_the_blocking_client(play: Play) -> None:
    def run(task: Task, session: AgentSession) -> dict[str, float]:
        for each, text in ((session, "a"), (session.agent("helper"), "b")):
            with OpenAI(base_url=each.base_url, api_key=each.api_key) as client:
                client.chat.completions.create(model="any", messages=[{"role": "user", "content": text}])
        return {"policy": 2.0}

    trajectory = await play(run, {"a": ["1"], "b": ["2"]})
    assert trajectory.step_rewards == (2.0,), trajectory.error
    assert {sample.agent_id for sample in trajectory.samples} == {"policy", "helper"}


async def test_two_episodes_at_once_do_not_mix(play: Play) -> None:
    both = anyio.Event()
    waiting: list[str] = []
    made: dict[str, Trajectory] = {}

    async def one(name: str) -> None:
        async def run(task: Task, session: AgentSession) -> float:
            await ask(session, "c?")
            waiting.append(name)
            if len(waiting) == 2:
                both.set()
            await both.wait()
            return float(await ask(session, "c?", name) == name)

        made[name] = await play(run, {"c?": ["1", "1"], name: [name]}, name=name)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one, "y")
        tasks.start_soon(one, "z")
    for name, trajectory in made.items():
        assert trajectory.step_rewards == (1.0,)
        assert {sample.trajectory_id for sample in trajectory.samples} == {name}
        assert trajectory.response == name


async def test_after_the_episode_requests_are_refused_and_nothing_is_stored(play: Play) -> None:
    kept: list[AgentSession] = []

    async def run(task: Task, session: AgentSession) -> float:
        kept.append(session)
        await ask(session, "a")
        return 1.0

    trajectory = await play(run, {"a": ["1"]})
    with pytest.raises(NotFoundError, match="no open session"):
        await ask(kept[0], "b")
    with pytest.raises(MilesError, match="is over"):
        kept[0].agent("late")
    assert len(play.engine.requests) == len(trajectory.samples) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "run() returned no reward, and the config has no [[rewards]]"),
        (Status.COMPLETED, "run() returned no reward"),
        (True, "run() must return None, a finite number"),
        (float("nan"), "run() must return None, a finite number"),
        ("1", "run() must return None, a finite number"),
        ({"other": 1.0}, "gave a reward to agent 'other'; agents of the episode: policy"),
        (EpisodeResult(Status.COMPLETED, float("inf")), "must give a finite reward"),
    ],
)
async def test_what_an_agent_may_not_return_fails_its_trajectory(play: Play, answer: object, words: str) -> None:
    async def run(task: Task, session: AgentSession) -> object:
        await ask(session, "a")
        return answer

    trajectory = await play(run, {"a": ["1"]})
    assert trajectory.status is Status.FAILED
    assert words in (trajectory.error or "")


async def test_none_leaves_the_reward_to_reward_models(play: Play) -> None:
    async def run(task: Task, session: AgentSession) -> None:
        await ask(session, "a")

    trajectory = await play(run, {"a": ["1"]}, scored=True)
    assert (trajectory.status, trajectory.step_rewards) == (Status.COMPLETED, ())


async def test_an_agent_that_never_asks_the_policy_has_nothing_to_train(play: Play) -> None:
    async def run(task: Task, session: AgentSession) -> float:
        return 1.0

    trajectory = await play(run)
    assert trajectory.status is Status.FAILED
    assert "environment env ended without a generated turn" in (trajectory.error or "")
