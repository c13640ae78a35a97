"""What a weight update aborted goes on from its last token, as if nothing had happened; other aborts stay aborts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from miles_core.app.colocation import Colocated
from miles_core.app.fleet import Fleet
from miles_core.app.fleet_client import FleetClient
from miles_core.errors import EngineError
from miles_core.types import FinishReason, GenerateRequest, Generation, RoutingSpec, SamplingParams, VersionSpan

from .engine_processes import Engines

pytestmark = pytest.mark.anyio
SPEC = RoutingSpec(num_layers=2, layer_ids=(0, 1), num_experts=250, top_k=1)
STOP = 3
REQUEST = GenerateRequest((7, 8, 9), SamplingParams(max_new_tokens=12, stop_token_ids=(STOP,), sampling_seed=5), "r")
LIMIT = FinishReason("length")
ABORT = FinishReason("abort", message="Abort All")


@dataclass(frozen=True)
class Answer:
    """One call: ``tokens`` of output, then ``then`` happens, then the reply. ``kept``: what the reply has of them."""

    tokens: int
    finish: FinishReason = ABORT
    then: Callable[[], Any] | None = None
    kept: int | None = None
    last: int | None = None


class Engine:
    """Its token, logprob and routing row at a position depend on the position only; the version is the fleet's."""

    def __init__(self, fleet: Fleet, *answers: Answer) -> None:
        self.fleet, self.answers = fleet, list(answers)
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest, *, on_tokens: Any = None) -> Generation:
        self.requests.append(request)
        answer, version = self.answers.pop(0), self.fleet.version
        first = len(request.input_ids)
        ids = np.arange(first, first + answer.tokens, dtype=np.int32) + 100
        if answer.last is not None:
            ids[-1] = answer.last
        for one in ids.tolist() if on_tokens is not None else ():
            on_tokens([one])
        await anyio.lowlevel.checkpoint()
        if answer.then is not None:
            await answer.then()
        return self.reply(request, ids[: answer.kept], answer.finish, version)

    def reply(self, request: GenerateRequest, ids: Any, finish: FinishReason, version: int) -> Generation:
        spans = (VersionSpan(version, 0, len(ids)),) if len(ids) else ()
        end = len(request.input_ids) + len(ids)
        rows = None
        if request.return_routed_experts and len(ids):
            positions = np.arange(request.routed_experts_start_len, end - 1, dtype=np.uint8)
            rows = np.repeat(positions[:, None, None], 2, axis=1)
        logprobs = -np.arange(end - len(ids), end, dtype=np.float32)
        return Generation(ids, logprobs, finish, spans, rows, cached_tokens=len(request.input_ids) - 1)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    engines = Engines(tmp_path)
    fleet = engines.fleet()
    async with fleet.running():
        await fleet.open(engines.router)
        yield fleet


def update(fleet: Fleet) -> Callable[[], Any]:
    """A whole update of the fleet."""

    async def run() -> None:
        async with fleet.update(fleet.version + 1):
            await anyio.lowlevel.checkpoint()

    return run


async def generate(engine: Engine, request: GenerateRequest = REQUEST, on_tokens: Any = None) -> Generation:
    with anyio.fail_after(20):
        generation = await FleetClient(engine, engine.fleet, SPEC).generate(request, on_tokens=on_tokens)
    assert engine.answers == []
    return generation


def assert_same(found: Generation, expected: Generation) -> None:
    """But for the versions."""
    assert found.output_ids.tolist() == expected.output_ids.tolist()
    assert found.logprobs.tolist() == expected.logprobs.tolist()
    assert found.finish_reason == expected.finish_reason
    assert found.cached_tokens == expected.cached_tokens
    assert (found.routed_experts is None) == (expected.routed_experts is None)
    if found.routed_experts is not None and expected.routed_experts is not None:
        assert found.routed_experts.dtype == expected.routed_experts.dtype
        assert found.routed_experts.tolist() == expected.routed_experts.tolist()


