"""Calling hooks: real modules through the hub, observers and those that act."""

from __future__ import annotations

import logging
import re
import sys
import threading
from types import ModuleType

import anyio
import numpy as np
import pytest

from miles_core.errors import PluginError
from miles_core.plugins.lifecycle.hooks import Hooks
from miles_core.plugins.lifecycle.manager import Manager
from miles_core.plugins.registry import Registry
from miles_core.types import Group, Reward, StepBatch, Task, Trajectory
from miles_core.types.sample import Status

pytestmark = pytest.mark.anyio
STEP = "miles_step_finished"
UNPRINTABLE = """
class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError
"""


@pytest.fixture
def install(site):
    """Install a distribution whose hook module has ``source``; returns the module's name once the hub imported it."""

    def install(source, name="acme", entry="hooks"):
        site.install(name, "1.0", {"miles": {entry: f"{name}_{entry}"}})
        site.module(f"{name}_{entry}", f"seen = []\n{source}")
        return f"{name}_{entry}"

    return install


def seen(module):
    return sys.modules[module].seen


async def test_def_and_async_def_see_the_same_and_def_runs_off_the_event_loop(site, install):
    install("import threading\ndef miles_step_finished(step): seen.append((step, threading.get_ident()))", "plain")
    install(
        "import threading\nasync def miles_step_finished(step): seen.append((step, threading.get_ident()))", "async"
    )
    hooks = site.hub().hooks()
    await hooks.observe(STEP, step=3, metrics={})
    here = threading.get_ident()
    assert seen("async_hooks") == [(3, here)]
    assert [step for step, _ in seen("plain_hooks")] == [3]
    assert seen("plain_hooks")[0][1] != here


async def test_order_is_by_distribution_and_name_whatever_was_installed_first(site):
    site.module("order", "order = []")
    for name, entries in (("b", ("z", "a")), ("a-b", ("x",)), ("a", ("y",))):
        modules = {entry: f"{name.replace('-', '_')}_{entry}" for entry in entries}
        site.install(name.replace("-", "_"), "1.0", {"miles": modules})
        for module in modules.values():
            site.module(module, f"import order\ndef miles_run_started(): order.order.append('{module}')")
    await site.hub().hooks().observe("miles_run_started", run=None)
    assert sys.modules["order"].order == ["a_y", "a_b_x", "b_a", "b_z"]


def test_those_of_miles_hub_come_first():
    manager = Manager()
    for name in ("z/one", "miles-hub/two", "acme/three"):
        module = ModuleType(name)
        module.miles_run_started = lambda: None
        manager.collect(module, name, Registry(name, "1.0"))
    assert [one.label for one in manager.implementations] == ["miles-hub/two", "acme/three", "z/one"]


async def test_an_observer_that_raises_is_one_warning_with_its_name_then_counted(site, install, caplog):
    install("def miles_step_finished(step): raise ValueError('boom')", "bad")
    install("def miles_step_finished(step): raise SystemExit(3)", "exits")
    install("def miles_step_finished(step, metrics): seen.append(step)", "zeta")
    hooks = site.hub().hooks()
    for step in range(25):
        await hooks.observe(STEP, step=step, metrics={})
    assert seen("zeta_hooks") == list(range(25))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings[0] == "miles_step_finished() of hooks (bad 1.0) raised ValueError: boom; the run goes on"
    assert "SystemExit" in warnings[1]
    assert [re.findall(r"\d+th", warning) for warning in warnings] == [[], [], ["10th"], ["10th"]]


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_an_observer_that_never_returns_is_left_behind_and_others_are_called(site, install, caplog, kind):
    wait = "await anyio.sleep_forever()" if kind == "async def" else "release.wait()"
    install(f"import anyio, threading\nrelease = threading.Event()\n{kind} miles_step_finished(step):\n"
            f"    seen.append(step)\n    {wait}", "hangs")  # fmt: skip
    install("def miles_step_finished(step): seen.append(step)", "zeta")
    hooks = site.hub().hooks(timeout=0.05)
    await hooks.observe(STEP, step=1, metrics={})
    await hooks.observe(STEP, step=2, metrics={})
    assert seen("zeta_hooks") == [1, 2]
    assert seen("hangs_hooks") == ([1, 2] if kind == "async def" else [1])  # its thread still runs
    assert "of hooks (hangs 1.0) was not done after 0.05 s (plugins.hook_timeout)" in caplog.text
    sys.modules["hangs_hooks"].release.set()


