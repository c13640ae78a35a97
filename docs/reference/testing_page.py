"""The page of the author's kit: suites with what a subclass may set, fixtures and builders."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

from prose import WIDTH, markdown, summary, table
from source import fields, functions, node_of, signature, text_of, tree
from types_section import described

import miles_core.testing as kit
from miles_core.testing import plugin

if TYPE_CHECKING:
    from source import Function

INSTALL = """`pip install 'miles-hub[testing]'` brings what it needs. The rules of each suite are listed with its kind
in [kinds.md](kinds.md), and `miles plugins check NAME` runs them on what is installed."""


def page() -> str:
    """The whole page."""
    suites = {name: kind for kind, name in kit.SUITES.items()}
    rest = [getattr(kit, name) for name in kit.__all__ if name not in (*suites, "PluginSuite", "SUITES")]
    builders = [function_named(thing.__name__) for thing in rest if not isinstance(thing, type)]
    types = [thing for thing in rest if isinstance(thing, type)]
    parts = [
        "# The author's kit",
        markdown(kit.__doc__),
        INSTALL,
        "## Suites",
        _suite("PluginSuite"),
        *(f"{_suite(name)}\n\nRules: [{kind}](kinds.md#{kind})." for name, kind in suites.items()),
        "## Fixtures",
        markdown(plugin.__doc__),
        table(("fixture", "what"), [(f"`{node.name}`", summary(ast.get_docstring(node))) for node in fixtures()]),
        "## Builders",
        *(f"```python\n{signature(node, WIDTH)}\n```\n\n{markdown(ast.get_docstring(node))}" for node in builders),
        *(f"## {type_.__name__}\n\n{described(type_)}" for type_ in types),
    ]
    return "\n\n".join(parts) + "\n"


def fixtures() -> list[Function]:
    """The fixtures of the pytest plugin, in order."""
    return [node for node in functions(tree(plugin).body) if "pytest.fixture" in map(text_of, node.decorator_list)]


def function_named(name: str) -> Function:
    """The definition of a function of the kit."""
    module = sys.modules[getattr(kit, name).__module__]
    return next(node for node in functions(tree(module).body) if node.name == name)


def _suite(name: str) -> str:
    node = node_of(getattr(kit, name))
    settable = [field.replace("ClassVar[", "", 1) for field in fields(node)]
    settable = [_without_bracket(field) for field in settable if not field.startswith(("kind", "pytestmark"))]
    lines = [f"class {node.name}({text_of(node.bases[0])}):" if node.bases else f"class {node.name}:"]
    lines += [f"    {field}" for field in settable] or ["    ..."]
    return f"### {node.name}\n\n{markdown(ast.get_docstring(node))}\n\n```python\n{chr(10).join(lines)}\n```"


def _without_bracket(field: str) -> str:
    """``plugin: Any] = None``, from which ``ClassVar[`` was taken, without its last closing bracket."""
    annotation, equals, default = field.partition(" = ")
    return f"{annotation.removesuffix(']')}{equals}{default}"
