"""What all tables of the config file are made of."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Table(BaseModel):
    """A table of the config file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class PluginTable(BaseModel):
    """A table that names a plugin; keys other than the host's belong to the plugin."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    use: str = Field(min_length=1, description="name, distribution/name or module:attribute")

    @property
    def options(self) -> dict[str, Any]:
        """The plugin's own keys."""
        return dict(self.__pydantic_extra__ or {})


class FunctionTable(PluginTable):
    """A table that names a function; keys other than the host's are its keyword arguments."""


Adapter = Literal["slime"]
ADAPTER = Field(None, description="the project whose signature the function at `use` has")
