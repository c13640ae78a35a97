"""The loop on scripted planes: order, staleness, endings, checkpoints and failures."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from miles_core.app.launch import learning_rate
from miles_core.app.loop import LoopParts, TrainingLoop
from miles_core.app.run_state import RunState
from miles_core.app.saving import Saver
from miles_core.config.load import load_config
from miles_core.errors import EngineError, RolloutError
from miles_core.lib.archive import load_archive
from miles_core.plugins.lifecycle.hooks import Hooks
from miles_core.plugins.lifecycle.implementations import Implementation
from miles_core.rollout.buffer import StepBuffer
from miles_core.rollout.filtering import FilterChain
from miles_core.rollout.step import StepRollout
from miles_core.types import Group, Manifest, Message, Reward, Status, Task, Trajectory
from miles_core.weights.publish import PublishResult

pytestmark = pytest.mark.anyio
CONFIG = Path(__file__).parents[2] / "examples" / "quickstart" / "config.toml"
TASK = Task("t", (Message("user", "q"),))


class Planes:
    """Scheduler, trainer, publisher, placement, evaluator and recorder in one, with a log of what happened."""

    def __init__(
        self, rewards, *, fail_at: tuple[str, int] | None = None, hang: bool = False, causes=None, data: int = 10**9
    ) -> None:
        self.rewards, self.fail_at, self.hang, self.causes, self.data = rewards, fail_at, hang, causes or {}, data
        self.events: list[tuple[str, int]] = []
        self.logged: list[dict[str, float]] = []
        self.saved: dict[int, dict] = {}
        self.position = 0
        self.versions: list[int] = []
        self.evaluated: set[int] = set()
        self.warnings: list[str] = []
        self.oldest: list[int] = []
        self.kept: int | None = None
        self.kept_at: dict[str, set[int | None]] = {}
        self.on_step = lambda step: None

    async def event(self, name: str, number: int) -> None:
        self.events.append((name, number))
        self.kept_at.setdefault(name, set()).add(self.kept)
        await anyio.lowlevel.checkpoint()
        if self.fail_at == (name, number):
            raise EngineError(f"{name} {number} failed")

    # the scheduler
    async def step(self, step: int, oldest_version: int) -> StepRollout | None:
        self.oldest.append(oldest_version)
        if step >= self.data:
            return None
        self.position += 1
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
        dropped += Counter(dict.fromkeys(self.causes, 1))
        return StepRollout(step, (group,), kept, dropped, self.causes, {"data/tasks": float(step)})

    def state(self):
        return {"position": self.position}

    # the trainer
    async def train_step(self, step, dump_to=None):
        await self.event("train", step.step)
        self.rate = step.learning_rate
        return {"train/loss": 0.0}

    async def save(self, path, files, *, keep) -> None:
        number = int(path.name.removeprefix("step-"))
        await self.event("save", number)
        self.saved[number] = files

    async def check_save(self) -> None: ...

    async def wait_save(self) -> None: ...

    # publisher, placement, evaluator
    async def publish(self, version: int) -> PublishResult:
        await self.event("publish", version)
        return PublishResult(Manifest(version, 1, 4, {"x:float32": "00"}), {"transfer": 0.01})

    @asynccontextmanager
    async def kept_up(self, version: int):
        self.kept = version
        yield
        self.kept = None

    async def metrics(self):
        return {"engine/restarts": 0.0}

    @asynccontextmanager
    async def training(self):
        await self.event("rest", 0)
        yield
        await self.event("wake", 0)

    def has_evaluated(self, step: int) -> bool:
        return step in self.evaluated

    async def evaluate(self, step: int):
        await self.event("eval", step)
        return {"eval/reward": 0.5}


class Records:
    """The recorder."""

    def __init__(self, planes: Planes) -> None:
        self.planes = planes

    def phase(self, name: str) -> None: ...

    def step(self, step, rollout, metrics, *, version) -> None:
        self.planes.versions.append(version)
        self.planes.logged.append({"step": step, **metrics})
        self.planes.on_step(step)

    def evaluation(self, step, metrics) -> None:
        self.planes.logged.append({"step": step, **metrics})

    def warn(self, text: str) -> None:
        self.planes.warnings.append(text)

    def finish(self) -> None: ...


def make(
    planes: Planes, *, max_staleness: int = 0, state: RunState | None = None, hooks: Hooks | None = None, **overrides
) -> TrainingLoop:
    sets = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
    config = load_config(CONFIG, ["run.steps=3", f"rollout.max_staleness={max_staleness}", *sets]).config
    state = state or RunState()
    buffer = StepBuffer(max_staleness, FilterChain([]), trained=state.step, skipped=state.skipped)
    hooks = hooks or Hooks()

    async def on_saved(step: int, path: Path) -> None:
        await hooks.observe("miles_checkpoint_saved", step=step, path=str(path))

    saver = Saver(
        planes, Path("x"), config.checkpoint, planes, buffer, facts={}, last_step=state.step, on_saved=on_saved
    )
    evaluator = planes if config.eval is not None else None
    parts = LoopParts(
        planes, buffer, planes, planes, planes, saver, Records(planes), learning_rate(config), evaluator, hooks=hooks
    )
    return TrainingLoop(config, parts, state)


def noting(planes: Planes) -> Hooks:
    """Hooks whose calls are events of the planes."""
    numbers = {
        "miles_rollout_finished": "step",
        "miles_weights_published": "version",
        "miles_step_finished": "step",
        "miles_checkpoint_saved": "step",
    }

    def implementation(hook: str, parameter: str) -> Implementation:
        async def note(**given: int) -> None:
            planes.events.append((hook.removeprefix("miles_"), given[parameter]))

        return Implementation(hook, note, (parameter,), "watcher")

    return Hooks(implementation(*item) for item in numbers.items())


def names(planes: Planes, *wanted: str) -> list[tuple[str, int]]:
    return [event for event in planes.events if event[0] in wanted]


async def test_synchronous_steps_come_strictly_one_after_the_other() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    outcome = await make(planes).run()
    expected = [(name, step + (name == "publish")) for step in range(3) for name in ("generate", "train", "publish")]
    assert names(planes, "generate", "train", "publish", "save") == [*expected, ("save", 3)]
    assert (outcome.steps, outcome.updates, outcome.ending) == (3, 3, "steps")
    assert [row["weights/version"] for row in planes.logged] == [1, 2, 3]


async def test_lifecycle_hooks_are_called_once_each_where_they_say() -> None:
    planes = Planes(lambda step: (0.0, 1.0) if step else (1.0, 1.0))
    await make(planes, hooks=noting(planes), checkpoint__every=1, run__steps=2).run()
    hooks = ("rollout_finished", "weights_published", "step_finished", "checkpoint_saved")
    assert names(planes, *hooks) == [
        ("rollout_finished", 0),
        ("step_finished", 1),  # no group is left: nothing to publish
        ("rollout_finished", 1),
        ("weights_published", 1),
        ("checkpoint_saved", 1),  # the trainer says so when it is asked after the next step
        ("step_finished", 2),
        ("checkpoint_saved", 2),
    ]
    for cause, told in ((("publish", 1), ("weights_published", 1)), (("save", 2), ("checkpoint_saved", 2))):
        assert planes.events.index(cause) < planes.events.index(told)


async def test_a_checkpoint_that_failed_is_never_told_as_saved() -> None:
    planes = Planes(lambda step: (0.0, 1.0), fail_at=("save", 2))
    with pytest.raises(EngineError):
        await make(planes, hooks=noting(planes), checkpoint__every=1, run__steps=3).run()
    assert names(planes, "checkpoint_saved") == [("checkpoint_saved", 1)]


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
    assert (outcome.steps, outcome.updates, outcome.ending) == (3, 1, "solved")
    assert ("save", 3) in planes.events


async def test_an_empty_step_between_full_ones_is_only_counted() -> None:
    planes = Planes(lambda step: (1.0, 1.0) if step == 1 else (0.0, 1.0))
    outcome = await make(planes).run()
    assert (outcome.steps, outcome.updates) == (3, 2)
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


async def test_engines_that_come_back_are_updated_while_the_trainer_rests_and_never_while_it_trains() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    evals = '{every=1, data={use="jsonl", path="x"}}'
    await make(planes, eval=evals).run()
    assert planes.kept_at["train"] == planes.kept_at["publish"] == {None}
    assert planes.kept_at["eval"] == {1, 2, 3}
    assert planes.kept_at["generate"] >= {0, 1}
    assert planes.logged[0]["engine/restarts"] == 0.0


@pytest.mark.parametrize("failure", [("generate", 1), ("train", 1), ("publish", 2), ("save", 3)])
@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_any_failure_is_raised_alone_and_nothing_hangs(failure: tuple[str, int], max_staleness: int) -> None:
    planes = Planes(lambda step: (0.0, 1.0), fail_at=failure)
    with anyio.fail_after(5), pytest.raises(EngineError, match=f"{failure[0]} {failure[1]} failed"):
        await make(planes, max_staleness=max_staleness).run()


async def test_cancelling_ends_both_tasks() -> None:
    planes = Planes(lambda step: (0.0, 1.0), hang=True)
    with anyio.move_on_after(0.1) as scope:
        await make(planes).run()
    assert scope.cancelled_caught


async def test_engines_rest_while_the_trainer_trains_and_wake_before_weights_are_published() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    await make(planes, run__steps=1).run()
    assert [name for name, _ in planes.events][:5] == ["generate", "rest", "train", "wake", "publish"]


async def test_stopping_ends_after_the_running_step_with_a_checkpoint() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    loop = make(planes, run__steps=50)
    planes.on_step = lambda step: loop.stop() if step == 2 else None
    outcome = await loop.run()
    assert (outcome.steps, outcome.ending) == (2, "stopped")
    assert names(planes, "save") == [("save", 2)]


async def test_the_end_of_the_data_ends_the_run_with_a_checkpoint() -> None:
    planes = Planes(lambda step: (0.0, 1.0), data=2)
    outcome = await make(planes, run__steps=50).run()
    assert (outcome.steps, outcome.ending) == (2, "data")
    assert names(planes, "save") == [("save", 2)]


async def test_the_hours_count_those_before_a_resume() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    state = RunState(step=4, version=4, seconds=3600.0)
    outcome = await make(planes, run__steps=50, run__max_hours=1.0, state=state).run()
    assert (outcome.steps, outcome.ending) == (4, "hours")
    fresh = Planes(lambda step: (0.0, 1.0))
    outcome = await make(fresh, run__steps=50, run__max_hours=1e-9).run()
    assert (outcome.steps, outcome.ending) == (1, "hours")


async def test_a_resumed_run_does_the_steps_that_are_left_and_no_step_twice() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    outcome = await make(planes, run__steps=20, state=RunState(step=10, version=8)).run()
    assert names(planes, "generate") == [("generate", step) for step in range(10, 20)]
    assert names(planes, "publish")[0] == ("publish", 9)
    assert (outcome.steps, outcome.updates) == (20, 18)
    assert planes.logged[0]["step"] == 11


async def test_a_checkpoint_is_of_the_moment_before_the_next_step_begins() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    await make(planes, run__steps=3, checkpoint__every=1).run()
    for step, files in planes.saved.items():
        rollout = load_archive(files["state/rollout.npz"])
        assert rollout == {"scheduler": {"position": step}, "buffer": []}
        state = RunState.from_json(json.loads(files["state/run.json"])["state"])
        assert (state.step, state.version, state.last_reward) == (step, step, 0.5)


EVAL = '{data = {use = "jsonl", path = "tasks.jsonl"}, every = 2}'


async def test_evaluations_come_at_their_interval_and_at_the_end_once() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    await make(planes, run__steps=5, eval=EVAL, checkpoint__every=2).run()
    assert names(planes, "eval") == [("eval", 2), ("eval", 4), ("eval", 5)]
    assert [row["step"] for row in planes.logged if "eval/reward" in row] == [2, 4, 5]
    order = names(planes, "publish", "save", "eval", "generate")
    assert order.index(("publish", 2)) < order.index(("save", 2)) < order.index(("eval", 2))
    assert order.index(("eval", 2)) < order.index(("generate", 2)), "weights and engines stay as they are meanwhile"


async def test_an_end_that_no_step_foresaw_is_evaluated_too_but_not_a_stop() -> None:
    planes = Planes(lambda step: (0.0, 1.0), data=3)
    await make(planes, run__steps=50, eval=EVAL).run()
    assert names(planes, "eval", "save") == [("eval", 2), ("save", 3), ("eval", 3)]
    stopped = Planes(lambda step: (0.0, 1.0))
    loop = make(stopped, run__steps=50, eval=EVAL)
    stopped.on_step = lambda step: loop.stop() if step == 3 else None
    await loop.run()
    assert names(stopped, "eval", "save") == [("eval", 2), ("save", 3)]


async def test_an_evaluation_that_cannot_be_scored_is_a_warning_and_the_run_goes_on() -> None:
    class Unscored(Planes):
        async def evaluate(self, step: int):
            await self.event("eval", step)
            raise RolloutError("none of the evaluation's 6 trajectories was scored; the first: 401 bad key")

    planes = Unscored(lambda step: (0.0, 1.0))
    outcome = await make(planes, run__steps=4, eval=EVAL).run()
    assert (outcome.steps, outcome.ending) == (4, "steps")
    assert [warning.split(":")[0] for warning in planes.warnings] == [
        "the evaluation after step 2 failed", "the evaluation after step 4 failed",
    ]  # fmt: skip


async def test_an_engine_that_dies_in_an_evaluation_ends_the_run_and_loses_no_checkpoint() -> None:
    planes = Planes(lambda step: (0.0, 1.0), fail_at=("eval", 2))
    with pytest.raises(EngineError):
        await make(planes, run__steps=50, eval=EVAL, checkpoint__every=2).run()
    assert names(planes, "save") == [("save", 2)]


@pytest.mark.parametrize("done", [False, True])
async def test_an_evaluation_that_a_kill_left_out_is_made_up_for(done: bool) -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    planes.evaluated = {2} if done else set()
    await make(planes, run__steps=4, eval=EVAL, state=RunState(step=2, version=2)).run()
    assert names(planes, "eval") == [("eval", 4)] if done else [("eval", 2), ("eval", 4)]
    assert planes.events[0] == (("generate", 2) if done else ("eval", 2))


async def test_what_was_learned_before_a_bad_row_is_saved() -> None:
    planes = Planes(lambda step: (0.0, 1.0), fail_at=("generate", 3))
    with pytest.raises(EngineError, match="generate 3 failed"):
        await make(planes, run__steps=50, checkpoint__every=0).run()
    assert names(planes, "save") == [("save", 3)]
    broken = Planes(lambda step: (0.0, 1.0), fail_at=("train", 2))
    with pytest.raises(EngineError):
        await make(broken, run__steps=50, checkpoint__every=0).run()
    assert names(broken, "save") == [], "a trainer that failed in a step has no state of any step"


@pytest.mark.parametrize("max_staleness", [0, 1])
async def test_generation_is_told_the_oldest_version_that_its_step_may_be_trained_on(max_staleness: int) -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    await make(planes, run__steps=4, max_staleness=max_staleness).run()
    assert planes.oldest == [step - max_staleness for step in range(4)]
    assert planes.versions == [0, 1, 2, 3], "a step is recorded with the version that it was trained on"


async def test_versions_that_a_resume_skips_make_no_group_older() -> None:
    planes = Planes(lambda step: (0.0, 1.0))
    state = RunState(step=2, version=2)
    state.go_past(4)
    outcome = await make(planes, run__steps=4, max_staleness=1, state=state).run()
    assert planes.versions == [5, 6]
    assert planes.oldest == [1, 2], "the weights of version 5 are those of version 2"
    assert outcome.updates == 4


async def test_empty_steps_in_a_row_are_counted_over_a_resume() -> None:
    planes = Planes(lambda step: (1.0, 1.0))
    await make(planes, run__steps=1).run()
    state = RunState.from_json(json.loads(planes.saved[1]["state/run.json"])["state"])
    outcome = await make(planes, run__steps=50, state=state).run()
    assert (outcome.steps, outcome.ending) == (2, "solved")
