"""The loop on scripted planes: order, staleness, empty steps and failures."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import anyio
import pytest
from rich.console import Console

from miles_core.app.loop import TrainingLoop
from miles_core.config.load import load_config
from miles_core.errors import EngineError, PluginError, RolloutError
from miles_core.rollout.buffer import StepBuffer
from miles_core.rollout.scheduler import StepRollout
from miles_core.telemetry.progress import TrainingProgress
from miles_core.types import Group, Manifest, Message, Reward, Status, Task, Trajectory
from miles_core.weights.publish import PublishResult

pytestmark = pytest.mark.anyio
CONFIG = Path(__file__).parents[2] / "examples" / "quickstart" / "config.toml"
TASK = Task("t", (Message("user", "q"),))


class Planes:
    """Scheduler, trainer, publisher and tracker in one, with a log of what happened."""

    def __init__(self, rewards, *, fail_at: tuple[str, int] | None = None, hang: bool = False, causes=None) -> None:
        self.rewards, self.fail_at, self.hang, self.causes = rewards, fail_at, hang, causes or {}
        self.events: list[tuple[str, int]] = []
        self.logged: list[dict[str, float]] = []
        self.closed = False

    async def event(self, name: str, number: int) -> None:
        self.events.append((name, number))
        await anyio.lowlevel.checkpoint()
        if self.fail_at == (name, number):
            raise EngineError(f"{name} {number} failed")

    async def step(self, step: int) -> StepRollout:
        await self.event("generate", step)
        if self.hang:
            await anyio.sleep_forever()
        rewards = self.rewards(step)
        trajectories = tuple(
            Trajectory(f"x{i}", TASK, (), (), Status.COMPLETED, Reward(r)) for i, r in enumerate(rewards)
        )
        group = Group("g", 0, TASK, trajectories)
        kept = (group,) if len(set(rewards)) > 1 else ()
        dropped = Counter() if kept else Counter(equal_rewards=1)
        return StepRollout(step, (group,), kept, dropped + Counter(dict.fromkeys(self.causes, 1)), self.causes)

    async def train_step(self, step):
        await self.event("train", step.step)
        self.rate = step.learning_rate
        return {"train/loss": 0.0}

    async def publish(self, version: int) -> PublishResult:
        await self.event("publish", version)
        return PublishResult(Manifest(version, 1, 4, ("x",)), 0.01)

    async def save(self, step: int) -> None:
        await self.event("save", step)

    def log(self, step, metrics) -> None:
        self.logged.append({"step": step, **metrics})

    def close(self) -> None:
        self.closed = True


def make(planes: Planes, *, max_staleness: int = 0, **overrides) -> TrainingLoop:
    sets = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
    progress = TrainingProgress(3, Console(file=io.StringIO()))
    return TrainingLoop(
        load_config(CONFIG, ["run.steps=3", *sets]).config,
        planes,
        StepBuffer(max_staleness),
        planes,
        planes,
        trackers=[planes],
        progress=progress,
        save=planes.save,
        dump=lambda rollout: None,
    )


async def test_synchronous_steps_come_strictly_one_after_the_other() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    outcome = await make(planes).run()
    expected = [(name, step + (name == "publish")) for step in range(3) for name in ("generate", "train", "publish")]
    assert planes.events == [*expected, ("save", 3)]
    assert (outcome.steps, outcome.version, outcome.solved) == (3, 3, False)
    assert [row["weights/version"] for row in planes.logged] == [1, 2, 3]


async def test_with_staleness_one_the_next_step_is_generated_while_this_one_is_trained() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    await make(planes, max_staleness=1).run()
    assert planes.events.index(("generate", 1)) < planes.events.index(("publish", 1))
    assert planes.events.index(("publish", 1)) < planes.events.index(("generate", 2))


async def test_the_learning_rate_decays_to_its_final_fraction() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    await make(planes, run__steps=10, optimizer__learning_rate=0.5).run()
    assert planes.rate == pytest.approx(0.5 * (1 - 0.9 * 9 / 10))


async def test_checkpoints_come_at_their_interval_and_at_the_end() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    await make(planes, run__steps=5, checkpoint__every=2).run()
    assert [number for name, number in planes.events if name == "save"] == [2, 4, 5]


async def test_empty_steps_of_full_reward_mean_solved() -> None:
    planes = Planes(lambda step: (0.0, 1.0) if step == 0 else (1.0, 1.0))
    outcome = await make(planes, run__steps=50).run()
    assert (outcome.steps, outcome.version, outcome.solved) == (3, 1, True)
    assert ("save", 3) in planes.events


async def test_an_empty_step_between_full_ones_is_only_counted() -> None:
    planes = Planes(lambda step: (1.0, 1.0) if step == 1 else (0.0, 1.0))
    outcome = await make(planes).run()
    assert (outcome.steps, outcome.version) == (3, 2)
    assert planes.logged[1]["rollout/dropped/equal_rewards"] == 1


async def test_empty_steps_of_low_reward_end_the_run_with_counts_and_reward() -> None:
    planes = Planes(lambda step: (0.25, 0.25))
    with pytest.raises(RolloutError, match=r"2 steps in a row .*2 equal_rewards.*0\.250"):
        await make(planes, run__steps=50).run()
    assert ("save", 2) in planes.events, "what was learned before is not lost"
    assert [row["step"] for row in planes.logged] == [1, 2]


async def test_full_reward_of_those_that_could_be_scored_is_not_solved() -> None:
    planes = Planes(lambda step: (1.0, 1.0), causes={"unscored": "judge: 401 bad key"})
    with pytest.raises(RolloutError, match="unscored: judge: 401 bad key"):
        await make(planes, run__steps=50).run()


@pytest.mark.parametrize("failure", [("generate", 1), ("train", 1), ("publish", 2), ("save", 3)])
@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_any_failure_is_raised_alone_and_nothing_hangs(failure: tuple[str, int], max_staleness: int) -> None:
    planes = Planes(lambda step: (0.0, 1.0), fail_at=failure)
    with anyio.fail_after(5), pytest.raises(EngineError, match=f"{failure[0]} {failure[1]} failed"):
        await make(planes, max_staleness=max_staleness).run()


async def test_a_tracker_that_fails_is_named_and_its_close_hides_nothing() -> None:
    class Broken(Planes):
        def log(self, step, metrics):
            raise ValueError("boom")

        def close(self):
            raise RuntimeError("close boom")

    planes = Broken(lambda step: (0.0, 1.0))
    loop = make(planes)
    with pytest.raises(PluginError, match=r"tracker .*Broken: log\(\) raised ValueError: boom"):
        await loop.run()
    loop.close()


async def test_cancelling_ends_both_tasks() -> None:
    planes = Planes(lambda step: (0.0, 1.0), hang=True)
    with anyio.move_on_after(0.1) as scope:
        await make(planes).run()
    assert scope.cancelled_caught
