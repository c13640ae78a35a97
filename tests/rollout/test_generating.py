"""Functions in place of the turns: what they may do, what bounds them, and that no failure of theirs is a reward."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import anyio
import numpy as np
import pytest

from miles_core.errors import BudgetSpent, RolloutError
from miles_core.kinds.environments import Observation, Step
from miles_core.kinds.generate import EpisodeHandle, EpisodeResult
from miles_core.rollout.budget import Budget
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.rollout.episode import Episode
from miles_core.rollout.generating import Generator
from miles_core.session.session import TokenSession
from miles_core.types import (
    FinishReason,
    Message,
    Sample,
    SamplingParams,
    Status,
    Trajectory,
    TurnRecord,
    VersionSpan,
)

from .conftest import ScriptedEngine

pytestmark = pytest.mark.anyio


class Talking:
    """An environment that answers "more" and is done at "end"."""

    def __init__(self) -> None:
        self.resets = self.closed = 0

    async def reset(self, task, seed):
        self.resets += 1
        self.seed = seed

    async def step(self, response: Message) -> Step:
        return Step(Observation("more", role="tool"), done=response.text == "end", reward=0.5)

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def environment() -> Talking:
    return Talking()


@pytest.fixture
def generate(chat, task, environment):
    """Run one episode of a function against scripted texts."""

    async def run(function, *texts: str, engine=None, pick=None, timeout: float = 5.0, needs_routing=False, **budget):
        limits = {"max_turns": 4, "max_context_tokens": 200, "max_response_tokens": 50, "max_new_tokens": 20}
        options = {"pick": pick} if pick else {}
        engine = engine or ScriptedEngine(chat, *texts)
        session = TokenSession(chat, engine, None, task_id="t0", group_id="g", trajectory_id="x", **options)
        episode = Episode(
            task,
            lambda: EnvironmentRunner(environment, "env", 5.0),
            session,
            Budget(**(limits | budget), episode_timeout=timeout),
            lambda turn: SamplingParams(sampling_seed=100 + turn),
            "x",
            "g",
            Generator(function, "my:function", needs_routing=needs_routing),
        )
        return await episode.run(seed=7)

    return run


async def best_of_two(episode: EpisodeHandle) -> EpisodeResult:
    messages = await episode.reset()
    prompt = episode.prepare(messages)
    turns = [await episode.generate(prompt), await episode.generate(prompt)]
    turn = next((turn for turn in turns if turn.message.text.startswith("get ")), turns[0])
    step = await episode.step(turn)
    if not step.done:
        turn = await episode.generate([*messages, turn.message, await episode.message(step.observation)])
    return EpisodeResult(Status.COMPLETED, turn=turn, info={"tried": 2})


@pytest.mark.parametrize("texts", [("foo", "get c", "2"), ("get c", "foo", "2")])
async def test_the_better_of_two_first_turns_goes_on_and_alone_is_trained(generate, chat, task, texts) -> None:
    engine = ScriptedEngine(chat, *texts)
    trajectory: Trajectory = await generate(best_of_two, engine=engine)
    assert trajectory.status is Status.COMPLETED
    assert [m.text for m in trajectory.messages] == [task.messages[0].text, "get c", "more", "2"]
    sample = trajectory.samples[0]
    trained = chat.decode(sample.tokens[sample.loss_mask == 1].tolist())
    assert trained == "get c<|im_end|>2<|im_end|>"
    assert [(t.start, t.end) for t in sample.turns] == [(19, 25), (38, 40)]
    assert [t.reward for t in sample.turns] == [0.5, None]
    assert trajectory.info["tried"] == 2
    assert [request.sampling.sampling_seed for request in engine.requests] == [100, 101, 102]
    assert list(engine.requests[2].input_ids[:19]) == list(engine.requests[0].input_ids)


async def test_a_turn_that_was_given_up_is_no_sample(generate) -> None:
    async def function(episode):
        messages = await episode.reset()
        first = await episode.generate(messages)
        await episode.generate(messages)
        return EpisodeResult(Status.COMPLETED, turn=first)

    trajectory = await generate(function, "first", "second")
    assert trajectory.response == "first"
    assert len(trajectory.samples[0].turns) == 1


async def test_without_a_turn_the_session_picks(generate) -> None:
    async def function(episode):
        messages = await episode.reset()
        for _ in range(2):
            await episode.generate(messages)
        return Status.TRUNCATED

    last = await generate(function, "first", "2")
    longest = await generate(function, "first", "2", pick=lambda turns: max(turns, key=lambda turn: turn.length))
    assert (last.response, longest.response) == ("2", "first")
    assert (last.status, last.stop_reason) == (Status.TRUNCATED, "function")


class Gate(ScriptedEngine):
    """Answers when two requests are there."""

    async def generate(self, request):
        self.both = getattr(self, "both", None) or anyio.Event()
        reply = await super().generate(request)
        if len(self.requests) == 2:
            self.both.set()
        await self.both.wait()
        return reply


async def two_at_once(episode: EpisodeHandle) -> Status:
    messages = await episode.reset()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(episode.generate, messages)
        tasks.start_soon(episode.generate, messages)
    return Status.COMPLETED


async def test_turns_may_be_generated_side_by_side(generate, chat) -> None:
    engine = Gate(chat, "a", "b")
    assert (await generate(two_at_once, engine=engine)).status is Status.COMPLETED
    assert {request.rid for request in engine.requests} == {"x-0.", "x-1."}


async def test_turns_in_flight_count_with_all_tokens_that_they_may_have(generate, chat) -> None:
    engine = Gate(chat, "a", "b")
    await generate(two_at_once, engine=engine, max_response_tokens=30)
    assert [request.sampling.max_new_tokens for request in engine.requests] == [20, 10]


async def test_the_result_s_reward_stands_in_place_of_the_steps(generate) -> None:
    async def function(episode):
        await episode.step(await episode.generate(await episode.reset()))
        return EpisodeResult(Status.COMPLETED, reward=3, reason="solved_early")

    trajectory = await generate(function, "a")
    assert trajectory.step_rewards == (3.0,)
    assert trajectory.stop_reason == "solved_early"


async def test_the_environment_s_rewards_are_kept_where_the_function_gives_none(generate) -> None:
    async def function(episode):
        messages = await episode.reset()
        for _ in range(2):
            await episode.step(await episode.generate(messages))
        return Status.COMPLETED

    assert (await generate(function, "a", "b")).step_rewards == (0.5, 0.5)


@pytest.mark.parametrize(
    ("budget", "reason"),
    [({"max_turns": 2}, "max_turns"), ({"max_response_tokens": 4}, "token_budget")],
)
@pytest.mark.parametrize("grouped", [False, True])
async def test_a_spent_budget_ends_the_episode_as_truncated(generate, budget, reason, grouped) -> None:
    async def endless(episode):
        messages = await episode.reset()
        while True:
            await episode.generate(messages)

    async def in_a_group(episode):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(endless, episode)

    trajectory = await generate(in_a_group if grouped else endless, *"abcdef", **budget)
    assert (trajectory.status, trajectory.stop_reason) == (Status.TRUNCATED, reason)
    assert trajectory.samples[0].trained_tokens == 2


async def test_a_function_may_go_on_with_what_it_has_when_the_budget_is_spent(generate) -> None:
    async def function(episode):
        messages = await episode.reset()
        turns = []
        while episode.turns_left:
            turns.append(await episode.generate(messages))
        assert episode.room(episode.prepare(messages)) == 0
        with pytest.raises(BudgetSpent):
            await episode.generate(messages)
        return EpisodeResult(Status.COMPLETED, turn=turns[0])

    assert (await generate(function, "a", "b", max_turns=2)).response == "a"


async def test_max_new_tokens_is_cut_to_the_budget_and_the_temperature_is_recorded(generate, chat) -> None:
    engine = ScriptedEngine(chat, "abcdef")

    async def function(episode):
        asked = replace(episode.sampling(0), temperature=0.5, max_new_tokens=3)
        await episode.generate(await episode.reset(), asked)
        return Status.COMPLETED

    trajectory = await generate(function, engine=engine)
    assert engine.requests[0].sampling.max_new_tokens == 3
    assert trajectory.samples[0].turns[0].sampling.temperature == 0.5


async def test_the_environment_gets_the_seed_and_is_closed_once(generate, environment) -> None:
    async def function(episode):
        await episode.generate(await episode.reset())
        return Status.COMPLETED

    await generate(function, "a")
    assert (environment.resets, environment.seed, environment.closed) == (1, 7, 1)


async def fails(episode):
    await episode.generate(await episode.reset())
    raise KeyError("price")


async def exits(episode):
    await episode.generate(await episode.reset())
    raise SystemExit(3)


def blocking_fails(episode):
    episode.generate(episode.reset())
    raise KeyError("price")


async def nothing(episode):
    await episode.generate(await episode.reset())


async def a_number(episode):
    await episode.generate(await episode.reset())
    return 1.0


async def infinite(episode):
    await episode.generate(await episode.reset())
    return EpisodeResult(reward=float("inf"))


async def idle(episode):
    return Status.COMPLETED


async def resets_twice(episode):
    await episode.reset()
    await episode.reset()


async def acts_too_early(episode):
    await episode.step(await episode.generate(episode.task.messages))


async def acts_too_late(episode):
    messages = await episode.reset()
    await episode.step(await episode.generate(messages))
    await episode.step(await episode.generate(messages))


async def too_cold(episode):
    await episode.generate(await episode.reset(), SamplingParams(temperature=0.0))


async def two_words(episode):
    await episode.generate(await episode.reset())
    return EpisodeResult(reason="it is done")


async def listed(episode):
    await episode.generate(await episode.reset())
    return EpisodeResult(info=[1])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (listed, "must give info as a mapping; got tuple"),
        (fails, "rollout.generate my:function raised KeyError: 'price'"),
        (exits, "rollout.generate my:function raised RuntimeError: it raised SystemExit"),
        (blocking_fails, "rollout.generate my:function raised KeyError: 'price'"),
        (nothing, "must return a Status or an EpisodeResult; got NoneType"),
        (a_number, "got float"),
        (infinite, "must give a finite reward, or None; got inf"),
        (idle, "ended without a generated turn"),
        (resets_twice, "reset() was called twice"),
        (acts_too_early, "the environment's episode is not begun"),
        (acts_too_late, "the environment's episode is over"),
        (too_cold, "temperature of at least 1e-6"),
        (two_words, "one snake_case word; got 'it is done'"),
    ],
)
async def test_a_failure_is_a_failed_trajectory_that_names_its_cause(generate, environment, function, message) -> None:
    trajectory = await generate(function, "end", "end")
    assert trajectory.status is Status.FAILED
    assert message in (trajectory.error or "")
    assert all(not sample.status.trainable for sample in trajectory.samples)
    assert environment.closed == 1


@pytest.mark.parametrize("caught", [False, True])
async def test_an_aborted_generation_makes_the_trajectory_aborted_whatever_the_function_does(
    generate, chat, caught
) -> None:
    class Aborting(ScriptedEngine):
        async def generate(self, request):
            return replace(await super().generate(request), finish_reason=FinishReason("abort", message="paused"))

    async def function(episode):
        try:
            await episode.generate(await episode.reset())
        except Exception:
            if not caught:
                raise
        return Status.COMPLETED

    trajectory = await generate(function, engine=Aborting(chat, "a"))
    assert (trajectory.status, trajectory.stop_reason, trajectory.error) == (Status.ABORTED, "abort", "paused")


async def test_an_episode_that_takes_too_long_fails_and_closes_its_environment(generate, environment) -> None:
    async def function(episode):
        await episode.generate(await episode.reset())
        await anyio.sleep_forever()

    started = time.monotonic()
    trajectory = await generate(function, "a", timeout=0.1)
    assert time.monotonic() - started < 4
    assert (trajectory.status, trajectory.stop_reason) == (Status.FAILED, "episode_timeout")
    assert str(trajectory.error).startswith("rollout.generate "), "the function is named"
    assert str(trajectory.error).endswith("(rollout.episode_timeout)"), "and what to raise"
    assert environment.closed == 1


async def test_a_plain_function_generates_from_its_thread_as_an_async_one_does(generate) -> None:
    threads = []

    def function(episode):
        threads.append(threading.current_thread())
        messages = episode.reset()
        turn = episode.generate(messages)
        step = episode.step(turn)
        turn = episode.generate([*messages, turn.message, episode.message(step.observation)])
        return EpisodeResult(Status.COMPLETED, turn=turn)

    trajectory = await generate(function, "get c", "2")
    assert trajectory.status is Status.COMPLETED, trajectory.error
    assert [m.text for m in trajectory.messages[1:]] == ["get c", "more", "2"]
    assert threads[0] is not threading.current_thread()


async def test_a_plain_function_that_overruns_its_time_can_do_nothing_any_more(generate, environment) -> None:
    release, outcome, ended = threading.Event(), [], threading.Event()

    def function(episode):
        messages = episode.reset()
        release.wait(10)
        try:
            outcome.append(episode.generate(messages))
        except RolloutError as error:
            outcome.append(error)
        ended.set()
        return Status.COMPLETED

    trajectory = await generate(function, "a", timeout=0.1)
    release.set()
    await anyio.to_thread.run_sync(ended.wait, 5)
    assert trajectory.status is Status.FAILED
    assert environment.closed == 1
    assert "the episode x is over" in str(outcome[0])


async def test_a_plain_function_that_returns_a_coroutine_is_told_to_be_async(generate) -> None:
    async def inner(episode):
        episode.generate(episode.reset())
        return Status.COMPLETED

    trajectory = await generate(lambda episode: inner(episode), "a")
    assert "Write the function as `async def`" in (trajectory.error or "")


async def test_an_object_with_an_async_call_is_awaited(generate) -> None:
    class Calling:
        async def __call__(self, episode):
            await episode.generate(await episode.reset())
            return Status.COMPLETED

    assert (await generate(Calling(), "a")).status is Status.COMPLETED


def own_sample(**changes) -> Sample:
    sample = Sample(
        task_id="t0",
        group_id="?",
        trajectory_id="?",
        agent_id="policy",
        tokens=np.arange(5, dtype=np.int32),
        loss_mask=np.array([0, 0, 1, 1, 1], np.uint8),
        logprobs=np.zeros(5, np.float32),
        versions=(VersionSpan(0, 2, 5),),
        turns=(TurnRecord(2, 5, SamplingParams(), "stop"),),
        status=Status.COMPLETED,
    )
    return replace(sample, **changes)


async def test_a_function_may_bring_samples_of_its_own(generate) -> None:
    async def function(episode):
        return EpisodeResult(
            Status.TRUNCATED, 1.0, samples=(own_sample(),), messages=(Message("user", "q"), Message("assistant", "a"))
        )

    trajectory = await generate(function)
    sample = trajectory.samples[0]
    assert (sample.trajectory_id, sample.group_id, sample.status) == ("x", "g", Status.TRUNCATED)
    assert trajectory.response == "a"


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"turns": ()}, {}, "3 trained tokens of a sample are in none of its turns"),
        ({}, {"max_response_tokens": 2}, "rollout.max_response_tokens 2"),
        ({}, {"needs_routing": True}, "no routing trace, but train.replay_routing is on"),
    ],
)
async def test_samples_that_cannot_be_trained_right_fail_the_trajectory(generate, changes, options, message) -> None:
    async def function(episode):
        return EpisodeResult(samples=(own_sample(**changes),))

    trajectory = await generate(function, **options)
    assert (trajectory.status, trajectory.samples) == (Status.FAILED, ())
    assert message in (trajectory.error or "")


async def test_a_pick_that_fails_fails_only_this_trajectory(generate) -> None:
    async def function(episode):
        await episode.generate(await episode.reset())
        return Status.COMPLETED

    def broken(turns):
        raise IndexError("no such turn")

    trajectory = await generate(function, "a", pick=broken)
    assert (trajectory.status, trajectory.samples) == (Status.FAILED, ())
    assert "session.pick" in (trajectory.error or "")
    assert "IndexError: no such turn" in (trajectory.error or "")
