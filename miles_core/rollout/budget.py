"""What a trajectory may spend: turns, context tokens, generated tokens, seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one trajectory.

    ``max_context_tokens`` counts everything, ``max_response_tokens`` generated tokens only,
    ``max_new_tokens`` one turn; time-outs are in seconds.
    """

    max_turns: int
    max_context_tokens: int
    max_response_tokens: int
    max_new_tokens: int
    episode_timeout: float = 600.0

    def new_tokens(self, *, context: int, generated: int) -> int:
        """How many tokens the next turn may have; 0 or less means that the budget is used up."""
        return min(self.max_new_tokens, self.max_context_tokens - context, self.max_response_tokens - generated)
