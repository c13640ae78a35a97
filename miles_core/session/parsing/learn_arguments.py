"""Finds calls whose arguments stand one by one, as elements or in a list, in a render of marks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from miles_core.session.parsing.argument_list import ArgumentList
from miles_core.session.parsing.elements import Elements
from miles_core.session.parsing.forms import KEY, Found
from miles_core.session.template.pieces import common_end, common_start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.session.parsing.shown import Shower


def arguments_of(shower: Shower, body: str, count: int) -> list[Found] | None:
    """Elements and argument lists: what is before, between and after names and values of arguments."""
    marks = shower.marks
    places: list[tuple[int, int]] = []
    at = 0
    for index in range(count):
        start = body.find(marks.names[index], at)
        value = body.find(marks.values[index], max(start, 0))
        if start < 0 or not start < body.find(marks.keys[index], start) < value:
            return None
        at = value + len(marks.values[index])
        places.append((start, at))
    made = _argument_form(shower)
    if made is None:
        return None
    form, taken = made
    keyed = isinstance(form, Elements) and KEY in form.close
    return [
        Found(form, start, end, taken, marks.keys[index] if keyed else "") for index, (start, end) in enumerate(places)
    ]


def _argument_form(shower: Shower) -> tuple[Elements | ArgumentList, str] | None:
    marks = shower.marks
    two = _inner(shower, dict(zip(marks.keys, marks.values, strict=True)), marks.values)
    number = _inner(shower, {marks.keys[0]: 7}, (marks.keys[0],))
    if two is None or number is None:
        return None
    mid, rest = two.split(marks.keys[0], 1)
    middle, rest = rest.split(marks.values[0], 1)
    between, rest = rest.replace(marks.keys[0], KEY, 1).split(marks.keys[1], 1)
    rest = rest.split(marks.values[1], 1)[1].replace(marks.keys[1], KEY, 1)
    assign = number.split(marks.keys[0], 1)[1].partition("7")[0]
    return _listed(mid, middle, assign, rest) or _elements(shower, mid, middle, between, rest, assign)


def _inner(shower: Shower, arguments: Mapping[str, Any], shown: Sequence[str]) -> str | None:
    """A single call from behind its name on."""
    name = shower.marks.names[0]
    for body, _ in shower.calling([shower.call(0, arguments)], (name, *shown)):
        return body[body.find(name) + len(name) :]
    return None


def _listed(mid: str, middle: str, assign: str, rest: str) -> tuple[ArgumentList, str] | None:
    """A list of arguments in brackets, whose texts stand in quotes that numbers do not have."""
    quote = middle.removeprefix(assign)
    close = {"(": ")", "{": "}"}.get(mid.strip())
    if close is None or quote == middle or not quote or not rest.startswith(quote + close):
        return None
    return ArgumentList(mid.strip(), assign.strip(), close, quote), quote + close


def _item(opened: str, middle: str, text: str) -> str:
    """The key of the elements of a list, of a text that holds the list ``[1]`` as the value of ``a``."""
    found = re.search(rf"{re.escape(opened)}([^<>\s]+){re.escape(middle)}\s*1", text)
    return found[1] if found else ""


def _elements(
    shower: Shower, mid: str, middle: str, between: str, rest: str, assign: str
) -> tuple[Elements, str] | None:
    opened = "".join(common_end(mid, between))
    close = "".join(common_start(between[: len(between) - len(opened)], rest))
    if not opened.strip() or not close.strip() or not middle.strip():
        return None
    quoted = middle == assign + '"' and close.startswith('"')
    taken = close.rstrip()
    key = shower.marks.keys[0]
    truth = _inner(shower, {key: True}, (key,)) or ""
    nested = _inner(shower, {key: {"a": [1]}}, (key,)) or ""
    form = Elements(
        mid[: len(mid) - len(opened)],
        opened.lstrip(),
        middle.removesuffix('"') if quoted else middle,
        (close.removeprefix('"') if quoted else close).rstrip(),
        python=f"{assign}True" in truth,
        quoted=quoted,
        item=_item(opened.strip(), middle.strip(), nested.partition(key)[2]),
    )
    return form, taken
