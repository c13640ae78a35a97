"""Episodes: how they end, what they keep, and that nothing of the environment can hurt the run."""

from __future__ import annotations

import threading
import time

import anyio
import pytest

from miles_core.kinds.environments import Observation, Step
from miles_core.types import Message, Status

from .conftest import ScriptedEngine

pytestmark = pytest.mark.anyio


class Counting:
    """An environment that never ends and counts its calls."""

    def __init__(self) -> None:
        self.steps = self.closed = 0

    async def reset(self, task, seed):
        self.seed = seed

    async def step(self, response: Message) -> Step:
        self.steps += 1
        return Step(Observation("more", role="tool"), reward=0.5)

    async def close(self) -> None:
        self.closed += 1


async def test_lookup_is_solved_in_two_turns(play, lookup) -> None:
    trajectory = await play(lookup, "get c", "2")
    assert trajectory.status is Status.COMPLETED
    assert [m.role for m in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert trajectory.messages[2].text == "2"
    assert trajectory.response == "2"
    assert trajectory.turns == 2
    assert [(t.start, t.end) for t in trajectory.samples[0].turns] == [(19, 25), (35, 37)]


async def test_lookup_ends_at_a_direct_answer(play, lookup) -> None:
    trajectory = await play(lookup, "2")
    assert (trajectory.status, trajectory.turns) == (Status.COMPLETED, 1)


async def test_max_turns_one_means_one_turn_and_no_observation(play) -> None:
    environment = Counting()
    trajectory = await play(environment, "a", max_turns=1)
    assert (trajectory.status, trajectory.stop_reason) == (Status.TRUNCATED, "max_turns")
    assert [m.role for m in trajectory.messages] == ["user", "assistant"]
    assert trajectory.step_rewards == (0.5,)


@pytest.mark.parametrize(("context", "turns"), [(37, 1), (38, 1), (39, 2)])
async def test_an_observation_that_leaves_no_room_ends_the_episode_before_it(play, context: int, turns: int) -> None:
    """The prompt has 19 tokens, the first turn 6, the observation with its frame 13."""
    trajectory = await play(Counting(), "get c", "x", max_context_tokens=context)
    assert trajectory.status is Status.TRUNCATED
    assert trajectory.turns == turns
    assert len(trajectory.samples[0].tokens) <= context
    assert trajectory.messages[-1].role == "assistant"


async def test_the_response_budget_does_not_charge_the_prompt(play) -> None:
    trajectory = await play(Counting(), "get c", "get d", max_response_tokens=8)
    assert trajectory.samples[0].trained_tokens == 8
    assert trajectory.samples[0].turns[1].finish_reason == "length"


async def test_a_prompt_longer_than_the_budget_fails_with_both_numbers(play) -> None:
    trajectory = await play(Counting(), max_context_tokens=10)
    assert (trajectory.status, trajectory.samples) == (Status.FAILED, ())
    assert "19 tokens; with rollout.max_context_tokens = 10" in (trajectory.error or "")


async def test_done_beats_every_budget(play, lookup) -> None:
    trajectory = await play(lookup, "get c", "2", max_context_tokens=40, max_response_tokens=8)
    assert trajectory.status is Status.COMPLETED


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_step_that_raises_fails_only_this_trajectory(play, blocking: bool) -> None:
    class Broken(Counting):
        if blocking:

            def step(self, response):
                raise RuntimeError("docker gone")
        else:

            async def step(self, response):
                raise RuntimeError("docker gone")

    environment = Broken()
    trajectory = await play(environment, "a")
    assert trajectory.status is Status.FAILED
    assert "docker gone" in (trajectory.error or "")
    assert environment.closed == 1
    assert not trajectory.samples[0].status.trainable


async def test_a_step_that_hangs_is_ended_by_its_time_out(play) -> None:
    class Hanging(Counting):
        async def step(self, response):
            await anyio.sleep_forever()

    environment = Hanging()
    started = time.monotonic()
    trajectory = await play(environment, "a", timeout=0.1)
    assert time.monotonic() - started < 5
    assert trajectory.status is Status.FAILED
    assert "longer than 0.1 s" in (trajectory.error or "")
    assert environment.closed == 1


async def test_close_is_called_once_when_the_episode_is_cancelled(play) -> None:
    reached = anyio.Event()

    class Waiting(Counting):
        async def step(self, response):
            reached.set()
            await anyio.sleep_forever()

    environment = Waiting()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(play, environment, "a")
        await reached.wait()
        tasks.cancel_scope.cancel()
    assert environment.closed == 1


async def test_a_close_that_raises_does_not_lose_the_result(play) -> None:
    class Sticky(Counting):
        async def step(self, response):
            return Step(done=True, reward=1.0)

        def close(self):
            raise OSError("still busy")

    trajectory = await play(Sticky(), "a")
    assert (trajectory.status, trajectory.step_rewards) == (Status.COMPLETED, (1.0,))


async def test_an_environment_that_blocks_does_not_stall_the_loop(play) -> None:
    release = threading.Event()

    class Blocking(Counting):
        def step(self, response):
            assert release.wait(5), "the loop stood still"
            return Step(done=True)

    async with anyio.create_task_group() as tasks:
        results = []

        async def run() -> None:
            results.append(await play(Blocking(), "a"))

        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        release.set()
    assert results[0].status is Status.COMPLETED


@pytest.mark.parametrize(
    ("answer", "message"),
    [(None, "must return a Step"), (Step(), "no observation"), (Step(b"x"), "must be text or a JSON value")],
)
async def test_a_wrong_answer_of_step_names_the_environment(play, answer: object, message: str) -> None:
    class Wrong(Counting):
        async def step(self, response):
            return Step(Observation(b"x")) if isinstance(answer, Step) and answer.observation == b"x" else answer

    trajectory = await play(Wrong(), "a", "b")
    assert trajectory.status is Status.FAILED
    assert "environment env" in (trajectory.error or "")
    assert message in (trajectory.error or "")


@pytest.mark.parametrize("observation", [{"a": 1}, Observation({"a": 1})])
async def test_a_structured_observation_is_shown_as_json(play, observation) -> None:
    class Structured(Counting):
        async def step(self, response):
            return Step(observation)

    trajectory = await play(Structured(), "a", "b")
    assert trajectory.messages[2].text == '{"a": 1}'


async def test_a_formatter_that_raises_fails_only_this_trajectory(play) -> None:
    class Broken(Counting):
        def format_observation(self, observation):
            raise RuntimeError("no such template")

    environment = Broken()
    trajectory = await play(environment, "a", "b")
    assert trajectory.status is Status.FAILED
    assert "format_observation() raised RuntimeError: no such template" in (trajectory.error or "")
    assert environment.closed == 1


async def test_the_environments_own_time_out_keeps_its_words(play) -> None:
    class Slow(Counting):
        async def step(self, response):
            raise TimeoutError("docker exec timed out: image foo")

    trajectory = await play(Slow(), "a")
    assert "docker exec timed out: image foo" in (trajectory.error or "")


@pytest.mark.parametrize("reward", [None, "1", True, float("nan"), float("-inf"), 10**400])
async def test_a_step_reward_that_is_no_number_names_the_environment(play, reward) -> None:
    class Odd(Counting):
        async def step(self, response):
            return Step(done=True, reward=reward)

    trajectory = await play(Odd(), "a")
    assert trajectory.status is Status.FAILED
    assert "environment env: a step's reward must be a finite number" in (trajectory.error or "")


async def test_a_blocking_step_that_hangs_is_abandoned(play) -> None:
    release = threading.Event()

    class Hanging(Counting):
        def step(self, response):
            release.wait(60)
            return Step(done=True)

    trajectory = await play(Hanging(), "a", timeout=0.1)
    release.set()
    assert trajectory.status is Status.FAILED


async def test_a_prompt_that_leaves_room_for_one_token_is_kept_and_gets_one(play, chat) -> None:
    engine = ScriptedEngine(chat, "get c")
    trajectory = await play(Counting(), engine=engine, max_context_tokens=20, max_turns=1)
    assert len(engine.requests[0].input_ids) == 19
    assert engine.requests[0].sampling.max_new_tokens == 1
    assert trajectory.samples[0].trained_tokens == 1
