"""One generation: what was asked, how far it is, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import asyncio

    import numpy as np
    from numpy.typing import NDArray

    from miles_core.engine.embedded.sampling_params import SamplingOptions
    from miles_core.errors import EngineError


@dataclass(frozen=True, slots=True, eq=False)
class GenerateSpec:
    """A checked request for one prompt, token ids ``[P]``."""

    rid: str
    prompt: NDArray[np.int32]
    sampling: SamplingOptions
    return_logprob: bool = False
    return_routed_experts: bool = False
    routed_experts_start_len: int = 0
    return_prompt_token_ids: bool = False
    extra_key: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """What a request has generated: all of it, or with ``finish_reason`` ``None`` what it has so far.

    ``version`` is that of the last token. ``routing`` holds ``[P + len(output_ids) - 1, moe_layers, top_k]``. A request
    that was aborted while it waited has nothing (``ran`` is false), even if it had run before a retraction.
    """

    spec: GenerateSpec
    output_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish_reason: dict[str, Any] | None
    version: str
    spans: tuple[tuple[str, int, int], ...] = ()
    cached_tokens: int = 0
    retractions: int = 0
    routing: NDArray[Any] | None = None
    ran: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """What a retracted request keeps: its outputs, their logprobs, and the routing rows it sampled from."""

    output_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    routing: NDArray[Any] | None


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request inside the engine, owned by the engine thread once it is queued.

    ``updates`` gets, in the event loop, what a streamed request has generated after each step, and its end.
    """

    spec: GenerateSpec
    seed: int
    future: asyncio.Future[Generated]
    loop: asyncio.AbstractEventLoop
    updates: asyncio.Queue[tuple[ActiveRequest, Outcome]] | None = None
    slot: int = -1
    cached_tokens: int | None = None
    retractions: int = 0
    progress: Progress | None = None
    versions: list[tuple[str, int]] = field(default_factory=list)

    def mark_version(self, version: str, outputs: int) -> None:
        """From output ``outputs`` on, tokens come from weights of ``version``."""
        if not self.versions or self.versions[-1][0] != version:
            self.versions.append((version, outputs))

    def spans(self, outputs: int) -> tuple[tuple[str, int, int], ...]:
        """``(version, start, end)`` over the ``outputs`` tokens generated so far; none is empty unless all are."""
        ends = [start for _, start in self.versions[1:]] + [outputs]
        spans = [(version, start, end) for (version, start), end in zip(self.versions, ends, strict=True)]
        return tuple(span for span in spans if span[1] < span[2]) or ((spans[-1][0], 0, 0),)


Outcome: TypeAlias = "Generated | EngineError"
