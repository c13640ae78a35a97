from __future__ import annotations

from types import ModuleType

import pluggy
import pytest

from miles_core.errors import PluginError
from miles_core.plugins.lifecycle.implementations import SPECS, implementations


def module(source: str) -> ModuleType:
    made = ModuleType("acme_hooks")
    exec(source, {"hookimpl": pluggy.HookimplMarker("miles")}, vars(made))
    return made


def found(source: str) -> dict[str, tuple[str, ...]]:
    return {one.hook: one.parameters for one in implementations(module(source), "acme")}


def test_a_hook_takes_what_it_names_and_other_attributes_are_not_looked_at():
    source = (
        "import miles_core\n"
        "miles_per_hour = 3\n"
        "def helper(): pass\n"
        "def miles_run_started(): pass\n"
        "async def miles_step_finished(*, metrics): pass\n"
        "@hookimpl\n"
        "def miles_batch_ready(batch, step): pass\n"
    )
    assert found(source) == {
        "miles_batch_ready": ("batch", "step"),
        "miles_run_started": (),
        "miles_step_finished": ("metrics",),
    }


def test_an_object_with_methods_implements_hooks_too():
    class Watcher:
        def miles_step_finished(self, step):
            return step

        @staticmethod
        def miles_run_started(run):
            return run

    (started, finished) = implementations(Watcher(), "acme")
    assert started.bound({"run": 1})() == 1
    assert finished.bound({"step": 2, "metrics": {}})() == 2


def test_a_hook_of_another_version_may_be_marked_as_optional():
    assert found("@hookimpl(optionalhook=True)\ndef miles_of_tomorrow(x): pass\ndef miles_run_started(): pass") == {
        "miles_run_started": ()
    }


@pytest.mark.parametrize(
    ("source", "cause", "remedy"),
    [
        ("def miles_step_finishd(step): pass", "unknown hook 'miles_step_finishd'", "'miles_step_finished'"),
        ("def miles_step_finished(stpe): pass", "offers step, metrics", "'step'"),
        ("def miles_step_finished(step=0): pass", "has a default", "Remove the default"),
        ("def miles_step_finished(*args): pass", "no hook can fill", "step, metrics"),
        ("def miles_step_finished(**rest): pass", "no hook can fill", "step, metrics"),
        ("def miles_step_finished(step, /): pass", "no hook can fill", "step, metrics"),
        ("def miles_step_finished(step): yield", "is a generator", "yield"),
        ("async def miles_step_finished(step): yield", "is a generator", "yield"),
        ("miles_step_finished = dict()", "is a dict", "def miles_step_finished"),
        ("import functools\nmiles_step_finished = functools.partial(print)", "is a partial", "def miles_step_finished"),
        ("async def miles_register(registry): pass", "without await", "def miles_register"),
        ("async def miles_add_commands(app): pass", "without await", "def miles_add_commands"),
        ("@hookimpl(tryfirst=True)\ndef miles_step_finished(step): pass", "tryfirst", "Take tryfirst out"),
        ("@hookimpl(trylast=True)\ndef miles_step_finished(step): pass", "trylast", "Take trylast out"),
        ("@hookimpl(wrapper=True)\ndef miles_step_finished(step): yield", "wrapper", "Take wrapper out"),
        ("@hookimpl(hookwrapper=True)\ndef miles_step_finished(step): yield", "hookwrapper", "Take hookwrapper out"),
        ("@hookimpl(specname='miles_run_started')\ndef watch(run): pass", "watch is marked", "miles_"),
    ],
)
def test_what_would_fail_in_silence_is_refused(source, cause, remedy):
    with pytest.raises(PluginError) as caught:
        found(source)
    assert cause in caught.value.message
    assert remedy in caught.value.remedy


def test_every_hook_is_documented():
    from miles_core.plugins.lifecycle import hookspecs

    assert len(SPECS) == 17
    assert [hook for hook in SPECS if not getattr(hookspecs, hook).__doc__] == []
    assert SPECS.keys() >= hookspecs.ACTING
