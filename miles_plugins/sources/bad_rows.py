"""What happens to rows that are malformed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from miles_core.api import DataError

if TYPE_CHECKING:
    import logging

    from miles_plugins.sources.row_error import RowError

OnBadRow = Literal["error", "skip"]
LOGGED = 10
"""Skipped rows that are logged; later ones are only counted."""


class BadRows:
    """Refuses the first bad row, or skips all of them, counted."""

    def __init__(self, on_bad_row: OnBadRow, logger: logging.Logger) -> None:
        self.skipping = on_bad_row == "skip"
        self.skipped = 0
        self._logger = logger
        self._logged = 0

    def add(self, error: RowError, where: str) -> None:
        """Count a bad row.

        Raises:
            DataError: naming file and line, if bad rows are not to be skipped.
        """
        if not self.skipping:
            raise row_data_error(error, where)
        self.skipped += 1
        if self._logged < LOGGED:
            self._logged += 1
            last = "; more are counted, not logged" if self._logged == LOGGED else ""
            self._logger.warning("skipped %s: %s%s", where, error.reason, last)


def row_data_error(error: RowError, where: str) -> DataError:
    """The error of a row, with its place."""
    return DataError(
        f"{where}: {error.reason}",
        remedy=error.remedy or 'Correct the row, or leave such rows out with on_bad_row = "skip".',
    )
