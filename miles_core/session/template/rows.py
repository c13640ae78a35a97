"""Rows of ``miles tito next``: one boundary each, checked before anything is rendered."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from miles_core.session.template.render import CLOCK_ARGUMENT

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Row:
    """One question: a conversation, what was generated, and what is appended.

    ``template`` is a path, a name or the text of a template, ``model`` the path of a model directory; one of them is
    given. ``generated`` ends in ``stop``. ``generated_ids`` are its ids, where the caller has them.
    """

    template: str | None
    model: str | None
    messages: list[dict[str, Any]]
    generated: str
    appended: list[dict[str, Any]]
    stop: str | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    clock: datetime | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    generated_ids: list[int] | None = None

    @classmethod
    def parse(cls, raw: Any) -> Row:
        """The row of one JSON value.

        Raises:
            ValueError: naming the field that is missing or wrong.
        """
        if not isinstance(raw, dict):
            raise ValueError(f"expected a JSON object; got {type(raw).__name__}")
        template, model = (_optional(raw, name, str) for name in ("template", "model"))
        if (template is None) == (model is None):
            raise ValueError("expected either 'template' or 'model'")
        stop = _optional(raw, "stop", str) or None
        generated = _needed(raw, "generated", str)
        parsed = _optional(raw, "parsed_assistant", dict) or {}
        return cls(
            template=template,
            model=model,
            messages=_messages(raw, "messages" if "messages" in raw else "messages_turn1"),
            generated=generated if stop is None or generated.endswith(stop) else generated + stop,
            appended=_messages(raw, "appended"),
            stop=stop,
            tools=_objects(raw, "tools"),
            template_kwargs={**_tokens(raw), **(_optional(raw, "template_kwargs", dict) or {})},
            clock=_time(_optional(raw, "clock", str)),
            calls=_objects(parsed, "tool_calls"),
            generated_ids=_ids(raw),
        )

    def pinned(self, *, reads_clock: bool) -> tuple[dict[str, Any], datetime | None]:
        """Template arguments and clock; a time named ``now`` that the template does not read itself pins the clock."""
        arguments = dict(self.template_kwargs)
        clock = self.clock
        if clock is None and not reads_clock and isinstance(arguments.get(CLOCK_ARGUMENT), str):
            clock = _time(arguments.pop(CLOCK_ARGUMENT))
        return arguments, clock


def _optional(raw: Mapping[str, Any], name: str, kind: type) -> Any:
    value = raw.get(name)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"'{name}' must be {_KINDS[kind]}; got {type(value).__name__}")
    return value


_KINDS: dict[type, str] = {str: "a text", dict: "an object", list: "a list"}


def _needed(raw: Mapping[str, Any], name: str, kind: type) -> Any:
    value = _optional(raw, name, kind)
    if value is None:
        raise ValueError(f"'{name}' is missing")
    return value


def _tokens(raw: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens that a line may give beside its template's arguments."""
    return {name: text for name in ("bos_token", "eos_token") if (text := _optional(raw, name, str)) is not None}


def _ids(raw: Mapping[str, Any]) -> list[int] | None:
    values: list[int] | None = _optional(raw, "generated_ids", list)
    if values is not None and any(type(value) is not int for value in values):
        raise ValueError("'generated_ids' must be a list of whole numbers")
    return values


def _objects(raw: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    values = _optional(raw, name, list) or []
    if not all(isinstance(value, dict) for value in values):
        raise ValueError(f"'{name}' must be a list of objects")
    return list(values)


def _messages(raw: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    if raw.get(name) is None:
        raise ValueError(f"'{name.removesuffix('_turn1')}' is missing")
    messages = _objects(raw, name)
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise ValueError(f"message {index} of '{name}' has no text 'role'")
    return messages


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"the clock {text!r} is no ISO time, such as 2025-07-10T12:00:00") from error
