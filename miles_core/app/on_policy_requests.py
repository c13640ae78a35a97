"""What the on-policy check asks engines for: random prompts, and outputs of a length that is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.types import GenerateRequest, SamplingParams

if TYPE_CHECKING:
    from miles_core.types import RoutingSpec

TOKENS = 32
LATE_TOKENS = 4
_LONGEST = 256
_LONGEST_PROMPT = 16


@dataclass(frozen=True)
class FixedLength(SamplingParams):
    """Sampling that goes on after an end token, up to ``max_new_tokens``."""

    def to_wire(self) -> dict[str, Any]:
        """As the base class, with SGLang's ``ignore_eos``."""
        return {**super().to_wire(), "ignore_eos": True}


@dataclass(eq=False)
class RequestMaker:
    """Makes requests; no two have the same prompt or seed.

    ``routing`` is the shape of the routed experts to ask for, ``None`` where nothing is replayed.
    """

    vocab_size: int
    context_length: int
    temperature: float
    routing: RoutingSpec | None
    seed: int = 0
    _made: int = field(default=0, init=False)

    @property
    def longest(self) -> int:
        """The most tokens that a request can ask for."""
        return min(_LONGEST, self.context_length - self._longest_prompt)

    def requests(self, count: int, tokens: int = TOKENS) -> list[GenerateRequest]:
        """``count`` requests for ``tokens`` tokens each, fewer where the context has no room for them."""
        return [self._request(tokens) for _ in range(count)]

    @property
    def _longest_prompt(self) -> int:
        return max(1, min(_LONGEST_PROMPT, self.context_length // 4))

    def _request(self, tokens: int) -> GenerateRequest:
        self._made += 1
        random = np.random.default_rng([self.seed, self._made])
        prompt = random.integers(0, self.vocab_size, random.integers(1, self._longest_prompt + 1))
        return GenerateRequest(
            prompt.tolist(),
            FixedLength(self.temperature, max(1, min(tokens, self.longest)), (), int(random.integers(1 << 31))),
            rid=f"on-policy-{self.seed}-{self._made}.",  # SGLang aborts by prefix: none may begin another
            return_routed_experts=self.routing is not None,
        )
