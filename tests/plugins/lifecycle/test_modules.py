"""Hand-written modules of the entry-point group ``miles``."""

from __future__ import annotations

import sys

import pytest

from miles_core.errors import PluginNotFound

FILTERS = "filters"
UNPRINTABLE = "class Unprintable(Exception):\n    def __str__(self): return 1\n"


@pytest.fixture
def install(site):
    def install(source, name="acme", entries=None):
        site.install(name, "1.0", {"miles": {"hooks": f"{name}_hooks"}, **(entries or {})})
        site.module(f"{name}_hooks", source)
        return site.hub()

    return install


def test_a_module_adds_plugins_as_targets_and_as_objects(install):
    hub = install(
        "def miles_register(registry):\n"
        "    for n in (1, 2):\n"
        "        registry.add('filters', f'keep_{n}', lambda group, n=n: n > 1)\n"
        "    registry.add('reward_models', 'lazy', 'never_imported:fn')\n"
    )
    assert hub.refs() == ()
    assert "acme_hooks" not in sys.modules
    ref = hub.resolve(FILTERS, "acme/keep_2")
    assert (ref.distribution, ref.version) == ("acme", "1.0")
    assert hub.create(FILTERS, ref, None, None).keep("group").keep
    assert not hub.create(FILTERS, "keep_1", None, None).keep("group").keep
    assert [ref.name for ref in hub.refs()] == ["keep_1", "keep_2", "lazy"]


def test_what_a_module_prints_goes_to_stderr(install, capsys):
    hub = install("print('AT IMPORT')\ndef miles_register(registry): print('AT REGISTER')")
    hub.refs(computed=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.split("\n")[:2] == ["AT IMPORT", "AT REGISTER"]


def test_a_decorated_hook_and_one_without_parameters_work_too(install):
    install("import pluggy\n@pluggy.HookimplMarker('miles')\ndef miles_register(registry):\n"
            "    registry.add('filters', 'one', 'm:f')")  # fmt: skip
    hub = install("def miles_register(): pass", name="idle")
    assert hub.resolve(FILTERS, "one").target == "m:f"
    assert hub.problems == ()


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import does_not_exist_xyz", "does_not_exist_xyz"),
        ("raise SystemExit(1)", "SystemExit"),
        ("def miles_register(registry):\n    registry.add('filters', 'half', 'm:f')\n    1 / 0", "ZeroDivisionError"),
        ("def miles_register(registry):\n    registry.add('filter', 'f', 'm:f')", "Did you mean 'filters'?"),
        ("def miles_register(registry):\n    registry.add('filters', '', 'm:f')", "expected text"),
        ("def miles_register(registry):\n    registry.add('filters', 'f', 3)", "'module:attribute' or a factory"),
        ("def miles_register(registry):\n    raise GeneratorExit", "GeneratorExit"),
        (f"{UNPRINTABLE}def miles_register(registry):\n    raise Unprintable", "its text cannot be had"),
        ("def miles_register(registry, extra): pass", "extra"),
        ("def miles_register(registry=None): pass", "has a default"),
        ("def miles_regster(registry): pass", "unknown hook 'miles_regster'"),
        ("x = 1", "implements no hook"),
    ],
)
def test_a_broken_module_is_one_problem_leaves_no_half_and_harms_nobody(install, source, cause):
    install("def miles_register(registry):\n    registry.add('filters', 'good', 'm:f')", name="well")
    hub = install(source, entries={"miles.filters": {"plain": "m:g"}})
    assert [ref.name for ref in hub.refs(computed=True)] == ["good", "plain"]
    (problem,) = hub.problems
    assert all(part in problem for part in ("plugin module 'hooks'", "acme 1.0", cause))


def test_a_missing_plugin_tells_of_modules_that_failed(install):
    hub = install("import does_not_exist_xyz")
    with pytest.raises(PluginNotFound, match="does_not_exist_xyz"):
        hub.resolve(FILTERS, "computed_one")


def test_a_module_never_speaks_for_a_blocked_distribution(site, install):
    install("def miles_register(registry):\n    registry.add('filters', 'f', 'm:f')")
    hub = site.hub(block=("acme",))
    assert hub.refs(computed=True) == ()
    assert hub.modules == ()
    assert "acme_hooks" not in sys.modules


def test_a_computed_name_that_clashes_is_ambiguous(install):
    hub = install(
        "def miles_register(registry):\n    registry.add('filters', 'f', 'm:f')",
        entries={"miles.filters": {"f": "m:g"}},
    )
    with pytest.raises(PluginNotFound, match="2 plugins answer to 'f'"):
        hub.resolve(FILTERS, "f")
