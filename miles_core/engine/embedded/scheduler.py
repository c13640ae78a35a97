"""Continuous batching: prefill what waits, decode what runs, hand over what is finished."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from miles_core.engine.embedded.admission import plan_prefill
from miles_core.engine.embedded.columns import Columns
from miles_core.engine.embedded.request import Generated, Progress
from miles_core.engine.embedded.runner import ModelRunner
from miles_core.engine.embedded.sampler import sample, sample_each
from miles_core.engine.embedded.slots import SlotTable
from miles_core.engine.embedded.stopping import eos_token_ids, matched_stop, may_become_stop, token_endings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from miles_core.engine.embedded.admission import Prefill
    from miles_core.engine.embedded.request import ActiveRequest
    from miles_core.engine.embedded.routing import RoutingRecorder
    from miles_core.engine.embedded.settings import EngineSettings

# where each token is a pass of its own, a longer prefill gains nothing and delays what waits for the step to end
_DETERMINISTIC_PREFILL = 64
_ABORTED = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
_ABORTED_WAITING = {"type": "abort", "message": "Abort in waiting queue"}


class Scheduler:
    """All requests of one engine; not thread-safe, its owner serialises the calls.

    Half of the slots keep the tokens of finished requests when every running slot is in use. What ends goes to
    ``finished``, and what streamed requests have after a step to ``partial``; the owner drains both.
    """

    def __init__(self, model: Any, tokenizer: Any, settings: EngineSettings, recorder: RoutingRecorder | None) -> None:
        self.version = settings.weight_version
        self.waiting: deque[ActiveRequest] = deque()
        self.running: dict[int, ActiveRequest] = {}
        self.finished: list[tuple[ActiveRequest, Generated]] = []
        self.partial: list[tuple[ActiveRequest, Generated]] = []
        self.slots = SlotTable(2 * settings.max_running_requests)
        self._tokenizer = tokenizer
        self._settings = settings
        self._eos = eos_token_ids(model, tokenizer)
        self._columns = Columns(self.slots.size)
        self._recorder = recorder
        self._runner = ModelRunner(
            model, self.slots, recorder, settings.context_length, deterministic=settings.deterministic
        )
        self._sample = sample_each if settings.deterministic else sample
        self._max_prefill_tokens = settings.max_prefill_tokens
        if settings.deterministic:
            self._max_prefill_tokens = min(_DETERMINISTIC_PREFILL, settings.max_prefill_tokens)
        self._vocab_size = int(model.get_input_embeddings().weight.shape[0])

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.waiting or self.running)

    def step(self) -> None:
        """One prefill batch if anything waits and fits, then one token for everything that runs."""
        room = self._settings.max_running_requests - len(self.running)
        if self.waiting and room > 0:
            self._prefill(room)
        if self.running:
            self._decode()

    def abort(self, requests: Iterable[ActiveRequest]) -> None:
        """End requests where they are; running ones hand over what they have, as in SGLang waiting ones nothing."""
        for request in requests:
            if request.slot >= 0:
                self._finish(request.slot, dict(_ABORTED))
            else:
                self.waiting.remove(request)
                self.finished.append((request, self._aborted_waiting(request)))

    def retract_all(self) -> None:
        """Put running requests back at the head of the queue with their outputs, and free their slots."""
        for slot in sorted(self.running, reverse=True):
            request = self.running[slot]
            request.progress = self._progress(slot)
            request.retractions += 1
            request.slot = -1
            self.slots.release(slot)
            self.waiting.appendleft(request)
        self.running.clear()

    def clear_cache(self) -> None:
        """Forget all cached prefixes."""
        self.slots.clear()

    def release_cache(self) -> None:
        """Forget all cached prefixes and give their memory back; call it when no request is inside."""
        self.clear_cache()
        self._runner.release()

    def set_version(self, version: str) -> None:
        """Later tokens come from weights of ``version``."""
        self.version = version
        for slot, request in self.running.items():
            request.mark_version(version, int(self._columns.length[slot] - self._columns.prompt[slot]))

    def drop_all(self) -> None:
        """Forget every request and all that is cached; the owner fails them."""
        self.waiting.clear()
        self.finished.clear()
        self.partial.clear()
        for slot in self.running:
            self.slots.release(slot)
        self.running.clear()
        self.clear_cache()

    def _prefill(self, room: int) -> None:
        plan = plan_prefill(
            self.waiting,
            self.slots,
            room=room,
            max_tokens=self._max_prefill_tokens,
            reserve=self._runner.reserve,
        )
        self._copy_prefixes(plan)
        slots = np.array([request.slot for request in plan.requests])
        starts, lengths = np.array(plan.cached), np.array(plan.lengths)
        for request, cached in zip(plan.requests, plan.cached, strict=True):
            self._enter(request, cached)
        logits = self._runner.forward(slots, starts, lengths - starts)
        for request in plan.requests:
            self._resume(request)
        self._append(slots, logits)

    def _copy_prefixes(self, plan: Prefill) -> None:
        if plan.copies:
            sources, targets, lengths = np.array(plan.copies).T
            self._runner.copy_prefixes(sources, targets, int(lengths.max()))

    def _enter(self, request: ActiveRequest, cached: int) -> None:
        self.running[request.slot] = request
        outputs = 0 if request.progress is None else len(request.progress.output_ids)
        request.mark_version(self.version, outputs)
        if request.cached_tokens is None:
            request.cached_tokens = cached
        self._columns.set(
            request, context_length=self._settings.context_length, vocab_size=self._vocab_size, eos=self._eos
        )

    def _resume(self, request: ActiveRequest) -> None:
        """Put back what a retracted request had recorded: the rows and logprobs it really sampled from."""
        if request.progress is None:
            return
        start, end = len(request.spec.prompt), int(self._columns.length[request.slot])
        self.slots.logprobs[request.slot, start:end] = request.progress.logprobs
        if self._recorder is not None and request.progress.routing is not None:
            self._recorder.restore(request.slot, request.progress.routing)
        request.progress = None

    def _decode(self) -> None:
        # in slot order, so that neighbouring slots can be read without a copy
        slots = np.array(sorted(self.running))
        lengths = self._columns.length[slots]
        self._runner.reserve(int(lengths.max()) + 1)
        self._append(slots, self._runner.forward(slots, lengths - 1, np.ones_like(lengths)))

    def _append(self, slots: NDArray[np.int64], logits: torch.Tensor) -> None:
        open_rows = self._columns.length[slots] < self._columns.limit[slots]
        if not open_rows.all():
            # asked for no token at all
            for slot in slots[~open_rows].tolist():
                self._finish(slot, {"type": "length", "length": 0})
            slots, logits = slots[open_rows], logits[torch.from_numpy(open_rows)]
            if not len(slots):
                return
        ids, logprobs = self._sample(logits, self._columns, slots)
        positions = self._columns.length[slots]
        self.slots.tokens[slots, positions] = ids
        self.slots.logprobs[slots, positions] = logprobs
        self._columns.length[slots] = positions + 1
        # as in SGLang, a stop string is looked for before a stop token
        self._check_stop_strings(slots)
        for slot, reason in token_endings(ids, self._columns, slots):
            if slot in self.running:
                self._finish(slot, reason)
        self._note_partial(slots)

    def _check_stop_strings(self, slots: NDArray[np.int64]) -> None:
        for slot in slots.tolist():
            stops = self.running[slot].spec.sampling.stop
            matched = matched_stop(self._tokenizer, self._outputs(slot, self.slots.tokens), stops) if stops else None
            if matched is not None:
                self._finish(slot, {"type": "stop", "matched": matched})

    def _note_partial(self, slots: NDArray[np.int64]) -> None:
        for slot in slots.tolist():
            request = self.running.get(slot)
            if request is None or request.updates is None:
                continue
            stops = request.spec.sampling.stop
            if not stops or not may_become_stop(self._tokenizer, self._outputs(slot, self.slots.tokens), stops):
                progress = self._progress(slot, with_routing=False)
                self.partial.append((request, self._result(request, progress, None)))

    def _finish(self, slot: int, reason: dict[str, Any]) -> None:
        request = self.running.pop(slot)
        progress = self._progress(slot, with_routing=request.spec.return_routed_experts)
        self.slots.retire(slot)
        request.slot = -1
        self.finished.append((request, self._result(request, progress, reason)))

    def _aborted_waiting(self, request: ActiveRequest) -> Generated:
        nothing = np.zeros(0, np.int32)
        version = request.versions[0][0] if request.versions else self.version
        spans, reason = ((version, 0, 0),), dict(_ABORTED_WAITING)
        return Generated(request.spec, nothing, nothing.astype(np.float32), reason, version, spans, ran=False)

    def _result(self, request: ActiveRequest, progress: Progress, reason: dict[str, Any] | None) -> Generated:
        spans = request.spans(len(progress.output_ids))
        return Generated(
            spec=request.spec,
            output_ids=progress.output_ids,
            logprobs=progress.logprobs,
            finish_reason=reason,
            version=spans[-1][0],
            spans=spans,
            cached_tokens=request.cached_tokens or 0,
            retractions=request.retractions,
            routing=progress.routing if request.spec.return_routed_experts else None,
        )

    def _progress(self, slot: int, *, with_routing: bool = True) -> Progress:
        rows = None
        if with_routing and self._recorder is not None:
            # the row of the last token exists only if it was fed; nothing was sampled from it
            fed = min(int(self.slots.computed[slot]), int(self._columns.length[slot]) - 1)
            rows = self._recorder.rows(slot, fed)
        outputs, logprobs = self._outputs(slot, self.slots.tokens), self._outputs(slot, self.slots.logprobs)
        return Progress(outputs.copy(), logprobs.copy(), rows)

    def _outputs(self, slot: int, table: NDArray[Any]) -> NDArray[Any]:
        """A view of a slot's generated part."""
        return table[slot, self._columns.prompt[slot] : self._columns.length[slot]]
