"""What plugins are given cannot change what is trained."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from miles_core.kinds.base import PluginContext
from miles_core.kinds.filters import BufferedGroup, Verdict
from miles_core.kinds.reward_models import adapt
from miles_core.lib.archive import dump_archive
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.rollout.filtering import Drops, FilterChain, NamedFilter
from miles_core.rollout.scoring import Scorer, WeightedReward
from miles_core.types import Group, Message, Reward, RoutingTrace, Status, Task, Trajectory
from miles_core.types.records import to_record

from .conftest import make_trajectory

pytestmark = pytest.mark.anyio

CHANGES = {
    "tokens cleared": lambda t: t.samples[0].tokens.clear(),
    "a token": lambda t: t.samples[0].tokens.__setitem__(0, 5),
    "the loss mask": lambda t: t.samples[0].loss_mask.fill(1),
    "logprobs": lambda t: np.add(t.samples[0].logprobs, 1, out=t.samples[0].logprobs),
    "routing": lambda t: t.samples[0].routing.experts.__setitem__(0, 1),
    "media tensors": lambda t: t.samples[0].media_tensors["pixels"].fill(7),
    "media": lambda t: t.samples[0].media_tensors.update(other=1),
    "a field": lambda t: setattr(t.samples[0], "tokens", np.zeros(1)),
    "task metadata": lambda t: t.task.metadata.__setitem__("x", 1),
    "nested metadata": lambda t: t.task.metadata["list"].append(1),
    "tools": lambda t: t.task.tools[0].update(name="y"),
    "messages": lambda t: t.messages.append(Message("user", "more")),
    "a message": lambda t: t.messages[0].extra.update(x=1),
    "tool calls": lambda t: t.messages[-1].tool_calls[0]["function"].update(name="y"),
    "info": lambda t: t.info["list"].append(1),
    "reward components": lambda t: t.reward.components.update(x=1.0),
    "samples": lambda t: t.samples.clear(),
}


def trajectory(name: str = "t") -> Trajectory:
    """One whose every field could be changed, as an agent or a reader of other data might make it."""
    made = make_trajectory(name, 1.0)
    routing = RoutingTrace(np.zeros((4, 1, 2), np.uint8), (0,))
    sample = replace(made.samples[0], routing=routing, media_tensors={"pixels": np.zeros(3)})
    task = Task("t0", (Message("user", "q"),), tools=({"name": "x"},), metadata={"list": [1]})
    called = Message("assistant", "2", tool_calls=({"function": {"name": "x"}},))
    return replace(
        made,
        task=task,
        messages=(Message("user", "q", extra={"a": [1]}), called),
        samples=(sample,),
        reward=Reward(1.0, None, {"old": 1.0}),
        info={"list": [1]},
    )


def trained(value: Trajectory | Group) -> bytes:
    return dump_archive(to_record(value))


@pytest.fixture(params=CHANGES)
def change(request):
    return CHANGES[request.param]


async def test_a_reward_model_cannot_change_what_it_scores(change) -> None:
    item, refused = trajectory(), []

    def grade(shown):
        try:
            change(shown)
        except (TypeError, ValueError, AttributeError) as error:
            refused.append(error)
        return 1.0

    before = trained(item)
    [scored] = await Scorer([WeightedReward("r", adapt(grade)(None, PluginContext()))]).score([item])
    assert trained(item) == before
    assert len(refused) == 1, "it is told, not left to believe that it worked"
    assert scored.reward == Reward(1.0, None, {"r": 1.0})
    assert trained(replace(scored, reward=item.reward, samples=item.samples)) == before


@pytest.mark.parametrize("stage", ["sample", "group", "buffer"])
async def test_a_filter_cannot_change_what_it_judges(change, stage: str) -> None:
    group, refused = Group("g", 0, trajectory().task, (trajectory("a"), trajectory("b"))), []

    class Meddler:
        def __init__(self) -> None:
            self.stage = stage

        def keep(self, item) -> Verdict:
            shown = item.group if isinstance(item, BufferedGroup) else item
            try:
                change(shown.trajectories[0] if isinstance(shown, Group) else shown)
            except (TypeError, ValueError, AttributeError) as error:
                refused.append(error)
            return Verdict(True)

    chain, before = FilterChain([NamedFilter("meddler", Meddler())]), trained(group)
    if stage == "buffer":
        [kept] = await chain.apply_in_buffer([BufferedGroup(group, 0)], Counter())
    else:
        [kept] = await chain.apply([group], Drops())
    assert trained(kept) == trained(group) == before
    assert refused


async def test_a_group_s_trajectories_cannot_be_taken_out_by_a_filter() -> None:
    group = Group("g", 0, trajectory().task, (trajectory("a"),))

    class Meddler:
        stage = "group"

        def keep(self, item: Group) -> Verdict:
            with pytest.raises(AttributeError):
                item.trajectories.clear()  # type: ignore[attr-defined]
            with pytest.raises(AttributeError):
                item.trajectories = ()  # type: ignore[misc]
            return Verdict(True)

    [kept] = await FilterChain([NamedFilter("meddler", Meddler())]).apply([group], Drops())
    assert len(kept.trajectories) == 1


async def test_an_environment_cannot_change_task_or_response() -> None:
    task = Task("t0", (Message("user", "q"),), tools=({"name": "x"},), metadata={"list": [1]})
    response, refused = Message("assistant", "a", extra={"reasoning": ["x"]}), []

    class Meddler:
        def _try(self, change) -> None:
            try:
                change()
            except (TypeError, AttributeError) as error:
                refused.append(error)

        def reset(self, task, seed):
            self._try(lambda: task.tools[0].update(name="y"))
            self._try(lambda: task.metadata["list"].append(2))

        def step(self, response):
            self._try(lambda: response.extra["reasoning"].append("y"))
            raise SystemExit(0)

        def close(self): ...

    runner = EnvironmentRunner(Meddler(), "meddler", 5.0)
    assert await runner.reset(task, 0) is None
    with pytest.raises(Exception, match=r"environment meddler: step\(\) raised RuntimeError: it raised SystemExit: 0"):
        await runner.step(response)
    assert len(refused) == 3
    assert (task.tools, response.extra) == (({"name": "x"},), {"reasoning": ["x"]})


async def test_failed_trajectories_are_not_shown() -> None:
    failed = replace(trajectory(), status=Status.FAILED)
    seen: list[Trajectory] = []
    await Scorer([WeightedReward("r", adapt(seen.append)(None, PluginContext()))]).score([failed])
    assert seen == []
