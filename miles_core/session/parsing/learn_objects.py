"""Finds calls whose arguments are JSON in a render of marks."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from miles_core.session.parsing.fixed import NAME, fixed
from miles_core.session.parsing.forms import Found
from miles_core.session.parsing.json_object import JsonObject
from miles_core.session.parsing.json_text import NotJsonError, value_at
from miles_core.session.parsing.named_json import NamedJson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.session.parsing.shown import Marks, Shower

_NAME, _ID = "\1", "\2"


def objects_of(shower: Shower, body: str, count: int) -> list[Found] | None:
    """Calls that are one JSON object each."""
    found: list[Found] = []
    at = 0
    for index in range(count):
        place = _object_with(body, at, shower.marks.names[index])
        if place is None:
            return None
        value, start, at = place
        form = _shape(value, shower.marks, index)
        if form is None:
            return None
        found.append(Found(form, start, at))
    return found


def _object_with(body: str, at: int, text: str) -> tuple[Any, int, int] | None:
    """The first JSON object from ``at`` that holds a text."""
    while (at := body.find("{", at)) >= 0:
        try:
            value, end = value_at(body, at)
        except NotJsonError:
            at += 1
            continue
        if text in body[at:end]:
            return value, at, end
        at = end
    return None


def _shape(value: Mapping[str, Any], marks: Marks, index: int) -> JsonObject | None:
    """Under which keys an object holds name, arguments and identifier."""
    arguments = {marks.keys[index]: marks.values[index]}
    if value == {marks.names[index]: arguments}:
        return JsonObject(None, "")
    inside: tuple[str, ...] = ()
    inner: Mapping[str, Any] = value
    if (nested := next((key for key, item in value.items() if _names(item, marks.names[index])), None)) is not None:
        inside, inner = (nested,), value[nested]
    name = next((key for key, item in inner.items() if item == marks.names[index]), None)
    given = next((key for key, item in inner.items() if _is(item, arguments)), None)
    if name is None or given is None:
        return None
    rest = {key: item for key, item in {**value, **inner}.items() if key not in {name, given, *inside}}
    identifier = next((key for key, item in rest.items() if item in (marks.ids[index], str(index), index)), None)
    constants = tuple((key, json.dumps(item)) for key, item in rest.items() if key != identifier)
    return JsonObject(name, given, identifier, inside, constants)


def _names(item: Any, name: str) -> bool:
    return isinstance(item, dict) and name in item.values()


def _is(item: Any, arguments: Mapping[str, Any]) -> bool:
    if isinstance(item, str):
        try:
            item = json.loads(item)
        except ValueError:
            return False
    return bool(item == arguments)


def named_objects_of(shower: Shower, body: str, count: int) -> list[Found] | None:
    """Calls that are a name and their arguments as a JSON object."""
    marks = shower.marks
    places: list[tuple[int, int, int]] = []
    at = 0
    for index in range(count):
        key = json.dumps(marks.keys[index])
        place = _object_with(body, at, key)
        heads = [body.find(mark, at) for mark in (marks.names[index], marks.ids[index])]
        if place is None or place[0] != {marks.keys[index]: marks.values[index]}:
            return None
        start = min((head for head in heads if 0 <= head < place[1]), default=-1)
        if start < 0:
            return None
        places.append((start, place[1], place[2]))
        at = place[2]
    intros = [body[start:end] for start, end, _ in places]
    word = re.search(r"[A-Za-z_.]*$", body[: places[0][0]])
    form = NamedJson(re.compile(_intro(intros, marks)), word[0] if word else "")
    return [Found(form, start, end) for start, _, end in places]


def _intro(intros: Sequence[str], marks: Marks) -> str:
    """The expression of what stands between head and arguments."""
    first, *others = [
        intro.replace(marks.names[index], _NAME).replace(marks.ids[index], _ID) for index, intro in enumerate(intros)
    ]
    numbered = re.compile(rf"(?<={_NAME})(\W)0(?!\d)").search(first)
    if numbered and others and others[0] == first[: numbered.end() - 1] + "1" + first[numbered.end() :]:
        whole = rf"(?P<whole>{NAME}{re.escape(numbered[1])}\d+)"
        return whole + fixed(first[numbered.end() :])
    parts = re.split(f"([{_NAME}{_ID}])", first)
    identifier = NAME.replace("name", "id")
    return "".join(NAME if part == _NAME else identifier if part == _ID else fixed(part) for part in parts if part)
