"""Resumed turns: an aborted turn goes on where it stopped and becomes one generated turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from miles_core.errors import SessionError
from miles_core.session.session import TokenSession
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import (
    FinishReason,
    GenerateRequest,
    Generation,
    Message,
    RoutingSpec,
    SamplingParams,
    Status,
    VersionSpan,
)

pytestmark = pytest.mark.anyio
IM_END = 2
SPEC = RoutingSpec(num_layers=2, layer_ids=(0, 1), num_experts=250, top_k=1)
ASK = [Message("user", "value of c?")]
SAMPLING = SamplingParams(temperature=0.7, max_new_tokens=8, sampling_seed=5)


class AbortingEngine:
    """Answers piece by piece: all but the last are aborted. Routing rows tell their position, versions the call."""

    def __init__(self, chat: ChatTokenizer, pieces: Sequence[str], versions: Sequence[int], last: str = "stop") -> None:
        self.chat, self.pieces, self.versions, self.last = chat, pieces, versions, last
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        call = len(self.requests)
        self.requests.append(request)
        final = call == len(self.pieces) - 1
        ids = self.chat.encode(self.pieces[call]) + [IM_END] * (final and self.last == "stop")
        total = len(request.input_ids) + len(ids)
        spans = (VersionSpan(self.versions[call], 0, len(ids)),) if ids else ()
        return Generation(
            np.array(ids, np.int32),
            np.full(len(ids), -1.0 - call, np.float32),
            FinishReason(self.last if final else "abort"),
            spans,
            self._rows(request, total) if ids else None,
            cached_tokens=10 * call,
        )

    def _rows(self, request: GenerateRequest, total: int) -> np.ndarray | None:
        if not request.return_routed_experts:
            return None
        positions = np.arange(request.routed_experts_start_len, total - 1, dtype=np.uint8)
        return np.repeat(positions[:, None, None], 2, axis=1)


@pytest.fixture
def open_session(chat: ChatTokenizer) -> Callable[..., TokenSession]:
    def make(engine: AbortingEngine, spec: RoutingSpec | None = SPEC) -> TokenSession:
        return TokenSession(chat, engine, spec, task_id="t", group_id="g", trajectory_id="x")

    return make


@pytest.mark.parametrize("spec", [SPEC, None])
async def test_a_resumed_turn_is_one_turn_with_a_span_for_each_version(spec, chat, open_session) -> None:
    engine = AbortingEngine(chat, ["ge", "t c"], [3, 4])
    session = open_session(engine, spec)
    partial = await session.generate(session.prepare(ASK), SAMPLING)
    turn = await session.resume(partial)
    assert turn.message.text == "get c"
    assert turn.generation.versions == (VersionSpan(3, 0, 2), VersionSpan(4, 2, 6))
    assert turn.generation.logprobs.tolist() == [-1.0] * 2 + [-2.0] * 4
    assert turn.generation.finish_reason.type == "stop"
    assert turn.generation.cached_tokens == 0
    sample = session.samples(status=Status.COMPLETED)[0]
    assert chat.decode(sample.tokens[sample.loss_mask == 1].tolist()) == "get c<|im_end|>"
    start = len(sample.tokens) - 6
    assert sample.versions == (VersionSpan(3, start, start + 2), VersionSpan(4, start + 2, start + 6))
    if spec is not None:
        assert sample.routing.experts[:, 0, 0].tolist() == list(range(len(sample.tokens) - 1))


async def test_the_next_call_feeds_prompt_and_partial_and_asks_for_the_rows_that_are_missing(
    chat, open_session
) -> None:
    engine = AbortingEngine(chat, ["ge", "t c"], [3, 4])
    session = open_session(engine)
    await session.resume(await session.generate(session.prepare(ASK), SAMPLING))
    first, second = engine.requests
    assert list(second.input_ids) == [*first.input_ids, *chat.encode("ge")]
    assert second.routed_experts_start_len == len(second.input_ids) - 1
    assert replace(second.sampling, sampling_seed=5) == SamplingParams(0.7, 8 - 2, (IM_END,), 5)
    assert second.sampling.sampling_seed != 5, "noise that was used would be used again"
    assert second.rid != first.rid


async def test_a_turn_may_be_aborted_again_and_spans_of_one_version_become_one(chat, open_session) -> None:
    engine = AbortingEngine(chat, ["", "g", "et", " c"], [3, 3, 3, 5])
    session = open_session(engine)
    turn = await session.generate(session.prepare(ASK), SAMPLING)
    while turn.generation.finish_reason.type == "abort":
        turn = await session.resume(turn)
    assert turn.message.text == "get c"
    assert turn.generation.versions == (VersionSpan(3, 0, 3), VersionSpan(5, 3, 6))
    assert [request.sampling.max_new_tokens for request in engine.requests] == [8, 8, 7, 5]
    trace = session.samples(status=Status.COMPLETED)[0].routing
    assert trace.experts[:, 1, 0].tolist() == list(range(trace.rows))


async def test_the_conversation_goes_on_after_a_resumed_turn_and_not_after_the_aborted_one(chat, open_session) -> None:
    engine = AbortingEngine(chat, ["ge", "t c", "2"], [3, 4, 4])
    session = open_session(engine)
    partial = await session.generate(session.prepare(ASK), SAMPLING)
    engine.pieces, answer = ["ge", "t c"], engine.pieces  # the resumed turn ends by itself
    turn = await session.resume(partial)
    engine.pieces = answer
    await session.generate(session.prepare([*ASK, turn.message, Message("tool", "2")]), SAMPLING)
    sample = session.samples(status=Status.COMPLETED)[0]
    assert chat.decode(sample.tokens[sample.loss_mask == 1].tolist()) == "get c<|im_end|>2<|im_end|>"
    assert sample.routing.experts[:, 0, 0].tolist() == list(range(len(sample.tokens) - 1))


async def test_only_an_aborted_turn_of_this_session_with_room_left_can_be_resumed(chat, open_session) -> None:
    session = open_session(AbortingEngine(chat, ["ge", "t c"], [3, 4]))
    partial = await session.generate(session.prepare(ASK), SAMPLING)
    with pytest.raises(SessionError, match="only a turn of this session"):
        await open_session(AbortingEngine(chat, ["x"], [0])).resume(partial)
    with pytest.raises(SessionError, match="this one ended with 'stop'"):
        await session.resume(await session.resume(partial))
    full = open_session(AbortingEngine(chat, ["get c", ""], [3, 4]))
    whole = await full.generate(full.prepare(ASK), SamplingParams(max_new_tokens=5))
    with pytest.raises(SessionError, match="all of its 5 tokens"):
        await full.resume(whole)
