"""What the rollout plane takes by import path: environments, rewards, filters, tasks, and the functions of episodes."""

from __future__ import annotations

from collections import Counter

import pytest

from miles_core.app.planes import build_filters, build_runner, build_tasks
from miles_core.app.session_server import session_server
from miles_core.kinds.filters import BufferedGroup
from miles_core.rollout.evaluation import Evaluation
from miles_core.rollout.filtering import Drops
from miles_core.rollout.groups import GroupSettings, GroupWork
from miles_core.rollout.tasks import Pending
from miles_core.types import Message, Status, Task

from .conftest import ScriptedClient

pytestmark = pytest.mark.anyio


async def test_an_environment(wired, theirs, play) -> None:
    module = theirs(
        """
from miles_core.api import Observation, Step

class Echo:
    def __init__(self, config, context): ...
    def reset(self, task, seed): return Observation("go")
    def step(self, response): return Step(Observation(response.text.upper()), done=response.text == "end", reward=0.25)
    def close(self): ...
"""
    )
    group = await play(wired(f"environments.0.use={module}:Echo", "rewards=[]"), "get c", "end")
    assert [m.text for m in group.trajectories[0].messages[1:]] == ["go", "get c", "GET C", "end"]
    assert group.rewards == (0.5, 0.5)


async def test_an_environment_that_is_an_agent(wired, theirs, chat) -> None:
    module = theirs(
        """
from openai import AsyncOpenAI

class Agent:
    def __init__(self, config, context): ...
    async def run(self, task, session):
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            messages = [message.to_chat() for message in task.messages]
            reply = await client.chat.completions.create(model="policy", messages=messages)
            return float(reply.choices[0].message.content)
"""
    )
    wiring = wired(f"environments.0.use={module}:Agent", "rewards=[]")
    work = GroupWork("g", 0, Pending(0, Task("c3", (Message("user", "value of c?"),))))
    async with session_server(wiring) as endpoints:
        await build_runner(wiring, ScriptedClient(chat, "33"), chat, endpoints=endpoints).run(work)
    assert work.group is not None
    assert work.group.rewards == (33.0, 33.0)


async def test_a_reward_of_one_trajectory_and_one_of_a_group(wired, theirs, play) -> None:
    module = theirs(
        """
from miles_core.api import Reward

async def length(trajectory): return float(len(trajectory.response))

class First:
    scope = "group"
    def __init__(self, config, context): ...
    async def score(self, items): return [Reward(float(index == 0)) for index, _ in enumerate(items)]
"""
    )
    wiring = wired(f'rewards=[{{use="{module}:length", weight=0.5}}, {{use="{module}:First"}}]')
    assert (await play(wiring, "get c", "33")).rewards == (2.0, 1.0)


async def test_filters_of_each_stage(wired, theirs, play, chat) -> None:
    module = theirs(
        """
from miles_core.api import Verdict

class Short:
    stage = "sample"
    def __init__(self, config, context): ...
    def keep(self, item): return Verdict(item.id.endswith("t0"), "second")

def alone(group): return len(group.trajectories) > 1

class Fresh:
    stage = "buffer"
    def __init__(self, config, context): ...
    def keep(self, item): return Verdict(item.staleness < 2, "too_old")
"""
    )
    group = await play(wired(), "get c", "3")
    by_sample = build_filters(wired(f'filters=[{{use="{module}:Short"}}]'), chat)
    both = build_filters(wired(f'filters=[{{use="{module}:Short"}}, {{use="{module}:alone"}}]'), chat)
    buffered = build_filters(wired(f'filters=[{{use="{module}:Fresh"}}]'), chat)
    drops, old = Drops(), Counter[str]()
    kept = await by_sample.apply([group], drops)
    assert [len(left.trajectories) for left in kept] == [1]
    assert await both.apply([group], drops) == []
    assert drops.counts == {"second": 2, "alone": 1}
    assert await buffered.apply_in_buffer([BufferedGroup(group, 1), BufferedGroup(group, 2)], old) == [group]
    assert old == {"too_old": 1}


def test_a_data_source(wired, theirs, chat) -> None:
    module = theirs(
        """
from pydantic import BaseModel, ConfigDict
from miles_core.api import Message, Task

class Counting:
    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")
        start: int = 0
    def __init__(self, config, context): self.at = config.start
    def take(self, count):
        self.at += count
        return [(0, Task(f"n{n}", (Message("user", str(n)),))) for n in range(self.at - count, self.at)]
    def state(self): return {"at": self.at}
    def restore(self, state): self.at = state["at"]
    def metrics(self): return {}
"""
    )
    wiring = wired(f'data={{use="{module}:Counting", start=7}}')
    tasks = build_tasks(wiring, wiring.config.data, chat, epochs=None)
    assert [pending.task.id for pending in (tasks.next(), tasks.next()) if pending] == ["n7", "n8"]


async def test_a_function_that_generates_also_in_evaluations(wired, theirs, play, chat) -> None:
    module = theirs(
        """
from miles_core.api import EpisodeResult, Status

async def once(episode, *, note="x"):
    await episode.generate(await episode.reset())
    return EpisodeResult(Status.COMPLETED, 2.0, info={"note": note, "evaluation": episode.evaluation})
"""
    )
    wiring = wired(f'rollout.generate={{use="{module}:once", note="mine"}}', "rewards=[]")
    group = await play(wiring, "3")
    assert group.rewards == (2.0, 2.0)
    assert dict(group.trajectories[0].info) == {"note": "mine", "evaluation": False}

    settings = GroupSettings(group_size=1, max_concurrency=2, temperature=1.0, seed=0)
    runner = build_runner(wiring, ScriptedClient(chat, "3"), chat, settings)
    tasks = build_tasks(wiring, wiring.config.data, chat, epochs=1)
    pending = tasks.next()
    assert pending is not None
    result = await Evaluation([pending], runner, pass_reward=1.0, seed=0).run(0)
    assert result.groups[0].trajectories[0].info["evaluation"] is True
    assert result.metrics["eval/reward"] == 2.0


TWO_BRANCHES = """
from miles_core.api import Message, Status

async def branch(episode):
    messages = await episode.reset()
    await episode.generate(messages)
    await episode.generate([*messages, Message("assistant", "get  c"), Message("user", "and?")])
    await episode.generate(messages)
    return Status.COMPLETED
"""


@pytest.mark.parametrize("matches", [True, False])
async def test_a_match(wired, theirs, play, chat, matches: bool) -> None:
    module = theirs(TWO_BRANCHES + "\ndef spaces(stored, given): return stored.text.split() == given.text.split()")
    client = ScriptedClient(chat, "get c", "more", "end")
    match = f"{module}:spaces" if matches else "exact"
    await play(wired(f"rollout.generate={module}:branch", f"session.match={match}"), client=client)
    continued = [prompt for prompt in client.prompts if "and?" in prompt]
    assert all(("get c<|im_end|>" if matches else "get  c<|im_end|>") in prompt for prompt in continued)


@pytest.mark.parametrize(("pick", "text"), [("last", "end"), ("longest", "more"), ("{}:first", "get c")])
async def test_a_pick(wired, theirs, play, pick: str, text: str) -> None:
    module = theirs(TWO_BRANCHES + "\ndef first(turns): return turns[0]")
    wiring = wired(f"rollout.generate={module}:branch", f"session.pick={pick.format(module)}")
    group = await play(wiring, "get c", "more", "end")
    assert [(t.status, t.response) for t in group.trajectories] == [(Status.COMPLETED, text)] * 2
