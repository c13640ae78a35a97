"""A task: what a data source yields and an environment starts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.types.message import Message


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt with its label and metadata; ``environment`` names a configured environment."""

    id: str
    messages: tuple[Message, ...]
    label: str | None = None
    images: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    environment: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
