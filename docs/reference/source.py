"""What the source says of a class or function, without its bodies: annotations stay as they were written."""

from __future__ import annotations

import ast
import importlib
import inspect
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

Function = ast.FunctionDef | ast.AsyncFunctionDef


def text_of(node: ast.AST) -> str:
    """The code of a node with double quotes, as the source has them."""
    text = ast.unparse(node)
    return text if '"' in text else text.replace("'", '"')


@cache
def tree(module: ModuleType) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(inspect.getsource(module))


def node_of(thing: type) -> ast.ClassDef:
    """The definition of a class at the top of its module."""
    module = importlib.import_module(thing.__module__)
    return next(node for node in tree(module).body if isinstance(node, ast.ClassDef) and node.name == thing.__name__)


def functions(body: list[ast.stmt]) -> Iterator[Function]:
    """The public functions of a module or class, in order; ``__call__`` is public."""
    for node in body:
        if isinstance(node, Function) and (not node.name.startswith("_") or node.name == "__call__"):
            yield node


def signature(node: Function, width: int | None = None) -> str:
    """``def name(parameters) -> result`` without ``self``; one longer than ``width`` has a line per parameter."""
    prefix = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    result = f" -> {text_of(node.returns)}" if node.returns else ""
    parameters = list(_parameters(node.args))
    text = f"{prefix} {node.name}({', '.join(parameters)}){result}"
    if width is None or len(text) <= width:
        return text
    return "\n".join([f"{prefix} {node.name}(", *(f"    {parameter}," for parameter in parameters), f"){result}"])


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    for place, (one, default) in enumerate(zip(positional, missing + list(arguments.defaults), strict=True), 1):
        if one.arg not in ("self", "cls"):
            yield _parameter(one, default)
            if place == len(arguments.posonlyargs):
                yield "/"
    if arguments.vararg:
        yield f"*{_parameter(arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(one, default)
    if arguments.kwarg:
        yield f"**{_parameter(arguments.kwarg, None)}"


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {text_of(one.annotation)}" if one.annotation else ""
    return f"{one.arg}{annotation}" + (f" = {text_of(default)}" if default else "")


def fields(node: ast.ClassDef) -> Iterator[str]:
    """Public attributes with their types and defaults, in order; ``field(default_factory=dict)`` is ``{}``."""
    for part in node.body:
        if isinstance(part, ast.Assign) and "StrEnum" in map(text_of, node.bases):
            yield text_of(part)
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and not part.target.id.startswith("_"):
            default = f" = {_default(part.value)}" if part.value else ""
            yield f"{part.target.id}: {text_of(part.annotation)}{default}"


def properties(node: ast.ClassDef) -> Iterator[Function]:
    """Public properties, in order."""
    for function in functions(node.body):
        if "property" in map(text_of, function.decorator_list):
            yield function


def methods(node: ast.ClassDef) -> Iterator[tuple[str, Function]]:
    """Public methods that are no properties, each with its decorators as a prefix such as ``@classmethod``."""
    for function in functions(node.body):
        decorators = list(map(text_of, function.decorator_list))
        if "property" not in decorators:
            yield "".join(f"@{name} " for name in decorators), function


def aliases(module: ModuleType) -> Iterator[str]:
    """Public names of a module that stand for a ``Literal``."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and text_of(node.value).startswith("Literal["):
            yield text_of(node)


def _default(value: ast.expr) -> str:
    text = text_of(value)
    if not text.startswith("field("):
        return text
    assert isinstance(value, ast.Call)
    factories = [text_of(word.value) for word in value.keywords if word.arg == "default_factory"]
    return {"dict": "{}", "nothing": "{}", "list": "[]", "tuple": "()"}.get(factories[0] if factories else "", "...")
