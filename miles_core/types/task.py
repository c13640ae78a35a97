"""A task: what a data source yields and an environment starts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from miles_core.types.frozen import freeze_fields, nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.types.message import Message


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt with its label and metadata; ``environment`` names a configured environment.

    All trajectories of a task, in every epoch, get the same object; hence ``metadata`` becomes deeply read-only, its
    lists tuples.
    """

    _deeply_frozen: ClassVar[bool] = True

    id: str
    messages: tuple[Message, ...]
    label: str | None = None
    images: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    environment: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=nothing)

    def __post_init__(self) -> None:
        freeze_fields(self, "messages", "images", "tools", "metadata")
