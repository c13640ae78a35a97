"""Every installed plugin with its state, whether it may be used or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from miles_core.plugins.reference import PluginRef
    from miles_core.plugins.standing import State

ListedState: TypeAlias = "State | Literal['computed']"


@dataclass(frozen=True, slots=True)
class Listed:
    """One plugin; ``reason`` and ``remedy`` where it is left out.

    A hand-written module is ``computed``: it adds plugins only when it runs, so they cannot be listed.
    """

    ref: PluginRef
    state: ListedState
    reason: str = ""
    remedy: str = ""

    @property
    def left_out(self) -> bool:
        """Whether it may not be used."""
        return self.state in ("incompatible", "blocked", "off")
