"""The APIs that clients may speak; a dialect is listed in :data:`DIALECTS` and known nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.session.server.dialects.chat import ChatDialect
from miles_core.session.server.dialects.messages import MessagesDialect
from miles_core.session.server.dialects.responses import ResponsesDialect

if TYPE_CHECKING:
    from miles_core.session.server.dialect import Dialect

DIALECTS: tuple[Dialect, ...] = (ChatDialect(), ResponsesDialect(), MessagesDialect())
"""In the order in which they are shown."""