@pytest.mark.parametrize("start", [None, 0, 2])
@pytest.mark.parametrize("cuts", [[5], [1, 0, 4], [0, 11], [3, 3, 3]])
async def test_the_joined_reply_is_that_of_one_undisturbed_call(
    fleet: Fleet, cuts: list[int], start: int | None
) -> None:
    request = replace(REQUEST, return_routed_experts=start is not None, routed_experts_start_len=start or 0)
    undisturbed = await generate(Engine(fleet, Answer(12, LIMIT)), request)
    aborted = [Answer(tokens, then=update(fleet)) for tokens in cuts]
    engine = Engine(fleet, *aborted, Answer(12 - sum(cuts), LIMIT))
    found = await generate(engine, request)
    assert_same(found, replace(undisturbed, cached_tokens=2))
    ends = [sum(cuts[:n]) for n in range(len(cuts) + 1)] + [12]
    assert found.versions == tuple(
        VersionSpan(v, *ends[v : v + 2]) for v in range(len(cuts) + 1) if ends[v] < ends[v + 1]
    )


async def test_what_is_asked_for_next_is_the_rest_under_another_rid_and_seed(fleet: Fleet) -> None:
    engine = Engine(fleet, Answer(5, then=update(fleet)), Answer(3, then=update(fleet)), Answer(4, LIMIT))
    await generate(engine, replace(REQUEST, return_routed_experts=True))
    first, *later = engine.requests
    assert [list(one.input_ids) for one in later] == [[7, 8, 9, *range(103, 103 + n)] for n in (5, 8)]
    assert [one.sampling.max_new_tokens for one in later] == [7, 4]
    assert [one.routed_experts_start_len for one in later] == [7, 10]
    assert [one.rid for one in later] == ["again-r", "again-again-r"]
    assert len({one.sampling.sampling_seed for one in engine.requests}) == 3
    assert {one.sampling.stop_token_ids for one in engine.requests} == {first.sampling.stop_token_ids}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"tokens": 12}, FinishReason("length")),
        ({"tokens": 4, "last": STOP}, FinishReason("stop", matched=STOP)),
        ({"tokens": 12, "last": STOP}, FinishReason("stop", matched=STOP)),
    ],
)
async def test_an_abort_that_came_with_the_last_token_is_the_end_that_was_reached(
    fleet: Fleet, answer: dict[str, int], reason: FinishReason
) -> None:
    found = await generate(Engine(fleet, Answer(**answer, then=update(fleet))))
    assert (len(found.output_ids), found.finish_reason) == (answer["tokens"], reason)


async def test_the_last_token_may_come_with_a_later_abort(fleet: Fleet) -> None:
    found = await generate(Engine(fleet, Answer(5, then=update(fleet)), Answer(7, then=update(fleet))))
    assert (found.output_ids.tolist(), found.finish_reason) == (list(range(103, 115)), LIMIT)


@pytest.mark.parametrize("extra", [{"stop": ("END",)}, {"json_schema": "{}"}])
async def test_stop_texts_and_schemas_are_made_again_from_the_beginning(fleet: Fleet, extra: dict[str, Any]) -> None:
    request = replace(REQUEST, sampling=replace(REQUEST.sampling, **extra))
    engine = Engine(fleet, Answer(5, then=update(fleet)), Answer(12, LIMIT))
    found = await generate(engine, request)
    assert engine.requests[1] == replace(request, rid="again-r")
    assert found.output_ids.tolist() == list(range(103, 115))
    assert found.versions == (VersionSpan(1, 0, 12),), "nothing of the first try is left"


@pytest.mark.parametrize("cuts", [[5], [0, 5], [5, 0], [5, 0, 0, 3]])
async def test_a_stream_shows_each_token_once(fleet: Fleet, cuts: list[int]) -> None:
    shown: list[int] = []
    aborted = [Answer(tokens, then=update(fleet)) for tokens in cuts]
    found = await generate(Engine(fleet, *aborted, Answer(12 - sum(cuts), LIMIT)), on_tokens=shown.extend)
    assert shown == found.output_ids.tolist() == list(range(103, 115))
    assert found.finish_reason == LIMIT


@pytest.mark.parametrize("extra", [{"stop": ("END",)}, {"json_schema": "{}"}])
async def test_a_stream_that_showed_what_cannot_be_continued_ends_in_the_abort(
    fleet: Fleet, extra: dict[str, Any]
) -> None:
    shown: list[int] = []
    request = replace(REQUEST, sampling=replace(REQUEST.sampling, **extra))
    found = await generate(Engine(fleet, Answer(5, then=update(fleet))), request, shown.extend)
    assert (found.finish_reason, shown) == (ABORT, list(range(103, 108)))


