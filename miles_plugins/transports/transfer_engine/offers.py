"""What a receiver offers to the trainer: where its parameters lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.api import WeightSyncError
from miles_plugins.transports.transfer_engine.runs import end_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from miles_core.api import Placement


@dataclass(frozen=True, slots=True)
class Offer:
    """Each parameter's ``addresses`` and ``nbytes`` in the process that ``session`` names, reached by ``protocol``."""

    session: str
    protocol: str
    addresses: Mapping[str, int]
    nbytes: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """A JSON object; :meth:`from_json` reads it."""
        return {
            "session": self.session,
            "protocol": self.protocol,
            "addresses": dict(self.addresses),
            "nbytes": dict(self.nbytes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], who: str) -> Offer:
        """The offer that :meth:`to_json` wrote.

        Raises:
            WeightSyncError: if it is none.
        """
        session, protocol = data.get("session"), data.get("protocol")
        tables = (data.get("addresses"), data.get("nbytes"))
        if not (isinstance(session, str) and isinstance(protocol, str) and all(map(_is_table, tables))):
            raise WeightSyncError(
                f"{who} offered no session with addresses and nbytes of its parameters; got the keys {sorted(data)}",
                remedy="Run the same version of miles in trainer and engines.",
            )
        return cls(session, protocol, data["addresses"], data["nbytes"])


def ends_of(placements: Iterable[Placement]) -> dict[str, int]:
    """How many bytes each parameter must have for its boxes."""
    ends: dict[str, int] = {}
    for placement in placements:
        if placement.nbytes:
            ends[placement.parameter] = max(ends.get(placement.parameter, 0), end_of(placement))
    return ends


def check_ends(ends: Mapping[str, int], offer: Offer, who: str) -> None:
    """See to it that nothing is written beside a parameter.

    Raises:
        WeightSyncError: if a parameter was not offered, or is smaller than its boxes.
    """
    for parameter, end in ends.items():
        held = offer.nbytes.get(parameter) if parameter in offer.addresses else None
        if held is None or end > held:
            state = "did not offer it" if held is None else f"holds {held} bytes"
            raise WeightSyncError(
                f"parameter {parameter} is to be written up to byte {end}; {who} {state}",
                remedy="Plan again from the engine's present layout.",
            )


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(type(one) is int for one in value.values())
