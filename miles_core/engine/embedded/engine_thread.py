"""The one thread that steps the scheduler, and the lock under which others touch what it owns."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from miles_core.engine.embedded.unavailable import EngineUnavailable
from miles_core.errors import EngineError, EngineRequestError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence

    from miles_core.engine.embedded.request import ActiveRequest, Outcome
    from miles_core.engine.embedded.scheduler import Scheduler

_LOGGER = logging.getLogger(__name__)
_RESTART = "Read the engine's log, then restart it."


class EngineThread:
    """Steps a :class:`Scheduler` while it has work and nothing forbids it.

    A step runs outside the lock; everything else that touches the scheduler holds the lock while no step runs. A
    *gate* is a named standing reason against stepping; a *hold* is a short one that a caller has in its hands.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.death: str | None = None
        self._scheduler = scheduler
        self._changed = threading.Condition()
        self._live: dict[str, ActiveRequest] = {}
        self._inbox: list[ActiveRequest] = []
        self._aborts: dict[str, ActiveRequest] = {}
        self._gates: set[str] = set()
        self._holds = 0
        self._stepping = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="embedded-engine", daemon=True)

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the running step; requests that are still inside fail."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            self.fail_all(EngineError("the engine is shutting down"))

    def submit(self, requests: Sequence[ActiveRequest]) -> None:
        """Queue requests.

        Raises:
            EngineRequestError: if a ``rid`` is in use.
            EngineError: if the engine died or closes.
        """
        with self._changed:
            if self.death is not None or self._closing:
                raise self._gone()
            for request in requests:
                rid = request.spec.rid
                if rid in self._live:
                    raise EngineRequestError(f"rid {rid!r} is in use by another request", remedy="Send unique rids.")
            self._live.update((request.spec.rid, request) for request in requests)
            self._inbox.extend(requests)
            self._changed.notify_all()

    def abort(self, requests: Sequence[ActiveRequest]) -> None:
        """Abort those of ``requests`` that are still inside, between two steps."""
        with self._changed:
            for request in requests:
                if self._live.get(request.spec.rid) is request:
                    self._aborts[request.spec.rid] = request
            self._changed.notify_all()

    def live(self) -> dict[str, ActiveRequest]:
        """The requests inside, by rid."""
        with self._changed:
            return dict(self._live)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Hold the lock while no step runs; what the block changed is settled and delivered at its end.

        Raises:
            EngineUnavailable: if the engine died.
        """
        with self._changed:
            self._holds += 1
            try:
                self._wait_for_step()
                yield
                self._settle()
            finally:
                self._holds -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep steps from running, without the lock: requests may come and wait meanwhile.

        Raises:
            EngineUnavailable: if the engine died.
        """
        with self._changed:
            self._holds += 1
        try:
            with self._changed:
                self._wait_for_step()
            yield
        finally:
            with self._changed:
                self._holds -= 1
                self._changed.notify_all()

    def set_gate(self, name: str, *, closed: bool) -> None:
        """Close or open one gate; closing returns when no step runs."""
        with self.idle():
            if closed:
                self._gates.add(name)
            else:
                self._gates.discard(name)

    def gate_closed(self, name: str) -> bool:
        """Whether a gate is closed."""
        return name in self._gates

    def fail_all(self, failure: EngineError) -> None:
        """Fail every request inside; call it in :meth:`idle` or when the thread is gone."""
        requests = list(self._live.values())
        self._live.clear()
        self._inbox.clear()
        self._aborts.clear()
        self._scheduler.drop_all()
        _hand_over([(request, failure) for request in requests])

    def _wait_for_step(self) -> None:
        """Wait under the lock until no step runs."""
        self._changed.wait_for(lambda: not self._stepping)
        if self.death is not None:
            raise EngineUnavailable(self.death, remedy=_RESTART)

    def _gone(self) -> EngineError:
        if self.death is None:
            return EngineError("the engine is shutting down")
        return EngineError(self.death, remedy=_RESTART)

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._begin_step():
                    self._scheduler.step()
        except Exception as failure:
            _LOGGER.exception("the engine thread died")
            with self._changed:
                self.death = f"the engine died: {failure!r}"
                self._stepping = False
                self.fail_all(self._gone())
                self._changed.notify_all()

    def _begin_step(self) -> bool:
        """End the last step, wait until one may run, and begin it; ``False`` when the engine closes."""
        with self._changed:
            self._stepping = False
            self._changed.notify_all()
            self._settle()
            while not self._closing and not self._runnable():
                self._changed.wait()
                self._settle()
            self._stepping = not self._closing
            return self._stepping

    def _runnable(self) -> bool:
        return not self._gates and not self._holds and self._scheduler.has_work

    def _settle(self) -> None:
        """Take in new requests, carry out aborts, and hand over what is finished; under the lock, between steps."""
        self._deliver()
        self._scheduler.waiting.extend(self._inbox)
        self._inbox.clear()
        # a request that the last step finished is not live any more
        self._scheduler.abort([request for rid, request in self._aborts.items() if self._live.get(rid) is request])
        self._aborts.clear()
        self._deliver()

    def _deliver(self) -> None:
        partial, self._scheduler.partial = self._scheduler.partial, []
        finished, self._scheduler.finished = self._scheduler.finished, []
        for request, _ in finished:
            del self._live[request.spec.rid]
        _hand_over([*partial, *finished])


def _hand_over(outcomes: Sequence[tuple[ActiveRequest, Outcome]]) -> None:
    """Give what requests have to their own event loops, with one wake-up per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[ActiveRequest, Outcome]]] = defaultdict(list)
    for request, outcome in outcomes:
        by_loop[request.loop].append((request, outcome))
    for loop, batch in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, batch)


def _resolve(batch: Sequence[tuple[ActiveRequest, Outcome]]) -> None:
    for request, outcome in batch:
        if request.updates is not None:
            request.updates.put_nowait((request, outcome))
        if request.future.done():
            continue
        if isinstance(outcome, EngineError):
            request.future.set_exception(outcome)
        elif outcome.finish_reason is not None:
            request.future.set_result(outcome)