async def test_an_error_that_cannot_be_printed_is_a_warning_all_the_same(site, install, caplog):
    install(f"{UNPRINTABLE}\ndef miles_step_finished(): raise Unprintable()", "bad")
    module = install("def miles_step_finished(step): seen.append(step)", "zeta")
    await site.hub().hooks().observe(STEP, step=1, metrics={})
    assert seen(module) == [1]
    assert "miles_step_finished() of hooks (bad 1.0) raised" in caplog.text


async def test_an_observer_that_is_slow_is_named(site, install, caplog):
    install("import time\ndef miles_step_finished(step): time.sleep(0.02)")
    await site.hub().hooks(slow_call=0.01).observe(STEP, step=1, metrics={})
    assert "hooks (acme 1.0): miles_step_finished() has been running for 0.01 s (plugins.slow_call" in caplog.text


async def test_two_observers_never_run_at_the_same_time(site, install):
    source = (
        "import threading\n"
        "lock = threading.Lock()\n"
        "def watch(*_):\n"
        "    assert lock.acquire(blocking=False)\n"
        "    seen.append(1)\n"
        "    lock.release()\n"
        "def miles_step_finished(step): watch()\n"
        "def miles_run_started(run): watch()\n"
    )
    module = install(source)
    hooks = site.hub().hooks()
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(lambda: hooks.observe(STEP, step=1, metrics={}))
            tasks.start_soon(lambda: hooks.observe("miles_run_started", run=None))
    assert len(seen(module)) == 40


async def test_without_an_implementation_nothing_is_copied_and_no_thread_starts(site, install, monkeypatch):
    install("def miles_run_started(run): pass")
    hooks = site.hub().hooks()
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread was started"))
    monkeypatch.setattr(
        "miles_core.plugins.lifecycle.hooks.frozen", lambda value: pytest.fail("an argument was copied")
    )
    await hooks.observe(STEP, step=1, metrics={})
    assert STEP not in hooks
    assert "miles_run_started" in hooks


async def test_what_an_observer_gets_cannot_be_changed(site, install, caplog):
    install(
        "def miles_rollout_finished(step, groups, dropped):\n"
        "    for change in (lambda: dropped.update(x=1), lambda: groups.append(1),\n"
        "                   lambda: groups[0].trajectories[0].info.__setitem__('x', 1),\n"
        "                   lambda: setattr(groups[0], 'id', 'x')):\n"
        "        try:\n            change()\n"
        "        except (TypeError, AttributeError):\n            seen.append(True)\n"
    )
    info = {"a": [1]}
    trajectory = Trajectory("t", Task("t", ()), (), (), Status.COMPLETED, Reward(1.0), info=info)
    groups, dropped = [Group("g", 0, trajectory.task, (trajectory,))], {"stale": 1}
    await site.hub().hooks().observe("miles_rollout_finished", step=0, groups=groups, dropped=dropped)
    assert seen("acme_hooks") == [True] * 4, caplog.text
    assert (groups[0].trajectories[0].info, dropped) == ({"a": [1]}, {"stale": 1})
    assert groups[0].trajectories[0] is trajectory


def test_a_hook_that_acts_gets_the_thing_itself_and_its_failure_names_everything(site, install):
    install("def miles_trainer_built(trainer): trainer.append(1)", "a")
    install("async def miles_trainer_built(trainer): trainer.append(2)", "b")
    hooks = site.hub().hooks()
    trainer = Handle()
    hooks.act("miles_trainer_built", trainer=trainer)
    assert trainer.seen == [1, 2]
    install("def miles_trainer_built(trainer): raise KeyError('layers')", "bad")
    with pytest.raises(PluginError, match=r"miles_trainer_built\(\) of hooks \(bad 1.0\) failed: KeyError: 'layers'"):
        site.hub().hooks().act("miles_trainer_built", trainer=Handle())


class Handle:
    def __init__(self):
        self.seen = []

    def append(self, value):
        self.seen.append(value)


def test_a_result_that_nobody_uses_is_an_error(site, install):
    install("def miles_trainer_built(trainer): return trainer")
    with pytest.raises(PluginError, match="returned Handle, which nobody uses"):
        site.hub().hooks().act("miles_trainer_built", trainer=Handle())


def test_a_plugin_that_exits_does_not_end_the_process(site, install):
    install("def miles_config_loaded(config): raise SystemExit(1)")
    with pytest.raises(PluginError, match=r"hooks \(acme 1.0\) rejects the config: SystemExit: 1"):
        site.hub().hooks().act("miles_config_loaded", config=None)