@pytest.mark.parametrize("before", [0, 4])
async def test_a_stream_that_showed_more_than_its_reply_kept_ends_in_the_abort(fleet: Fleet, before: int) -> None:
    shown: list[int] = []
    first = [Answer(before, then=update(fleet))] if before else []
    found = await generate(Engine(fleet, *first, Answer(5, kept=0, then=update(fleet))), on_tokens=shown.extend)
    assert found.finish_reason == ABORT
    assert found.output_ids.tolist() == list(range(103, 103 + before))
    assert shown == list(range(103, 103 + before + 5))


@pytest.mark.parametrize("shown_by_the_dead", [0, 2])
async def test_a_continued_stream_outlives_an_engine_unless_tokens_came_since(
    fleet: Fleet, shown_by_the_dead: int, monkeypatch
) -> None:
    async def die() -> None:
        raise EngineError("connection reset")

    async def met_since(_: int) -> bool:
        return True

    monkeypatch.setattr(fleet.outages, "met_since", met_since)
    shown: list[int] = []
    answers = [Answer(5, then=update(fleet)), Answer(shown_by_the_dead, then=die)]
    if shown_by_the_dead:
        with pytest.raises(EngineError, match="connection reset"):
            await generate(Engine(fleet, *answers), on_tokens=shown.extend)
    else:
        found = await generate(Engine(fleet, *answers, Answer(7, LIMIT)), on_tokens=shown.extend)
        assert shown == found.output_ids.tolist() == list(range(103, 115))


async def test_an_abort_that_arrives_while_the_update_goes_on_is_continued(fleet: Fleet) -> None:
    begun, may_end = anyio.Event(), anyio.Event()

    async def long_update() -> None:
        async with fleet.update(1):
            begun.set()
            await may_end.wait()

    async def end() -> None:
        may_end.set()

    engine = Engine(fleet, Answer(5, then=begun.wait), Answer(7, LIMIT, then=end))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(long_update)
        found = await generate(engine)
    assert found.output_ids.tolist() == list(range(103, 115))


async def test_one_of_an_update_that_failed_is_continued_too(fleet: Fleet) -> None:
    async def fail() -> None:
        with pytest.raises(RuntimeError):
            async with fleet.update(1):
                raise RuntimeError

    found = await generate(Engine(fleet, Answer(5, then=fail), Answer(7, LIMIT)))
    assert found.finish_reason == LIMIT


async def test_an_abort_that_no_update_caused_stays_one(fleet: Fleet) -> None:
    await update(fleet)()
    found = await generate(Engine(fleet, Answer(5)))
    assert (found.finish_reason, found.output_ids.tolist()) == (ABORT, list(range(103, 108)))


async def test_an_abort_after_the_continuation_of_another_one_keeps_all_tokens(fleet: Fleet) -> None:
    found = await generate(Engine(fleet, Answer(5, then=update(fleet)), Answer(2)))
    assert (found.finish_reason, found.output_ids.tolist()) == (ABORT, list(range(103, 110)))


async def test_the_drain_of_a_colocated_run_aborts_for_good(fleet: Fleet, monkeypatch) -> None:
    """Also a request that an update of another engine had met before."""
    draining, drained = anyio.Event(), anyio.Event()

    async def drain(*_: Any) -> None:
        draining.set()
        await drained.wait()

    monkeypatch.setattr(Colocated, "_drain", drain)
    monkeypatch.setattr("miles_core.app.colocation.EngineExchange.all", _nothing)
    http: Any = None

    async def drain_begins() -> None:
        await update(fleet)()
        tasks.start_soon(train)
        await draining.wait()

    async def train() -> None:
        async with Colocated(fleet, http, timeout=10).training():
            pass

    async with anyio.create_task_group() as tasks:
        found = await generate(Engine(fleet, Answer(5, then=drain_begins)))
        drained.set()
    assert found.finish_reason == ABORT
    assert not fleet.aborted_since(fleet.updates)
    assert fleet.aborted_since(fleet.updates - 1), "later aborts may come from updates again"


async def _nothing(*_: Any, **__: Any) -> dict[str, str]:
    return {}


async def test_a_call_that_over_sampling_cancels_is_not_made_again(fleet: Fleet) -> None:
    engine = Engine(fleet, Answer(5, then=anyio.sleep_forever))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(FleetClient(engine, fleet).generate, REQUEST)
        while not engine.requests:
            await anyio.lowlevel.checkpoint()
        await update(fleet)()
        tasks.cancel_scope.cancel()
    assert len(engine.requests) == 1
