"""In which forms a template takes what it is given: found by trying."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from miles_core.errors import SessionError
from miles_core.session.template.forms import CALL_ID, Forms, Tools, call, tool
from miles_core.session.template.words import Words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.session.template.render import Chat, ChatTemplate


def probe(template: ChatTemplate) -> Forms:
    """The forms that ``template`` takes; what it never shows is left in the usual form."""
    words = Words(template.source)
    forms = Forms(no_tools=_no_tools(template))
    seen: set[str] = set()
    for role in ("user", "assistant", "system"):
        if _needs_parts(template, forms, role, words, seen):
            seen.add(role)
            forms = replace(forms, parts=frozenset(seen))
    arguments = _arguments(template, forms, words)
    tools = _tools(template, forms, words)
    forms = replace(forms, arguments=arguments or "mapping", tools=tools, calls=bool(arguments))
    if _needs_parts(template, forms, "tool", words, seen):
        forms = replace(forms, parts=forms.parts | {"tool"})
    forms = replace(forms, no_text=_no_text(template, forms, words))
    return replace(forms, raw=_raw(template, forms, words))


def _shown(template: ChatTemplate, forms: Forms, messages: list[Chat], tools: Tools = None) -> str:
    try:
        given = tools if tools is not None else forms.of_tools(None)
        return template.render(forms.messages(messages), given, prompt=False)
    except SessionError:
        return ""


def _conversations(role: str, content: str, name: str) -> Iterator[list[Chat]]:
    """Short conversations that show a content of a role; the first that a template accepts tells."""
    message = {"role": role, "content": content}
    ask: Chat = {"role": "user", "content": "one"}
    if role == "user":
        yield [message]
    elif role == "system":
        yield [message, ask]
    elif role == "assistant":
        yield [ask, message, ask]
    else:
        identifier = CALL_ID.format(0)
        result = {**message, "tool_call_id": identifier, "name": name}
        for empty in (None, ""):
            yield [ask, {"role": "assistant", "content": empty, "tool_calls": [call(identifier, name, "x")]}, result]
        yield [ask, {"role": "assistant", "content": "two"}, result]


def _needs_parts(template: ChatTemplate, forms: Forms, role: str, words: Words, seen: set[str]) -> bool:
    mark = words.mark(0)
    with_parts = replace(forms, parts=frozenset({*seen, role}))
    if any(mark in _shown(template, forms, chat) for chat in _conversations(role, mark, "one")):
        return False
    return any(mark in _shown(template, with_parts, chat) for chat in _conversations(role, mark, "one"))


def _arguments(template: ChatTemplate, forms: Forms, words: Words) -> str | None:
    """``mapping``, ``string``, or ``None`` for a template that does not show calls."""
    mark = words.mark(0)
    for form in ("mapping", "string"):
        trial = replace(forms, arguments=form)
        for empty in (None, "", "two"):
            for chat, tools in product(_with_call(empty, mark), (None, [tool("one")])):
                text = _shown(template, trial, chat, tools)
                if mark in text and str({"q": mark}) not in text:  # Python's own way to write a mapping is no JSON
                    return form
    return None


def _with_call(content: str | None, argument: str) -> Iterator[list[Chat]]:
    ask: Chat = {"role": "user", "content": "one"}
    turn = {"role": "assistant", "content": content, "tool_calls": [call(CALL_ID.format(0), "one", argument)]}
    result = {"role": "tool", "content": "two", "name": "one", "tool_call_id": CALL_ID.format(0)}
    yield from ([ask, turn, result], [ask, turn, ask], [ask, turn])


def _raw(template: ChatTemplate, forms: Forms, words: Words) -> bool:
    """Whether arguments that are no JSON are shown letter by letter."""
    text = f'{words.mark(0)} "{words.mark(1)}'
    for chat in _with_call(None, ""):
        (made,) = chat[1]["tool_calls"]
        made["function"]["arguments"] = text
        if text in _shown(template, forms, chat, [tool("one")]):
            return True
    return False


def _no_text(template: ChatTemplate, forms: Forms, words: Words) -> str:
    """Which of no content and an empty content shows the calls beside it."""
    mark = words.mark(0)
    shows = [any(mark in _shown(template, forms, chat) for chat in _with_call(none, mark)) for none in (None, "")]
    return "none" if shows == [True, False] else "empty" if shows == [False, True] else "any"


def _tools(template: ChatTemplate, forms: Forms, words: Words) -> str:
    name = words.mark(0)
    ask: list[Chat] = [{"role": "user", "content": "one"}]
    for form, tools in (("whole", [tool(name)]), ("function", [tool(name)["function"]])):
        if name in _shown(template, forms, ask, tools):
            return form
    return "whole"


def _no_tools(template: ChatTemplate) -> str:
    """``none``, unless the template fails without a list of tools and takes an empty one."""
    for form in ("none", "empty"):
        for content in ("one", [{"type": "text", "text": "one"}]):
            try:
                template.render([{"role": "user", "content": content}], None if form == "none" else [], prompt=True)
            except SessionError:
                continue
            return form
    return "none"
