"""What a transport says of itself, and what may be expected of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from miles_core.kinds.engines import WeightUpdates as UpdatesKind

Reach: TypeAlias = Literal["host", "folder", "network"]

OPTIONS_VARIABLE = "MILES_WEIGHTS_OPTIONS"
"""Of the environment of servers that have no config of the run: JSON, the options of each transport by its name."""


@dataclass(frozen=True, slots=True)
class TransportFacts:
    """What a transport's class says.

    ``receivers``: ours take it; ``sglang_update``: the endpoint of SGLang that it feeds; ``unavailable``: why it cannot
    be used in this process.
    """

    name: str
    receivers: bool = True
    sglang_update: str | None = None
    reach: Reach = "network"
    unavailable: str | None = None

    @classmethod
    def of(cls, name: str, transport: Any) -> TransportFacts:
        """Those of a transport's class."""
        why = getattr(transport, "unavailable", None)
        return cls(
            name,
            getattr(transport, "receivers", True),
            getattr(transport, "sglang_update", None),
            getattr(transport, "reach", "network"),
            None if why is None else why(),
        )

    def fits(self, kind: UpdatesKind) -> bool:
        """Whether an engine of the kind can be updated so at all."""
        return self.receivers or (kind == "sglang" and self.sglang_update is not None)
