"""Which waiting requests are prefilled next, into which slots, and what they need not compute again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from numpy.typing import NDArray

    from miles_core.engine.embedded.request import ActiveRequest
    from miles_core.engine.embedded.slots import PrefixMatch, SlotTable


@dataclass(slots=True, eq=False)
class Prefill:
    """One prefill batch: its requests, already in slots, and how many leading tokens each takes from the cache."""

    requests: list[ActiveRequest] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)
    longest: int = 0

    def add(self, request: ActiveRequest, length: int, match: PrefixMatch) -> None:
        """Add a request that sits in its slot; a prefix that it does not take over is copied later, in one go."""
        self.requests.append(request)
        self.lengths.append(length)
        self.cached.append(match.length)
        self.longest = max(self.longest, length - match.length)
        if match.length and not match.takes_over:
            self.copies.append((match.slot, request.slot, match.length))

    def padded_with(self, tokens: int) -> int:
        """Padded tokens of the forward pass if one more row of ``tokens`` new tokens joined."""
        return (len(self.requests) + 1) * max(self.longest, tokens)


def plan_prefill(
    waiting: deque[ActiveRequest], slots: SlotTable, *, room: int, max_tokens: int, reserve: Callable[[int], None]
) -> Prefill:
    """Take up to ``room`` requests from ``waiting``, in order, within ``max_tokens`` padded tokens.

    Of requests with the same uncached prompt only the first is taken: the others copy its prefix at the next call,
    which is how a group of samples shares one prefill.
    """
    plan = Prefill()
    seen: set[tuple[str | None, bytes]] = set()
    twins: list[ActiveRequest] = []
    while waiting and len(plan.requests) < room:
        request = waiting[0]
        spec = request.spec
        ids = all_tokens(request)
        identity = (spec.extra_key, ids.tobytes())
        match = slots.match(ids, spec.extra_key)
        if identity in seen and match.length < len(ids) - 1:
            twins.append(waiting.popleft())
            continue
        if plan.requests and plan.padded_with(len(ids) - match.length) > max_tokens:
            break
        seen.add(identity)
        waiting.popleft()
        reserve(len(ids) + 1)
        # rows restored after a retraction belong to older weights, so such a slot serves nobody else
        request.slot = slots.take(match, ids, spec.extra_key, shared=request.progress is None)
        plan.add(request, len(ids), match)
    waiting.extendleft(reversed(twins))
    return plan


def all_tokens(request: ActiveRequest) -> NDArray[np.int32]:
    """The prompt, and what a retracted request had generated already."""
    if request.progress is None:
        return request.spec.prompt
    return np.concatenate([request.spec.prompt, request.progress.output_ids])
