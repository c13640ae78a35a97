"""A class as the reference shows it: its fields and methods as code, then what their docstrings say."""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING

from prose import WIDTH, markdown
from source import fields, methods, node_of, properties, signature, text_of

if TYPE_CHECKING:
    from source import Function


def code(type_: type) -> str:
    """The class without bodies, as a block of Python."""
    node = node_of(type_)
    bases = [base for base in map(text_of, node.bases) if base != "Protocol"]
    lines = [
        *fields(node),
        *(_property(one) for one in properties(node)),
        *(f"{prefix}{signature(one, WIDTH - 4)}" for prefix, one in methods(node)),
    ]
    head = f"class {node.name}({', '.join(bases)}):" if bases else f"class {node.name}:"
    return f"```python\n{head}\n{textwrap.indent(chr(10).join(lines or ['...']), '    ')}\n```"


def described(type_: type) -> str:
    """The class's docstring, its code, and the docstring of each property and method."""
    node = node_of(type_)
    members = [*((one.name, one) for one in properties(node)), *((one.name, one) for _, one in methods(node))]
    told = [text for name, one in members if (text := _member(name, one))]
    return "\n\n".join([markdown(ast.get_docstring(node)), code(type_), *(["\n".join(told)] if told else [])])


def _member(name: str, node: Function) -> str:
    if not (doc := ast.get_docstring(node)):
        return ""
    return "* " + textwrap.indent(markdown(f"**``{name}``**: {doc}"), "  ").lstrip()


def _property(node: Function) -> str:
    result = f": {text_of(node.returns)}" if node.returns else ""
    return f"{node.name}{result}  # property"
