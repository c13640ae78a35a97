"""What a user meets with installed plugins, good and bad: the commands, and the calls of a run."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import anyio
import numpy as np
import pytest

from miles_core.kinds import PluginContext
from miles_core.lib.plugin_calls import PluginCalls
from miles_core.plugins import Hub
from miles_core.rollout.scoring import Scorer, WeightedReward
from miles_core.testing.builders import make_trajectory

GOOD = "def exact(trajectory): return 1.0\n"


def one(user, name: str, version: str, entry: str, value: str) -> None:
    user.install(name, version, {"miles.reward_models": {entry: value}})


def test_a_name_that_two_distributions_offer_is_refused_naming_both_whichever_lies_first(user) -> None:
    user.module("good_mod", GOOD)
    one(user, "other", "1.0", "exact", "good_mod:exact")
    one(user, "good", "1.0", "exact", "good_mod:exact")
    second = user.folder.parent / "second"
    second.mkdir()
    shutil.move(user.folder / "other-1.0.dist-info", second)
    answers = []
    for path in ([user.folder, second], [second, user.folder]):
        user.path = [str(folder) for folder in path]
        answers.append(user.miles("plugins", "show", "exact"))
    assert [answer.returncode for answer in answers] == [1, 1]
    assert answers[0].stderr == answers[1].stderr
    assert "Write one of: good/exact, other/exact" in answers[0].stderr
    assert "good/exact, other/exact" in user.miles("plugins", "list").stderr
    assert user.miles("plugins", "show", "good/exact").returncode == 0


def test_a_plugin_that_cannot_be_imported_harms_no_other_and_says_why_when_it_is_asked_for(user) -> None:
    user.module("good_mod", GOOD)
    user.module("broken_mod", "import does_not_exist_xyz")
    one(user, "healthy", "1.0", "exact", "good_mod:exact")
    one(user, "broken", "2.0", "wrong", "broken_mod:exact")
    assert [row["name"] for row in (*user.rows("healthy"), *user.rows("broken"))] == ["exact", "wrong"]
    assert user.miles("plugins", "show", "exact").returncode == 0
    shown, doctor = user.miles("plugins", "show", "wrong"), user.miles("plugins", "doctor")
    for text in (shown.stderr, doctor.stdout + doctor.stderr):
        for word in ("'wrong'", "distribution broken 2.0", "ModuleNotFoundError: No module named 'does_not_exist_xyz'"):
            assert word in text
    assert (shown.returncode, doctor.returncode) == (1, 1)


def test_a_missing_attribute_is_named_with_module_and_distribution(user) -> None:
    user.module("noattr_mod", "x = 1")
    one(user, "noattr", "1.0", "bad", "noattr_mod:missing")
    for done in (user.miles("plugins", "show", "bad"), user.miles("plugins", "doctor")):
        text = done.stdout + done.stderr
        assert "module 'noattr_mod' has no attribute 'missing'" in text
        assert "distribution noattr 1.0" in text
        assert done.returncode == 1


def test_a_file_name_in_place_of_a_module_gets_the_hint_to_drop_it(user) -> None:
    user.module("good_mod", GOOD)
    one(user, "files", "1.0", "bv", "good_mod.py:exact")
    assert "Drop .py" in user.miles("plugins", "show", "bv").stderr


def test_what_is_not_callable_is_refused_when_it_is_loaded(user) -> None:
    user.module("noattr_mod", "x = 1")
    one(user, "noattr", "1.0", "nc", "noattr_mod:x")
    assert "is 1 of type int, which is not callable" in user.miles("plugins", "show", "nc").stderr


def test_a_name_that_nothing_answers_to_stops_the_run_at_once_and_lists_what_there_is(user) -> None:
    user.module("good_mod", GOOD)
    one(user, "good", "1.0", "my_exact", "good_mod:exact")
    config = Path(__file__).parents[2] / "examples" / "quickstart" / "config.toml"
    done = user.miles("train", str(config), "--set", "rewards.0.use=my_reward", "--set", "rewards.0.min_turns=1")
    assert done.returncode == 1
    assert "no reward model is called 'my_reward'" in done.stderr
    assert "my_exact" in done.stderr
    assert not (user.folder / "runs").exists(), "nothing was started"


@pytest.mark.parametrize("first", ["site", "source"])
def test_a_stale_egg_info_does_not_hide_an_editable_install(user, first: str) -> None:
    user.module("good_mod", GOOD)
    one(user, "edit", "2.0", "exact", "good_mod:exact")
    source = user.folder.parent / "src"
    (source / "edit.egg-info").mkdir(parents=True)
    (source / "edit.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: edit\nVersion: 1.0\n")
    user.path = [str(user.folder), str(source)][:: 1 if first == "site" else -1]
    assert [row["name"] for row in user.rows("edit")] == ["exact"]
    assert user.miles("plugins", "show", "exact").returncode == 0
    doctor = user.miles("plugins", "doctor")
    assert "edit is installed more than once" in doctor.stdout + doctor.stderr


def test_the_empty_folder_of_an_interrupted_uninstall_does_not_hide_the_plugin(user) -> None:
    user.module("good_mod", GOOD)
    one(user, "foo", "2.0", "exact", "good_mod:exact")
    (user.folder / "foo-1.0.dist-info").mkdir()
    assert [(row["name"], row["version"]) for row in user.rows("foo")] == [("exact", "2.0")]


def test_what_a_plugin_prints_while_it_is_imported_is_not_on_stdout(user) -> None:
    user.module("loud_mod", 'print("HELLO FROM PLUGIN")\n' + GOOD)
    one(user, "loud", "1.0", "exact", "loud_mod:exact")
    user.install("loud-hooks", "1.0", {"miles": {"loud": "loud_hooks"}})
    user.module("loud_hooks", 'print("HELLO FROM HOOKS")\ndef miles_register(registry): ...\n')
    shown = user.miles("plugins", "show", "exact", "--json")
    json.loads(shown.stdout)
    assert "HELLO FROM PLUGIN" in shown.stderr
    json.loads(user.miles("plugins", "list", "--json").stdout)


def test_a_plugin_may_use_the_hub_while_it_is_imported(user) -> None:
    user.module("good_mod", GOOD)
    user.module(
        "nested_mod",
        "from miles_core.plugins import Hub\nhub = Hub.discover()\n"
        "exact = hub.load(hub.resolve('reward_models', 'inner'))\ndef outer(trajectory): return 1.0\n",
    )
    user.install("nested", "1.0", {"miles.reward_models": {"inner": "good_mod:exact", "outer": "nested_mod:outer"}})
    done = user.miles("plugins", "show", "outer")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_package_that_declares_no_version_of_miles_is_accepted_and_marked(user) -> None:
    user.module("good_mod", GOOD)
    one(user, "good", "1.0", "exact", "good_mod:exact")
    assert [row["state"] for row in user.rows("good")] == ["undeclared"]
    assert user.miles("plugins", "show", "exact").returncode == 0


def test_extras_in_an_entry_point_are_no_obstacle(user) -> None:
    user.module("good_mod", GOOD)
    one(user, "good", "1.0", "ex", "good_mod:exact [gpu]")
    assert user.miles("plugins", "show", "ex").returncode == 0


def test_one_broken_entry_of_a_distribution_does_not_drop_the_others(user) -> None:
    user.module("m", "def ok(trajectory): return 1.0")
    user.module("m2", "raise RuntimeError('not today')")
    user.install("several", "1.0", {"miles.reward_models": {"a": "m:ok", "b": "m2:broken", "c": "m:ok"}})
    assert [row["name"] for row in user.rows("several")] == ["a", "b", "c"]
    assert [user.miles("plugins", "show", name).returncode for name in "abc"] == [0, 1, 0]
    doctor = user.miles("plugins", "doctor")
    assert "RuntimeError: not today" in doctor.stdout + doctor.stderr


@pytest.fixture
def score(user, monkeypatch):
    """Score trajectories with a function of an installed package, as a run does."""
    monkeypatch.syspath_prepend(str(user.folder))

    async def run(source: str, items, timeout: float = 5.0):
        user.module("scored_mod", source)
        one(user, "scored", "1.0", "fn", "scored_mod:fn")
        hub = Hub.discover(path=[str(user.folder)])
        ref = hub.resolve("reward_models", "fn")
        model = hub.create("reward_models", ref, None, PluginContext())
        calls = PluginCalls(ref.qualified_name, f"reward model {ref.label}")
        return await Scorer([WeightedReward("fn", model, timeout=timeout, calls=calls)]).score(items)

    yield run
    sys.modules.pop("scored_mod", None)


def trajectories(count: int):
    return [make_trajectory(id=str(index)) for index in range(count)]


@pytest.mark.anyio
async def test_a_function_that_takes_less_than_the_host_offers_is_called_with_what_it_takes(score) -> None:
    [scored] = await score("def fn(sample): return 1", trajectories(1))
    assert scored.reward.value == 1.0


@pytest.mark.anyio
@pytest.mark.parametrize("source", ["def fn(s): return 1", "async def fn(s): return 1"])
async def test_sync_and_async_rewards_are_the_same(score, source: str) -> None:
    [scored] = await score(source, trajectories(1))
    assert scored.reward.value == 1.0


@pytest.mark.anyio
async def test_a_blocking_reward_neither_serialises_nor_stops_generation(score) -> None:
    beats, running = 0, True

    async def generation() -> None:
        nonlocal beats
        while running:
            await anyio.sleep(0.005)
            beats += 1

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(generation)
        scored = await score("import time\ndef fn(s):\n    time.sleep(0.2)\n    return 1", trajectories(32))
        running = False
    assert [item.reward.value for item in scored] == [1.0] * 32
    assert time.perf_counter() - started < 4, "one after the other they take 6.4 s"
    assert beats > 5, "none, where the event loop waits for a reward"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "change", ["t.samples[0].tokens.clear()", "t.samples[0].tokens[:] = 5", "t.task.metadata['x'] = 1"]
)
async def test_a_reward_that_changes_its_arguments_changes_nothing_that_is_trained(score, change: str) -> None:
    [item] = trajectories(1)
    before = [np.array(sample.tokens) for sample in item.samples]
    [scored] = await score(f"def fn(t):\n    {change}\n    return 1", [item])
    assert scored.reward.value is None
    assert all(np.array_equal(sample.tokens, old) for sample, old in zip(scored.samples, before, strict=True))
    assert "x" not in scored.task.metadata


@pytest.mark.anyio
async def test_a_reward_that_never_returns_costs_its_own_sample_and_nothing_else(score) -> None:
    source = "import math, asyncio\nasync def fn(t):\n    if t.id == '3': await asyncio.sleep(math.inf)\n    return 1"
    started = time.perf_counter()
    scored = await score(source, trajectories(8), timeout=0.3)
    assert time.perf_counter() - started < 5
    assert [item.reward.value for item in scored] == [1.0] * 3 + [None] + [1.0] * 4
    assert scored[3].reward.reason == "reward model fn (scored 1.0): took longer than 0.3 s"
