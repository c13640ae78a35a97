"""Options that sources share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from miles_plugins.sources.bad_rows import OnBadRow  # noqa: TC001 - pydantic reads it
from miles_plugins.sources.columns import Columns  # noqa: TC001 - pydantic reads it


class RowsConfig(BaseModel):
    """Options that all sources of rows share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: Columns | None = Field(None, description="which column holds what; default: their own names")
    on_bad_row: OnBadRow = Field("error", description="what a malformed row does: end the run, or count as skipped")


class FileConfig(RowsConfig):
    """Options of the sources over files."""

    path: str | tuple[str, ...] = Field(
        min_length=1, description="a file, a glob or a list of these; relative to the config file"
    )
    shuffle: bool = Field(True, description="shuffle each epoch, by (seed, epoch)")
