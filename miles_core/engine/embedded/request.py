"""One generation: what was asked, how far it is, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    import numpy as np
    from numpy.typing import NDArray

    from miles_core.engine.embedded.sampling_params import SamplingOptions


@dataclass(frozen=True, slots=True, eq=False)
class GenerateSpec:
    """A checked request for one prompt, token ids ``[P]``."""

    rid: str
    prompt: NDArray[np.int32]
    sampling: SamplingOptions
    return_logprob: bool = False
    return_routed_experts: bool = False
    routed_experts_start_len: int = 0
    extra_key: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """A generation that ended.

    ``routing`` holds ``[P + len(output_ids) - 1, moe_layers, top_k]``. ``version`` is ``None`` for a request that
    was aborted before it ever ran.
    """

    spec: GenerateSpec
    output_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish_reason: dict[str, Any]
    cached_tokens: int = 0
    version: str | None = None
    spans: tuple[tuple[str, int, int], ...] = ()
    routing: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """What a retracted request keeps: its outputs, their logprobs, and the routing rows it sampled from."""

    output_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    routing: NDArray[Any] | None


@dataclass(slots=True, eq=False)
class ActiveRequest:
    """A request inside the engine, owned by the engine thread once it is queued."""

    spec: GenerateSpec
    seed: int
    future: asyncio.Future[Finished]
    loop: asyncio.AbstractEventLoop
    slot: int = -1
    cached_tokens: int | None = None
    progress: Progress | None = None
    versions: list[tuple[str, int]] = field(default_factory=list)

    def mark_version(self, version: str, outputs: int) -> None:
        """From output ``outputs`` on, tokens come from weights of ``version``."""
        if not self.versions or self.versions[-1][0] != version:
            self.versions.append((version, outputs))

    def spans(self, outputs: int) -> tuple[tuple[str, int, int], ...]:
        """Non-empty ``(version, start, end)`` spans over the ``outputs`` tokens generated so far."""
        ends = [start for _, start in self.versions[1:]] + [outputs]
        return tuple(
            (version, start, end) for (version, start), end in zip(self.versions, ends, strict=True) if start < end
        )
