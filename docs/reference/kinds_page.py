"""The page of plugin kinds: contract, function form, built-ins and the rules that the kind's suite checks."""

from __future__ import annotations

import inspect
import re
import sys
from typing import TYPE_CHECKING

from prose import markdown, summary, table
from source import aliases, tree
from types_section import described

import miles_core.testing as kit
from miles_core.adapters import ADAPTERS
from miles_core.config.describe import default_words, type_words
from miles_core.kinds import KINDS
from miles_core.plugins import Hub
from miles_core.plugins.installed.policy import OWN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.kinds import Kind
    from miles_core.plugins import PluginRef

INTRO = """A plugin is an object of one of these kinds. An entry point of the kind's group gives it a name, by
which a table of the config file calls it. A class is made by `cls(config, context)`, where `config` is an instance of
its own pydantic model `Config`, or `None` if it has none. [Plugins](../plugins.md) tells how names are found, and
[A first plugin](../first-plugin.md) writes four. [API](api.md) lists the fields of what plugins are given:
`Trajectory`, `Group`, `Task`, `Message`, `StepBatch`, `PluginContext` and more."""


def page() -> str:
    """The whole page."""
    overview = table(
        ("kind", "table", "a function is enough", "what it is"),
        [
            (f"[`{plural}`](#{plural})", f"`{kind.table}`", "yes" if kind.adapt else "no", kind.summary)
            for plural, kind in KINDS.items()
        ],
    )
    hub = Hub.discover()
    sections = [_section(hub, kind) for kind in KINDS.values()]
    return "\n\n".join(["# Kinds of plugins", INTRO, overview, *sections]) + "\n"


def _section(hub: Hub, kind: Kind) -> str:
    module = sys.modules[kind.protocol.__module__]
    literals = "\n".join(aliases(module))
    parts = [
        f"## {kind.plural}",
        markdown(f"{_sentence(kind.summary)} Entry-point group ``{kind.group}``, table ``{kind.table}``."),
        "### Contract",
        described(kind.protocol),
        f"```python\n{literals}\n```" if literals else "",
        "What loading checks and offers:\n\n" + "\n".join(f"* {rule}" for rule in _rules(kind)),
        *_others(kind),
        *_built_ins(hub, kind),
        *_suite(kind),
    ]
    # A heading of a part needs no anchor of its own: each kind has one of the same name.
    return "\n\n".join(re.sub(r"^### (.*)", r"**\1**", part) for part in parts if part)


def _rules(kind: Kind) -> Iterator[str]:
    other = f", or {_words(kind.other_members)}" if kind.other_members else ""
    yield f"An object has {_words(kind.members)}{other}."
    if asynchronous := [name for name, awaited in kind.awaited.items() if awaited]:
        yield f"{_words(asynchronous)}: `async def`."
    if plain := [name for name, awaited in kind.awaited.items() if not awaited]:
        yield f"{_words(plain)}: `def`, called without await."
    for name, choices in kind.choices.items():
        yield f"`{name}`: {' or '.join(f'`{choice}`' for choice in choices)}."
    if kind.wraps_app:
        yield "A class is made by `cls(app, config, context)`."
    if kind.adapt:
        yield f"A function is enough: {_function_form(kind)}"
    for name in (name for name, kinds in ADAPTERS.items() if kind.plural in kinds):
        yield f'A function with the signature that {name} gives it: `adapter = "{name}"`.'


def _function_form(kind: Kind) -> str:
    first, *rest = inspect.cleandoc(kind.adapt.__doc__ or "").split("\n\n") if kind.adapt else [""]
    form = " ".join(first.split()).removeprefix("A factory for a plain ")
    return markdown(" ".join([form, *(" ".join(block.split()) for block in rest)])).replace("\n", " ")


def _others(kind: Kind) -> Iterator[str]:
    for type_ in types_of(kind):
        yield f"### {type_.__name__}\n\n{described(type_)}"


def types_of(kind: Kind) -> Iterator[type]:
    """Data types of the kind's own module, which are shown with it."""
    module = sys.modules[kind.protocol.__module__]
    for node in tree(module).body:
        thing = getattr(module, getattr(node, "name", ""), None)
        if isinstance(thing, type) and thing is not kind.protocol and thing.__module__ == module.__name__:
            yield thing


def _built_ins(hub: Hub, kind: Kind) -> Iterator[str]:
    refs = [ref for ref in hub.refs(kind.plural) if ref.distribution == OWN]
    yield "### Built in"
    yield "\n".join(f"* `{ref.name}`: {summary(hub.load(ref).__doc__)}" for ref in refs)
    for ref in refs:
        if rows := _options(hub, ref):
            yield f"Options of `{ref.name}`:\n\n" + table(("key", "type", "default", "meaning"), rows)


def _options(hub: Hub, ref: PluginRef) -> list[tuple[str, ...]]:
    model = hub.config_model(ref)
    return [
        (f"`{name}`", type_words(field.annotation), f"`{default_words(field)}`", field.description or "")
        for name, field in (model.model_fields.items() if model else ())
    ]


def _suite(kind: Kind) -> Iterator[str]:
    if kind.plural not in kit.SUITES:
        return
    name = kit.SUITES[kind.plural]
    suite = getattr(kit, name)
    names = [test for base in reversed(suite.__mro__) for test in vars(base) if test.startswith("test_")]
    rows = [(f"`{test.removeprefix('test_')}`", summary(getattr(suite, test).__doc__)) for test in dict.fromkeys(names)]
    yield "### Conformance"
    yield f"`miles plugins check` and `{name}` of `miles_core.testing` check these rules:"
    yield table(("rule", "what it says"), rows)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _words(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
