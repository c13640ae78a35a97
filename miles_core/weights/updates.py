"""Which way engines of a kind take weight updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.weights.receiver_updates import ReceiverUpdates
from miles_core.weights.sglang_updates import SglangUpdates

if TYPE_CHECKING:
    from miles_core.kinds.engines import WeightUpdates as UpdatesKind
    from miles_core.weights.ports import WeightUpdates
    from miles_core.weights.publish import PauseMode


def weight_updates(kind: UpdatesKind, pause_mode: PauseMode) -> WeightUpdates:
    """What updates engines whose ``weight_updates`` is ``kind``."""
    return SglangUpdates(pause_mode) if kind == "sglang" else ReceiverUpdates()
