"""Functions that the config names: found, checked and given their options, with errors that say what to write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from miles_core.errors import ConfigError, PluginError, PluginNotFound
from miles_core.plugins.functions.resolve import label_of, load_function

MODULE = """
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from nowhere import Batch

number = 3

class Class:
    def __init__(self, batch): ...

class Holder:
    @staticmethod
    def inner(batch): return "inner"

def plain(batch: Batch) -> str: return "plain"
def with_options(batch: Batch, *, cap: float = 2.0, names: tuple[str, ...] = ()): return cap, names
def needing(batch, cap: float): return cap
def open_ended(batch, **options): return options
def odd_names(batch, *, copy: int = 1, model_size: int = 2, _hidden: int = 3): return copy, model_size, _hidden
def unknown_types(batch, *, at: "Nowhere" = 1): return at
def two(first, second): return first
async def awaited(batch): return 1
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "their_functions.py").write_text(MODULE)
    (tmp_path / "broken_functions.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("their_functions", "broken_functions"):
        sys.modules.pop(name, None)


def built_in(batch: object, *, cap: Annotated[float, Field(gt=0)] = 2.0) -> float:
    return cap


def load(text: str, **options):
    return load_function("correction.use", text, {"tis": built_in}, ("batch",), options)


def test_a_built_in_name_comes_first() -> None:
    assert load("tis") is built_in


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("their_functions:plain", "plain"),
        ("their_functions.plain", "plain"),
        ("their_functions:Holder.inner", "inner"),
    ],
)
def test_an_import_path_may_be_written_with_a_colon_or_with_dots(text: str, result: str) -> None:
    assert load(text)(None) == result


def test_options_become_keyword_arguments_of_the_types_that_it_declares() -> None:
    assert load("their_functions:with_options", cap=3, names=["a"])(None) == (3.0, ("a",))
    assert load("their_functions:with_options")(None) == (2.0, ())
    assert load("their_functions:needing", cap=1)(None) == 1.0
    assert load("their_functions:odd_names", copy=5, model_size=6)(None) == (5, 6, 3)
    assert load("their_functions:unknown_types", at="x")(None) == "x"
    assert load("their_functions:open_ended", any=[1])(None) == {"any": [1]}


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("tis", {"cpa": 1}, "cpa: unknown key; did you mean 'cap'"),
        ("tis", {"cap": -1}, "cap: expected greater than 0; got -1"),
        ("their_functions:with_options", {"cap": "x"}, "cap: expected number"),
        ("their_functions:needing", {}, "cap: missing"),
        ("their_functions:plain", {"cap": 1}, "cap: unknown key"),
    ],
)
def test_wrong_options_name_the_table_and_the_key(text: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(text, **options)
    assert f"[correction] use = '{text}'" in str(raised.value)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tsi", "names no function; built in: tis\n  -> Did you mean 'tis'?"),
        ("xyz", "names no function; built in: tis\n  -> Write module:attribute"),
        ("their_functions:plian", "has no attribute 'plian'\n  -> Did you mean 'plain'?"),
        ("thier_functions:plain", "ModuleNotFoundError: No module named 'thier_functions'"),
        ("their_functions.py:plain", "Drop .py"),
        ("broken_functions:x", "SystemExit"),
        ("their_functions:number", "is of type int; it must be a function\n  -> Write `def function(batch)`"),
        ("their_functions:Class", "is the class Class; it must be a function"),
        ("their_functions:awaited", "is a coroutine function, but is called without await"),
        ("os:getcwd", "must take (batch); it takes ()"),
    ],
)
def test_what_cannot_serve_is_refused_with_the_key_and_what_to_write(text: str, message: str) -> None:
    with pytest.raises((PluginError, PluginNotFound, ConfigError)) as raised:
        load(text)
    assert f"correction.use = '{text}'" in str(raised.value)
    assert message in str(raised.value)


def test_a_label_is_an_import_path() -> None:
    assert label_of(load("their_functions:with_options", cap=1)) == "their_functions:with_options"
    assert label_of(load("their_functions:Holder.inner")) == "their_functions:Holder.inner"


def test_where_a_key_has_no_options_a_function_may_not_ask_for_more() -> None:
    with pytest.raises(
        PluginError, match=r"session.pick = 'their_functions:two' must take \(turns\); it asks for second"
    ):
        load_function("session.pick", "their_functions:two", {}, ("turns",))
    assert load_function("session.pick", "their_functions:with_options", {}, ("turns",))(None) == (2.0, ())
