"""Record what plugins may rely on: ``python docs/reference/stable.py`` writes ``tests/docs/stable.txt``.

A line that goes or changes breaks somebody's plugin; docs/stability.md says what to do then.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from api_page import public_classes
from source import fields, functions, methods, node_of, properties, signature, tree
from testing_page import fixtures, function_named

import miles_core.testing as kit
from miles_core import api
from miles_core.kinds import KINDS
from miles_core.plugins.lifecycle import hookspecs

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORD = Path(__file__).parents[2] / "tests/docs/stable.txt"


def lines() -> list[str]:
    """Every public name with its members, each hook, kind and fixture, one a line."""
    return sorted({*_api(), *_hooks(), *_kinds(), *_kit()})


def _api() -> Iterator[str]:
    yield from (f"api {name}" for name in api.__all__)
    for type_ in public_classes():
        yield from (f"api {line}" for line in _members(type_))


def _kit() -> Iterator[str]:
    yield from (f"testing {name}" for name in kit.__all__)
    yield from (f"fixture {one.name}" for one in fixtures())
    for name in kit.__all__:
        thing = getattr(kit, name)
        if name.endswith("Suite"):
            yield from (f"testing {name}.{field.partition(' = ')[0]}" for field in fields(node_of(thing)))
        elif isinstance(thing, type):
            yield from (f"testing {line}" for line in _members(thing))
        elif callable(thing):
            yield f"testing {signature(function_named(name))}"


def _members(type_: type) -> Iterator[str]:
    node = node_of(type_)
    yield from (f"{node.name}.{field}" for field in fields(node))
    yield from (f"{node.name}.{one.name}" for one in properties(node))
    yield from (f"{node.name}: {prefix}{signature(one)}" for prefix, one in methods(node))


def _hooks() -> Iterator[str]:
    yield from (f"hook {signature(hook)}" for hook in functions(tree(hookspecs).body))


def _kinds() -> Iterator[str]:
    for kind in KINDS.values():
        yield f"kind {kind.group}: {kind.table}"
        yield from (f"kind {kind.group} has {member}" for member in kind.members)


if __name__ == "__main__":
    RECORD.write_text("".join(f"{line}\n" for line in lines()), "utf-8")
    sys.stdout.write(f"recorded {RECORD.name}\n")
