from __future__ import annotations

import asyncio
import sys

import pytest

from miles_core.api import PluginContext, Reward
from miles_core.errors import PluginError
from miles_core.lib.calls import call

REWARDS = "reward_models"


def _load(site, value, source=None, kind=REWARDS, name="exact"):
    site.install("acme-kit", "1.2", {f"miles.{kind}": {name: value}})
    if source is not None:
        site.module("acme_mod", source)
    hub = site.hub()
    return hub.load(hub.resolve(kind, name))


def _failure(site, value, source=None, **names):
    with pytest.raises(PluginError) as caught:
        _load(site, value, source, **names)
    return caught.value


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import does_not_exist_xyz", "ModuleNotFoundError: No module named 'does_not_exist_xyz'"),
        ("x = 1", "AttributeError: module 'acme_mod' has no attribute 'exact'"),
        ("def exact(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_failed_import_names_the_plugin_and_keeps_the_cause(site, source, cause):
    error = _failure(site, "acme_mod:exact", source)
    for part in ("reward model 'exact'", "acme_mod:exact", "acme-kit 1.2", cause):
        assert part in error.message
    assert cause.startswith(type(error.__cause__).__name__)
    assert error.remedy


def test_the_failing_line_of_the_plugin_is_named(site):
    error = _failure(site, "acme_mod:exact", "\n\nimport does_not_exist_xyz")
    assert "acme_mod.py:3" in error.message
    assert "does_not_exist_xyz" in error.remedy


@pytest.mark.parametrize("source", ["def exakt(items): ...", "class Inner: exakt = 1"])
def test_a_mistyped_attribute_is_told_the_nearest_one(site, source):
    target = "acme_mod:Inner.exact" if "Inner" in source else "acme_mod:exact"
    assert _failure(site, target, source).remedy == "Did you mean 'exakt'?"


def test_an_attribute_error_in_the_plugin_s_own_code_gets_no_nearest_name(site):
    assert "Repair acme-kit" in _failure(site, "acme_mod:exact", "import json\njson.exakt = 1\njson.exact").remedy


def test_metadata_of_another_package_is_not_the_plugin_s_fault(site):
    source = "import importlib.metadata\nimportlib.metadata.{}"
    assert "holds nobody-has-it" in _failure(site, "acme_mod:exact", source.format("version('nobody-has-it')")).remedy
    site.install("bad", "1.0", {}).joinpath("entry_points.txt").write_bytes(b"[console_scripts]\n\xff = a:b\n")
    site.module("other_mod", source.format("entry_points()"))
    with pytest.raises(PluginError) as caught:
        site.hub().load(site.hub().resolve(REWARDS, "other_mod:fn"))
    assert "`miles plugins doctor --no-import` says which" in caught.value.remedy


def test_a_broken_plugin_harms_nobody_else_not_even_in_its_own_distribution(site):
    site.install("kit", "1.0", {"miles.reward_models": {"a": "good_mod:fn", "b": "bad_mod:fn"}})
    site.module("good_mod", "def fn(trajectory): return 1.0")
    site.module("bad_mod", "import does_not_exist_xyz")
    hub = site.hub()
    assert [ref.name for ref in hub.refs()] == ["a", "b"]
    with pytest.raises(PluginError):
        hub.load(hub.resolve(REWARDS, "b"))
    assert callable(hub.load(hub.resolve(REWARDS, "a")))


def test_a_file_name_in_a_target_says_to_drop_py(site):
    error = _failure(site, "acme_mod.py:exact", "def exact(t): return 1.0")
    assert "Drop .py" in error.remedy
    assert "acme_mod:exact" in error.remedy


def test_extras_in_a_target_are_legal(site):
    assert callable(_load(site, "acme_mod:exact [gpu]", "def exact(t): return 1.0"))


@pytest.mark.parametrize("value", ["acme_mod", "acme_mod:", "acme mod:exact", ":exact"])
def test_a_malformed_target_fails_at_load_and_says_how_to_write_one(site, value):
    error = _failure(site, value, "def exact(t): return 1.0")
    assert error.remedy == "Write module:attribute."


def test_a_plugin_that_is_not_callable_is_refused_at_load(site):
    error = _failure(site, "acme_mod:x", "x = 1")
    assert "is 1 of type int, which is not callable" in error.message


def test_a_class_without_the_members_of_its_kind_is_refused(site):
    error = _failure(site, "acme_mod:Half", "class Half:\n    scope = 'sample'")
    assert "lacks score" in error.message


def test_every_missing_member_is_in_the_remedy(site):
    error = _failure(site, "acme_mod:Empty", "class Empty: pass")
    assert error.remedy == "Add scope, score to the class Empty, or name it in the table of its kind."


def test_a_middleware_class_needs_its_own_call_not_its_metaclass_s(site):
    error = _failure(site, "acme_mod:M", "class M: pass", kind="router_middlewares", name="m")
    assert "lacks __call__" in error.message


@pytest.mark.parametrize(
    ("kind", "source", "words"),
    [
        (
            "router_middlewares",
            "def __call__(self, scope, receive, send): ...",
            ("__call__ must", "`async def __call__`"),
        ),
        (
            "advantage_estimators",
            "needs = ()\n    async def estimate(self, b): ...",
            ("estimate is a", "`def estimate`"),
        ),
        ("losses", "needs = ()\n    async def loss(self, o, b): ...", ("loss is a coroutine", "`def loss`")),
    ],
)
def test_a_method_that_is_sync_or_async_against_its_kind_is_refused(site, kind, source, words):
    error = _failure(site, "acme_mod:P", f"class P:\n    {source}", kind=kind)
    assert all(word in str(error) for word in (*words, "acme-kit 1.2"))


@pytest.mark.parametrize("kind", ["advantage_estimators", "losses"])
def test_a_coroutine_function_for_a_kind_that_is_not_awaited_is_refused(site, kind):
    error = _failure(site, "acme_mod:exact", "async def exact(*_): ...", kind=kind)
    assert "is a coroutine function" in error.message
    assert error.remedy == "Write `def` instead of `async def`."


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        (
            REWARDS,
            "scope = 'step'\n    async def score(self, items): ...",
            "scope = 'step'; this version runs 'sample' or",
        ),
        ("filters", "stage = 'token'\n    def keep(self, item): ...", "stage = 'token'; this version runs 'sample' or"),
    ],
)
def test_a_scope_or_stage_that_this_version_does_not_run_is_refused(site, kind, source, message):
    assert message in _failure(site, "acme_mod:P", f"class P:\n    {source}", kind=kind).message


