"""``[session]`` without a run, as a session server that stands alone has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from miles_core.config.explain import explain
from miles_core.config.overrides import apply_overrides
from miles_core.config.serving import SessionTable
from miles_core.config.tables import Table
from miles_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Alone(Table):
    session: SessionTable = SessionTable()


def session_table(overrides: Sequence[str]) -> SessionTable:
    """The defaults with ``--set`` values such as ``session.ttl=600``.

    Raises:
        ConfigError: if one is wrong, or belongs to another table.
    """
    document: dict[str, Any] = {}
    apply_overrides(document, overrides)
    try:
        return _Alone.model_validate(document).session
    except ValidationError as error:
        raise ConfigError(
            f"--set {' '.join(overrides)}: " + "; ".join(explain(error, _Alone)),
            remedy="Without --config only keys of [session] can be set; `miles config reference` describes them.",
        ) from None
