"""Chat messages as environments, sessions and chat templates exchange them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from miles_core.types.frozen import nothing

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text in a message of several parts."""

    _deeply_frozen: ClassVar[bool] = True

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image in a message: a path, an ``http(s)`` URL or a ``data:`` URI."""

    _deeply_frozen: ClassVar[bool] = True

    image: str


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; ``content`` is text or a tuple of text and image parts."""

    role: str
    content: str | tuple[TextPart | ImagePart, ...] = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=nothing)

    @property
    def text(self) -> str:
        """The text parts joined; images are left out."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    def to_chat(self) -> dict[str, Any]:
        """The mapping that a chat template or an OpenAI-compatible server takes."""
        content: Any = self.content
        if not isinstance(content, str):
            content = [
                {"type": "text", "text": part.text}
                if isinstance(part, TextPart)
                else {"type": "image", "image": part.image}
                for part in content
            ]
        chat: dict[str, Any] = {"role": self.role, "content": content, **self.extra}
        if self.tool_calls:
            chat["tool_calls"] = [dict(call) for call in self.tool_calls]
        if self.tool_call_id is not None:
            chat["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            chat["name"] = self.name
        return chat

    @classmethod
    def from_chat(cls, chat: Mapping[str, Any]) -> Message:
        """The message for an OpenAI-style mapping.

        Raises:
            ValueError: if the role is missing or the content is neither text nor known parts.
        """
        known = {"role", "content", "tool_calls", "tool_call_id", "name"}
        role = chat.get("role")
        if not isinstance(role, str) or not role:
            raise ValueError(f"a message needs a text 'role'; got {dict(chat)!r}")
        return cls(
            role=role,
            content=_content(chat.get("content")),
            tool_calls=tuple(chat.get("tool_calls") or ()),
            tool_call_id=chat.get("tool_call_id"),
            name=chat.get("name"),
            extra={key: value for key, value in chat.items() if key not in known} or nothing(),
        )


def _content(raw: object) -> str | tuple[TextPart | ImagePart, ...]:
    if raw is None:
        return ""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, list | tuple):
        return tuple(_part(part) for part in raw)
    raise ValueError(f"message content must be text or a list of parts; got {type(raw).__name__}")


def _part(part: object) -> TextPart | ImagePart:
    if isinstance(part, TextPart | ImagePart):
        return part
    if isinstance(part, dict):
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            return TextPart(part["text"])
        if part.get("type") == "image" and isinstance(part.get("image"), str):
            return ImagePart(part["image"])
        url = part.get("image_url")
        if part.get("type") == "image_url" and isinstance(url, dict) and isinstance(url.get("url"), str):
            return ImagePart(url["url"])
    raise ValueError(f"a content part is {{type: text}}, {{type: image}} or {{type: image_url}}; got {part!r}")
