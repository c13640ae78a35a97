"""The embedded engine: what HTTP handlers and the weight receiver call."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from miles_core.engine.embedded.allocator import return_free_memory
from miles_core.engine.embedded.engine_thread import EngineThread
from miles_core.engine.embedded.request import ActiveRequest
from miles_core.engine.embedded.routing import RoutingRecorder
from miles_core.engine.embedded.scheduler import Scheduler
from miles_core.engine.embedded.streams import RequestStream
from miles_core.engine.embedded.unavailable import EngineUnavailable
from miles_core.engine.embedded.weight_memory import WeightMemory
from miles_core.errors import EngineRequestError
from miles_core.types.generation import GREEDY_BELOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    import torch

    from miles_core.engine.embedded.request import Generated, GenerateSpec, Outcome
    from miles_core.engine.embedded.settings import EngineSettings
    from miles_core.kinds.model_bridges import ReplayPoint
    from miles_core.types import RoutingSpec

PauseMode = Literal["abort", "retract", "in_place"]
MemoryTag = Literal["kv_cache", "weights"]

UPDATING = "updating"
"""An out-of-service reason that starts with this word passes by itself."""

_PAUSE = "pause"
_SERVICE = "out of service"
_MEMORY = "released memory"
_LOST = f"{UPDATING}: the weights were released; publish a whole version"


class EmbeddedEngine:
    """Serves one Hugging Face causal LM; call :meth:`start` before and :meth:`close` after use.

    Methods that are not coroutines may be called from any thread. Those that change what forward passes see wait for
    the running step to end, so event loops call them in a worker thread; they raise :class:`EngineUnavailable` once
    the engine died.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: EngineSettings,
        *,
        replay_points: Sequence[ReplayPoint] = (),
        routing: RoutingSpec | None = None,
    ) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.routing = routing if settings.return_routed_experts else None
        self.vocab_size = int(model.get_input_embeddings().weight.shape[0])
        self._model = model.eval()
        self._weights = WeightMemory(model.parameters())
        self._released: frozenset[MemoryTag] = frozenset()
        self._recorder: RoutingRecorder | None = None
        if self.routing is not None:
            self._recorder = RoutingRecorder(replay_points, self.routing, 2 * settings.max_running_requests)
        self._scheduler = Scheduler(model, tokenizer, settings, self._recorder)
        self._thread = EngineThread(self._scheduler)
        self._random = np.random.default_rng(settings.seed)
        self._reason: str | None = None

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the running step; requests that are still inside fail."""
        self._thread.close()
        if self._recorder is not None:
            self._recorder.close()

    async def generate(self, specs: Sequence[GenerateSpec]) -> list[Generated]:
        """Generate for all ``specs``; cancelling the call aborts them.

        Raises:
            EngineRequestError: if a ``rid`` is in use already, or a deterministic engine gets no seed to sample with.
            EngineUnavailable: if the engine is out of service for another reason than an update.
            EngineError: if the engine died.
        """
        requests = self._submit(specs)
        try:
            return [await request.future for request in requests]
        finally:
            self._abandon(requests)

    def stream(self, specs: Sequence[GenerateSpec]) -> RequestStream:
        """Generate for all ``specs``, which are queued at once; closing the stream aborts those that have not ended.

        Raises:
            EngineError: as :meth:`generate`, that of a dying engine from the stream.
        """
        updates: asyncio.Queue[tuple[ActiveRequest, Outcome]] = asyncio.Queue()
        requests = self._submit(specs, updates)
        return RequestStream(requests, updates, partial(self._abandon, requests))

    def _submit(
        self, specs: Sequence[GenerateSpec], updates: asyncio.Queue[tuple[ActiveRequest, Outcome]] | None = None
    ) -> list[ActiveRequest]:
        if not _passes(self._reason):
            raise _unavailable(self._reason)
        if len({spec.rid for spec in specs}) < len(specs):
            raise EngineRequestError("the rids of a batch must differ", remedy="Send unique rids, or none.")
        loop = asyncio.get_running_loop()
        requests = [ActiveRequest(spec, self._seed(spec), loop.create_future(), loop, updates) for spec in specs]
        self._thread.submit(requests)
        return requests

    def abort(self, rid: str | None = None) -> None:
        """Abort one request, or all when ``rid`` is ``None``; an unknown one is ignored."""
        live = self._thread.live()
        self._thread.abort([request for key, request in live.items() if rid is None or key == rid])

    def pause(self, mode: PauseMode) -> None:
        """Stop generating once the running step is over; new requests wait for :meth:`resume`.

        Running requests keep their KV cache (``in_place``), go back to the queue (``retract``), or all requests end
        (``abort``).
        """
        self._thread.set_gate(_PAUSE, closed=True)
        if mode == "abort":
            with self._thread.idle():
                self.abort()
        elif mode == "retract":
            with self._thread.idle():
                self._scheduler.retract_all()

    def resume(self) -> None:
        """Go on generating after :meth:`pause`."""
        self._thread.set_gate(_PAUSE, closed=False)

    def flush_cache(self) -> bool:
        """Forget all cached prefixes; refused (``False``) while requests run, or wait and generation is not paused."""
        with self._thread.idle():
            if self._busy():
                return False
            self._scheduler.clear_cache()
            return True

    def release_memory(self, tags: Iterable[MemoryTag]) -> frozenset[MemoryTag]:
        """Give memory back; returns what was not released before.

        Requests that come from now on wait for :meth:`resume_memory`, and after ``weights`` also for the commit of a
        whole update, as the released ones are lost.

        Raises:
            EngineRequestError: while requests run, or wait and generation is not paused.
        """
        with self._thread.idle():
            fresh = frozenset(tags) - self._released
            if fresh and self._busy():
                raise EngineRequestError(
                    f"the memory of {_listed(fresh)} cannot be released while requests run or wait",
                    remedy="Abort them or wait until they end.",
                )
            if "kv_cache" in fresh:
                self._scheduler.release_cache()
            if "weights" in fresh:
                self.set_out_of_service(_LOST)
                self._weights.release()
            if fresh:
                return_free_memory()
            self._set_released(self._released | fresh)
            return fresh

    def resume_memory(self, tags: Iterable[MemoryTag]) -> frozenset[MemoryTag]:
        """Take released memory again, that of the KV cache when requests need it; returns what had been released."""
        with self._thread.idle():
            back = frozenset(tags) & self._released
            if "weights" in back:
                self._weights.resume()
            self._set_released(self._released - back)
            return back

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep the engine out of forward passes; entering waits for the running one to end."""
        return self._thread.exclusive()

    def set_out_of_service(self, reason: str | None) -> None:
        """Stop forward passes for a reason, or serve again (``None``); waits for the running one to end.

        While the reason starts with ``updating`` requests wait. For any other reason those inside and those that come
        fail with :class:`EngineUnavailable`, so that a router sends them elsewhere.
        """
        self._reason = reason
        self._thread.set_gate(_SERVICE, closed=reason is not None)
        if not _passes(reason):
            with self._thread.idle():
                self._thread.fail_all(_unavailable(reason))

    def finalise(self) -> None:
        """Nothing is computed from the parameters but at each forward pass."""

    def commit_version(self, version: int) -> None:
        """Call the present weights policy version ``version``; nothing computed before serves new requests."""
        with self._thread.idle():
            self._scheduler.clear_cache()
            self._scheduler.set_version(str(version))

    def rename_version(self, version: str, *, abort_all: bool) -> None:
        """Say that the present weights are ``version``, after aborting all requests or with them inside."""
        if abort_all:
            self.abort()
        with self._thread.idle():
            self._scheduler.set_version(version)

    def parameters(self) -> dict[str, torch.Tensor]:
        """The live parameters and persistent buffers by name, sharing memory with the model; write in place.

        They stay valid over :meth:`release_memory` and :meth:`resume_memory`, but must not be touched in between.
        """
        return dict(self._model.state_dict())

    @property
    def weight_version(self) -> str:
        """The committed policy version."""
        return self._scheduler.version

    @property
    def paused(self) -> bool:
        """Whether generation is paused."""
        return self._thread.gate_closed(_PAUSE)

    @property
    def out_of_service(self) -> str | None:
        """Why the engine does not serve, or ``None``."""
        if self._thread.death is not None:
            return self._thread.death
        if self._released:
            return f"{UPDATING}: the memory of {_listed(self._released)} is released; call /resume_memory_occupation"
        return self._reason

    def load(self) -> dict[str, int]:
        """How many requests are inside and running, and how many tokens are cached for reuse."""
        return {
            "num_requests": len(self._thread.live()),
            "num_running": len(self._scheduler.running),
            "num_cached_tokens": self._scheduler.slots.cached_tokens,
        }

    def _busy(self) -> bool:
        """As SGLang sees it: what waits for the end of a pause is not inside."""
        return bool(self._scheduler.running) or (bool(self._thread.live()) and not self.paused)

    def _set_released(self, tags: frozenset[MemoryTag]) -> None:
        self._released = tags
        self._thread.set_gate(_MEMORY, closed=bool(tags))

    def _seed(self, spec: GenerateSpec) -> int:
        seed = spec.sampling.sampling_seed
        if seed is None and self.settings.deterministic and spec.sampling.temperature >= GREEDY_BELOW:
            raise EngineRequestError(
                f"a deterministic engine cannot sample request {spec.rid!r} at temperature "
                f"{spec.sampling.temperature} without a seed",
                remedy="Send sampling_seed or temperature 0, or set deterministic = false in [engine].",
            )
        if seed is None:
            return int(self._random.integers(1 << 63))
        return seed

    def _abandon(self, requests: Sequence[ActiveRequest]) -> None:
        """Abort what is not done, and read failures that a sibling already raised, so that asyncio does not warn."""
        # a cancelled call has cancelled its future too, so only a result tells that the request has left the engine
        self._thread.abort([request for request in requests if not request.future.done() or request.future.cancelled()])
        for request in requests:
            if request.future.done() and not request.future.cancelled():
                request.future.exception()


def _passes(reason: str | None) -> bool:
    return reason is None or reason.startswith(UPDATING)


def _listed(tags: Iterable[MemoryTag]) -> str:
    return " and ".join(sorted(tags))


def _unavailable(reason: str | None) -> EngineUnavailable:
    return EngineUnavailable(f"the engine is out of service: {reason}")