def test_a_plugin_whose_error_cannot_be_printed_is_named(site, install):
    install(f"{UNPRINTABLE}\ndef miles_trainer_built(trainer): raise Unprintable()")
    with pytest.raises(PluginError, match=r"hooks \(acme 1.0\) failed: Unprintable \(its text cannot be had"):
        site.hub().hooks().act("miles_trainer_built", trainer=None)


def test_a_rejection_keeps_its_own_remedy(site, install):
    install("from miles_core.api import ConfigError\ndef miles_config_loaded(config):\n"
            "    raise ConfigError('no runs on Friday', remedy='Wait.')")  # fmt: skip
    with pytest.raises(PluginError, match="rejects the config: no runs on Friday") as caught:
        site.hub().hooks().act("miles_config_loaded", config=None)
    assert caught.value.remedy == "Wait."


def test_a_hook_that_acts_and_takes_long_is_waited_for_and_named(site, install):
    install("def miles_trainer_built(trainer): trainer.told.wait(5)")
    hooks = site.hub().hooks(slow_call=0.01)
    trainer = Handle()
    trainer.told = threading.Event()
    said = []

    class Told(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())
            trainer.told.set()

    handler = Told()
    logging.getLogger("miles.plugins").addHandler(handler)
    hooks.act("miles_trainer_built", trainer=trainer)
    logging.getLogger("miles.plugins").removeHandler(handler)
    assert said == ["miles_trainer_built() of hooks (acme 1.0) has been running for 0.01 s; waiting for it"]


def batch(rewards=(1.0, 2.0)):
    zeros = np.zeros(2)
    return StepBatch(
        np.arange(3), zeros.astype(np.int32), zeros.astype(bool), zeros, zeros, np.array(rewards), zeros, zeros, 2
    )


def any_batch(before, after):
    if not isinstance(after, StepBatch):
        raise ValueError(f"expected a StepBatch, got {type(after).__name__}")
    return after


def test_changes_are_chained_in_order_and_none_keeps_the_batch(site, install):
    source = "from dataclasses import replace\ndef miles_batch_ready(batch, step): "
    install(f"{source}return replace(batch, rewards=batch.rewards * 10)", "a")
    install(f"{source}seen.append(batch.rewards.tolist())", "b")
    install(f"{source}return replace(batch, rewards=batch.rewards + step)", "c")
    changed = site.hub().hooks().change("miles_batch_ready", "batch", any_batch, step=3, batch=batch())
    assert changed.rewards.tolist() == [13.0, 23.0]
    assert seen("b_hooks") == [[10.0, 20.0]]


def test_a_change_in_place_is_refused(site, install):
    install("def miles_batch_ready(batch): batch.rewards[0] = 9")
    given = batch()
    with pytest.raises(PluginError, match=r"miles_batch_ready\(\) of hooks \(acme 1.0\) failed: ValueError.*read-only"):
        site.hub().hooks().change("miles_batch_ready", "batch", any_batch, step=0, batch=given)
    assert given.rewards.tolist() == [1.0, 2.0]
    given.rewards[0] = 5  # ours stay as they were


def test_a_batch_that_is_refused_names_the_plugin(site, install):
    install("def miles_batch_ready(batch): return batch.rewards")
    with pytest.raises(PluginError, match=r"\(acme 1.0\) returned a batch that cannot be used: expected a StepBatch"):
        site.hub().hooks().change("miles_batch_ready", "batch", any_batch, step=0, batch=batch())


def test_where_no_event_loop_runs_observers_are_called_all_the_same(site, install):
    module = install("async def miles_process_started(role, rank): seen.append((role, rank))")
    site.hub().hooks().observe_now("miles_process_started", role="trainer", rank=0)
    assert seen(module) == [("trainer", 0)]


def test_a_module_that_cannot_be_loaded_is_a_warning_and_the_others_are_called(site, install, caplog):
    install("import does_not_exist_xyz", "bad")
    module = install("def miles_process_started(role): seen.append(role)", "good")
    site.hub().hooks().observe_now("miles_process_started", role="router", rank=0)
    assert seen(module) == ["router"]
    assert "does_not_exist_xyz" in caplog.text


def test_one_module_named_twice_is_called_once(site, install, caplog):
    module = install("def miles_process_started(role): seen.append(role)")
    site.install("other", "1.0", {"miles": {"again": module}})
    site.hub().hooks().observe_now("miles_process_started", role="router", rank=0)
    assert seen(module) == ["router"]
    assert "name the same module" in caplog.text


async def test_nobody_is_a_fine_set_of_hooks():
    await Hooks().observe(STEP, step=1, metrics={})
    Hooks().act("miles_trainer_built", trainer=None)
    assert Hooks().change("miles_batch_ready", "batch", any_batch, step=0, batch=1) == 1
