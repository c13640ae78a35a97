from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from miles_core.errors import ConfigError, PluginError, RolloutError
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.testing.builders import make_task
from miles_core.types import Message

if TYPE_CHECKING:
    from conftest import Slime

FUNCTIONS = """
class Guess:
    def __init__(self, label, max_turns):
        self.label, self.left, self.closed = label, max_turns, 0

    def reset(self, seed=None):
        self.seed = seed
        return {"obs_str": "Guess a number."}, {"label_known": True}

    def step(self, text):
        self.left -= 1
        done = text == self.label or not self.left
        return {"obs_str": "No.", "role": "tool"}, done, {"guess": text, "score": float(text == self.label)}

    def format_observation(self, observation):
        return {"role": observation["role"], "content": observation["obs_str"]}

    def close(self):
        self.closed += 1
        made.append(self)

made = []

def build_env(sample=None, args=None, **_):
    return Guess(sample.label, args.max_turns)

def by_position(task_sample, arguments):
    return Guess(task_sample.label, arguments.max_turns)

class Async:
    async def reset(self):
        return {}, {}
    async def step(self, text):
        return ({"obs_str": text} if text == "mapping" else text), False, None

def asynchronous(sample, args):
    return Async()

class Four(Guess):
    def step(self, text):
        return {}, 0.5, True, {}

def four(sample, args):
    return Four(sample.label, args.max_turns)

class Picture(Async):
    async def step(self, text):
        return {"multi_modal_data": {"image": ["a.png"]}, "obs_str": "look"}, False, {}

def picture(sample, args):
    return Picture()

def no_env(sample):
    return Guess(sample.label, 1)
"""
TASK = make_task("Which number?", "7")


async def played(slime: Slime, name: str, *responses: str, **options: object) -> tuple[Any, list[Any]]:
    """What reset shows, and the steps that the responses lead to, through what runs every environment."""
    runner = EnvironmentRunner(slime.make("environments", FUNCTIONS, name, dict(options)), name, 5.0)
    first = await runner.reset(TASK, 11)
    steps = [await runner.step(Message("assistant", response)) for response in responses]
    messages = [await runner.message(step.observation) for step in steps if step.observation is not None]
    await runner.close()
    return first, [*steps, *messages]


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["build_env", "by_position"])
async def test_an_episode_is_built_stepped_shown_and_closed(slime: Slime, name: str) -> None:
    first, (wrong, right, message) = await played(slime, name, "5", "7")
    assert first is None
    assert (wrong.done, right.done, right.observation) == (False, True, None)
    assert wrong.info == {"guess": "5", "score": 0.0}
    assert message == Message("tool", "No.")


@pytest.mark.anyio
async def test_close_is_called_and_reset_gets_the_seed_where_it_takes_one(slime: Slime) -> None:
    await played(slime, "build_env", "7")
    import sys

    module = next(module for name, module in sys.modules.items() if name.startswith("slime_functions"))
    assert [(env.closed, env.seed) for env in module.made] == [(1, 11)]


@pytest.mark.anyio
async def test_what_reset_returns_is_shown_if_the_table_says_so(slime: Slime) -> None:
    source = FUNCTIONS.replace('{"obs_str": "Guess a number."}', '{"obs_str": "Guess.", "role": "user"}')
    environment = slime.make("environments", source, "build_env", {"show_reset": True})
    assert await EnvironmentRunner(environment, "guess", 5.0).reset(TASK, 0) == Message("user", "Guess.")


@pytest.mark.anyio
@pytest.mark.parametrize("response", ["mapping", "text"])
async def test_coroutines_work_and_observations_become_user_messages(slime: Slime, response: str) -> None:
    _, (step, message) = await played(slime, "asynchronous", response)
    assert not step.done
    assert message == Message("user", response)


@pytest.mark.anyio
async def test_reward_key_makes_an_entry_of_info_the_reward_of_the_step(slime: Slime) -> None:
    _, (wrong, right, _) = await played(slime, "build_env", "5", "7", reward_key="score")
    assert (wrong.reward, right.reward) == (0.0, 1.0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("four", {}, r"step\(\) must return \(observation, done, info\); got"),
        ("build_env", {"reward_key": "points"}, "it lacks 'points'"),
        ("picture", {}, "images are not supported by this version"),
    ],
)
async def test_what_breaks_the_contract_fails_the_episode(
    slime: Slime, name: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(RolloutError, match=message):
        await played(slime, name, "5", **options)


def test_a_config_without_any_reward_is_refused(slime: Slime) -> None:
    with pytest.raises(ConfigError, match=r"give no rewards, and the config has no \[\[rewards\]\]"):
        slime.make("environments", FUNCTIONS, "build_env", config={})


def test_another_signature_is_refused(slime: Slime) -> None:
    with pytest.raises(PluginError, match=r"calls build_env\(sample=..., args=...\); the signature here is no_env"):
        slime.make("environments", FUNCTIONS, "no_env")
