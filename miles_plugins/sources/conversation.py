"""The messages that a task starts with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from miles_core.api import ImagePart, Message
from miles_plugins.sources.row_error import RowError, shown
from miles_plugins.sources.values import image_path

if TYPE_CHECKING:
    from pathlib import Path


def conversation(prompt: Any, messages: Any, folder: Path) -> tuple[Message, ...]:
    """The messages of a row that has a ``prompt`` (text or a list of messages) or ``messages``; the other is ``None``.

    Raises:
        RowError: if there is not exactly one of them, or it is malformed.
    """
    if prompt is not None and messages is not None:
        raise RowError("expected exactly one of `prompt` and `messages`; got both", remedy="Leave one of them out.")
    if messages is not None:
        return _messages("messages", messages, folder)
    if isinstance(prompt, list | tuple):
        return _messages("prompt", prompt, folder)
    if not isinstance(prompt, str) or not prompt:
        raise RowError(
            f"`prompt` must be text or a list of messages; got {shown(prompt)}", remedy="Write what the user says."
        )
    return (Message("user", prompt),)


def _messages(key: str, chats: Any, folder: Path) -> tuple[Message, ...]:
    if not isinstance(chats, list | tuple):
        raise RowError(f"`{key}` must be a list of messages; got {shown(chats)}", remedy="Write a list of messages.")
    if not chats:
        raise RowError(f"`{key}` is empty", remedy="Write at least one message.")
    return tuple(_message(f"`{key}`: message {number}", chat, folder) for number, chat in enumerate(chats, 1))


def _message(what: str, chat: Any, folder: Path) -> Message:
    if not isinstance(chat, Mapping):
        raise RowError(f"{what} must be an object; got {shown(chat)}", remedy="Write {role: ..., content: ...}.")
    chat = {key: value for key, value in chat.items() if value is not None}
    for key in ("tool_call_id", "name"):
        if not isinstance(chat.get(key, ""), str):
            raise RowError(f"{what}: `{key}` must be text; got {shown(chat[key])}")
    calls = chat.get("tool_calls", [])
    if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        raise RowError(f"{what}: `tool_calls` must be a list of objects; got {shown(calls)}")
    try:
        message = Message.from_chat(chat)
    except (ValueError, TypeError) as error:
        raise RowError(f"{what}: {error}", remedy="Write {role: ..., content: ...}.") from None
    if isinstance(message.content, str):
        return message
    parts = [
        ImagePart(image_path(part.image, folder)) if isinstance(part, ImagePart) else part for part in message.content
    ]
    return replace(message, content=tuple(parts))
