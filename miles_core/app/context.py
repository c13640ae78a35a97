"""How long a trajectory of a run may get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.engine.prompt import usable_context

if TYPE_CHECKING:
    from miles_core.app.wiring import Wiring


def trajectory_tokens(wiring: Wiring) -> int:
    """Tokens of prompt and output that a trajectory may have: the lesser of the config's limit and what is usable."""
    return min(wiring.config.rollout.max_context_tokens, usable_context(wiring.model.context_length))