def test_members_may_be_inherited_or_annotated(site):
    source = (
        "class A:\n    def __init__(self, config, context): ...\n    async def score(self, items): ...\n"
        "class B(A):\n    scope: str"
    )
    assert _load(site, "acme_mod:B", source).__name__ == "B"


@pytest.mark.parametrize("prefix", ["", "async "])
def test_a_plain_function_is_adapted_and_keeps_its_docstring(site, prefix):
    factory = _load(site, "acme_mod:exact", f'{prefix}def exact(trajectory):\n    """Scores."""\n    return 1')
    assert factory.__doc__ == "Scores."
    assert asyncio.run(call(factory(None, PluginContext()).score, [None])) == [Reward(1.0)]


def test_a_function_for_a_kind_that_needs_a_class_is_refused(site):
    error = _failure(site, "acme_mod:f", "def f(): ...", kind="trackers", name="f")
    assert "it must be a class" in error.message
    assert "log, close" in error.remedy


def test_prints_at_import_go_to_stderr(site, capsys):
    _load(site, "acme_mod:exact", "print('HELLO FROM PLUGIN')\ndef exact(t): return 1.0")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "HELLO FROM PLUGIN" in captured.err


def test_a_plugin_may_ask_a_hub_for_another_one_while_it_is_imported(site):
    site.install("kit", "1.0", {"miles.reward_models": {"outer": "outer_mod:fn", "inner": "inner_mod:fn"}})
    site.module("inner_mod", "def fn(t): return 1.0")
    site.module(
        "outer_mod",
        "from miles_core.plugins import Hub\nimport pathlib\n"
        "hub = Hub.discover(path=[str(pathlib.Path(__file__).parent)])\n"
        "inner = hub.load(hub.resolve('reward_models', 'inner'))\n"
        "def fn(t): return 1.0\n",
    )
    hub = site.hub()
    assert callable(hub.load(hub.resolve(REWARDS, "outer")))


def test_a_plugin_that_asks_for_itself_while_it_is_imported_fails_instead_of_recursing(site):
    source = (
        "from miles_core.plugins import Hub\nimport pathlib\n"
        "hub = Hub.discover(path=[str(pathlib.Path(__file__).parent)])\n"
        "hub.load(hub.resolve('reward_models', 'exact'))\n"
        "def exact(t): return 1.0\n"
    )
    assert "circular import" in _failure(site, "acme_mod:exact", source).message


def test_a_plugin_is_imported_once_per_hub_and_a_failed_one_leaves_no_module(site):
    site.install("kit", "1.0", {"miles.reward_models": {"once": "once_mod:fn"}})
    site.module("once_mod", "raise RuntimeError('not yet')")
    hub = site.hub()
    ref = hub.resolve(REWARDS, "once")
    with pytest.raises(PluginError, match="not yet"):
        hub.load(ref)
    assert "once_mod" not in sys.modules
    site.module("once_mod", "def fn(trajectory): return 1.0  # repaired")
    assert hub.load(ref) is hub.load(ref)
