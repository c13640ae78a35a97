"""Which column holds what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = ("id", "prompt", "messages", "label", "images", "tools", "environment", "metadata")
"""What a row may say, and the names of the columns that say it where no mapping is given."""


class Columns(BaseModel):
    """``columns = { prompt = "question", label = "answer" }``: only the columns named here are read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str | None = Field(None, description="text or integer")
    prompt: str | None = Field(None, description="text, or a list of messages")
    messages: str | None = Field(None, description="a list of messages")
    label: str | None = Field(None, description="text or number")
    images: str | None = Field(None, description="a list of paths or URLs")
    tools: str | None = Field(None, description="a list of objects")
    environment: str | None = Field(None, description="text")
    metadata: str | tuple[str, ...] | None = Field(None, description="an object, or the columns to make one of")

    @model_validator(mode="after")
    def _has_a_prompt(self) -> Columns:
        if self.prompt is None and self.messages is None:
            raise ValueError("columns must name `prompt` or `messages`")
        return self

    @property
    def pairs(self) -> Iterator[tuple[str, str]]:
        """(key, column) of each key that is mapped to one column."""
        for key in KEYS:
            column = getattr(self, key)
            if isinstance(column, str):
                yield key, column

    @property
    def gathered(self) -> tuple[str, ...]:
        """The columns that become ``Task.metadata`` together; empty where ``metadata`` is one column."""
        return self.metadata if isinstance(self.metadata, tuple) else ()

    @property
    def names(self) -> list[str]:
        """All columns that are read, once each."""
        return list(dict.fromkeys([*(column for _, column in self.pairs), *self.gathered]))
