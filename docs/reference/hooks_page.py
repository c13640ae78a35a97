"""The page of lifecycle hooks."""

from __future__ import annotations

import ast

from prose import WIDTH, markdown, summary, table
from source import Function, functions, signature, tree
from types_section import described

from miles_core.kinds.hooks import RunInfo, TrainerHandle
from miles_core.plugins.lifecycle import hookspecs


def page() -> str:
    """The whole page."""
    hooks = [node for node in functions(tree(hookspecs).body) if node.name.startswith("miles_")]
    overview = table(
        ("hook", "process", "role", "what"),
        [(f"[`{hook.name}`](#{hook.name})", _process(hook), _role(hook), summary(_doc(hook))) for hook in hooks],
    )
    types = [f"## {type_.__name__}\n\n{described(type_)}" for type_ in (RunInfo, TrainerHandle)]
    return (
        "\n\n".join(["# Lifecycle hooks", markdown(hookspecs.__doc__), HOW, overview, *map(_section, hooks), *types])
        + "\n"
    )


# A phrase of the docstring, and the process that it means.
PROCESSES = (("every process", "every"), ("in the trainer", "trainer"), ("``miles`` command", "command line"))
HOW = """A module of the entry-point group `miles` implements them; [hooks.md](../hooks.md) shows how. [API](api.md)
lists the fields of what they are given."""


def _section(node: Function) -> str:
    return f"## {node.name}\n\n```python\n{signature(node, WIDTH)}\n```\n\n{markdown(_doc(node))}"


def _doc(node: Function) -> str:
    return ast.get_docstring(node) or ""


def _role(node: Function) -> str:
    return "acts" if node.name in hookspecs.ACTING or node.name == "miles_register" else "observes"


def _process(node: Function) -> str:
    """Where a hook is called, as its docstring says; the driver where it says nothing."""
    doc = " ".join(_doc(node).split())
    return next((process for words, process in PROCESSES if words in doc), "driver")
