"""Sessions: exact tokens, masks, logprobs, versions and routing of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio
import numpy as np
import pytest

from miles_core.errors import RoutingError, SessionError
from miles_core.session.session import TokenSession
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import (
    FinishReason,
    GenerateRequest,
    Generation,
    ImagePart,
    Message,
    RoutingSpec,
    SamplingParams,
    Status,
    VersionSpan,
)

pytestmark = pytest.mark.anyio
IM_END = 2
SPEC = RoutingSpec(num_layers=3, layer_ids=(1, 2), num_experts=8, top_k=2)
SAMPLING = SamplingParams(max_new_tokens=8)


def experts_at(position: int, call: int) -> list[list[int]]:
    """Recognisable experts per MoE layer: position decides the first, the call the second."""
    return [[(position + layer) % 4, 4 + (call + layer) % 4] for layer in SPEC.layer_ids]


class ScriptedEngine:
    """Answers with scripted texts; routing rows tell their position and call."""

    def __init__(self, chat: ChatTokenizer, *texts: str, finish: str = "stop") -> None:
        self.chat, self.texts, self.finish = chat, list(texts), finish
        self.requests: list[GenerateRequest] = []
        self.cut_rows = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        call = len(self.requests)
        self.requests.append(request)
        ids = self.chat.encode(self.texts[call])
        reason = FinishReason(self.finish, matched=IM_END if self.finish == "stop" else None)
        output = np.array(ids + [IM_END] * (self.finish == "stop"), np.int32)
        total = len(request.input_ids) + len(output)
        positions = range(request.routed_experts_start_len, total - 1 - self.cut_rows)
        rows = np.array([experts_at(p, call) for p in positions], np.uint8).reshape(-1, 2, 2)
        logprobs = -0.5 - np.arange(len(output), dtype=np.float32)
        versions = (VersionSpan(call, 0, len(output)),)
        return Generation(output, logprobs, reason, versions, rows if request.return_routed_experts else None)


@pytest.fixture
def open_session(chat: ChatTokenizer) -> Callable[..., TokenSession]:
    def make(engine: ScriptedEngine, spec: RoutingSpec | None = SPEC) -> TokenSession:
        return TokenSession(chat, engine, spec, task_id="t", group_id="g", trajectory_id="x")

    return make


async def play(session: TokenSession, shown: Sequence[str]) -> list[Message]:
    messages = [Message("user", "value of c?")]
    for observation in [*shown, None]:
        turn = await session.generate(session.prepare(messages), SAMPLING)
        messages.append(turn.message)
        if observation is not None:
            messages.append(Message("tool", observation))
    return messages


async def test_two_turns_give_one_sample_with_mask_one_on_generated_tokens_only(chat, open_session) -> None:
    session = open_session(ScriptedEngine(chat, "get c", "2"))
    await play(session, ["2"])
    sample = session.samples(status=Status.COMPLETED)[0]
    assert chat.decode(sample.tokens.tolist()) == (
        "<|im_start|>user\nvalue of c?<|im_end|>\n<|im_start|>assistant\nget c<|im_end|>"
        "\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n2<|im_end|>"
    )
    trained = sample.tokens[sample.loss_mask == 1]
    assert chat.decode(trained.tolist()) == "get c<|im_end|>2<|im_end|>"
    assert sample.logprobs[sample.loss_mask == 1].tolist() == [-0.5, -1.5, -2.5, -3.5, -4.5, -5.5, -0.5, -1.5]
    assert not sample.logprobs[sample.loss_mask == 0].any()
    assert [(s.version, s.end - s.start) for s in sample.versions] == [(0, 6), (1, 2)]
    for span in sample.versions:
        assert sample.loss_mask[span.start : span.end].all()


async def test_the_second_turn_sends_the_stored_ids_of_the_first(chat, open_session) -> None:
    engine = ScriptedEngine(chat, "get c", "2")
    await play(open_session(engine), ["2"])
    first, second = engine.requests
    stored = [*first.input_ids, *chat.encode("get c"), IM_END]
    assert list(second.input_ids[: len(stored)]) == stored
    assert second.sampling.stop_token_ids == (IM_END,)


async def test_routing_rows_belong_to_the_call_that_sampled_from_them(chat, open_session) -> None:
    """radixark/miles#3307: a prefix fed again later must not overwrite the routes of decode time."""
    engine = ScriptedEngine(chat, "get c", "2")
    session = open_session(engine)
    await play(session, ["2"])
    first, second = engine.requests
    rows_of_first = len(first.input_ids) + 6 - 1
    assert second.routed_experts_start_len == rows_of_first
    trace = session.samples(status=Status.COMPLETED)[0].routing
    assert trace is not None
    assert trace.layer_ids == (1, 2)
    assert trace.experts.dtype == np.uint8
    for position in range(trace.rows):
        call = 0 if position < rows_of_first else 1
        assert trace.experts[position].tolist() == experts_at(position, call)


async def test_missing_routing_rows_are_an_error_that_names_both_counts(chat, open_session) -> None:
    engine = ScriptedEngine(chat, "get c")
    engine.cut_rows = 1
    with pytest.raises(RoutingError, match=r"\(24, 2, 2\).*\(23, 2, 2\)"):
        await play(open_session(engine), [])


@pytest.mark.parametrize("change", ["none", "foreign", "wire"])
async def test_rows_that_are_no_rows_of_this_model_are_refused(change: str, chat, open_session) -> None:
    engine = ScriptedEngine(chat, "get c")
    answer = engine.generate

    async def generate(request: GenerateRequest) -> Generation:
        reply = await answer(request)
        changed = {"none": None, "foreign": reply.routed_experts[:, :1], "wire": reply.routed_experts.astype(np.int32)}
        return replace(reply, routed_experts=changed[change])

    engine.generate = generate
    with pytest.raises(RoutingError, match=r"need uint8 \(24, 2, 2\).*got (none|uint8 \(24, 1, 2\)|int32)"):
        await play(open_session(engine), [])


async def test_each_turn_keeps_its_own_rows_and_the_sample_joins_them_once(chat, open_session) -> None:
    session = open_session(ScriptedEngine(chat, "get c", "2", "3"))
    await play(session, ["2", "3"])
    nodes = session.tree.nodes
    added = [len(nodes[0].tokens()) - 1, *(len(node.context_ids) + len(node.output_ids) for node in nodes[1:])]
    assert [len(node.routing) for node in nodes] == added
    assert [node.rows for node in nodes] == np.cumsum(added).tolist()
    trace = session.samples(status=Status.COMPLETED)[0].routing
    np.testing.assert_array_equal(trace.experts, np.concatenate([node.routing for node in nodes]))
    with pytest.raises(ValueError, match="read-only"):
        trace.experts[0] = 0


async def test_an_aborted_turn_makes_a_sample_that_cannot_be_trained(chat, open_session) -> None:
    session = open_session(ScriptedEngine(chat, "ge", finish="abort"))
    turn = await session.generate(session.prepare([Message("user", "value of c?")]), SAMPLING)
    assert turn.generation.finish_reason.type == "abort"
    sample = session.samples(status=Status.ABORTED)[0]
    assert not sample.status.trainable
    assert sample.routing.rows == len(sample.tokens) - 1


async def test_a_retried_turn_becomes_a_sibling_and_poisons_nothing(chat, open_session) -> None:
    session = open_session(ScriptedEngine(chat, "get c", "get d", "3"))
    ask = [Message("user", "value of c?")]
    await session.generate(session.prepare(ask), SAMPLING)
    retry = await session.generate(session.prepare(ask), SAMPLING)
    assert retry.message.text == "get d"
    conversation = [*ask, retry.message, Message("tool", "3")]
    await session.generate(session.prepare(conversation), SAMPLING)
    sample = session.samples(status=Status.COMPLETED)[0]
    assert "get d" in chat.decode(sample.tokens.tolist())
    assert "get c" not in chat.decode(sample.tokens.tolist())


async def test_a_turn_belongs_to_the_parent_that_its_prompt_was_prepared_for(chat, open_session) -> None:
    """A sibling stored between prepare and generate spells the same message with other tokens."""
    engine = ScriptedEngine(chat, "get c", "get c", "2")
    session = open_session(engine)
    ask = [Message("user", "value of c?")]
    first = await session.generate(session.prepare(ask), SAMPLING)
    prompt = session.prepare([*ask, first.message, Message("tool", "2")])
    engine.finish = "length"  # so that the sibling lacks the stop token
    await session.generate(session.prepare(ask), SAMPLING)
    engine.finish = "stop"
    await session.generate(prompt, SAMPLING)
    sample = session.samples(status=Status.COMPLETED)[0]
    assert sample.tokens[: len(prompt.input_ids)].tolist() == list(prompt.input_ids)
    assert [span.version for span in sample.versions] == [0, 2]


async def test_concurrent_turns_of_one_session_are_told_apart(chat, open_session) -> None:
    engine = ScriptedEngine(chat, "get c", "get d")
    answer, both = engine.generate, anyio.Event()

    async def generate(request: GenerateRequest) -> Generation:
        reply = await answer(request)
        if len(engine.requests) == 2:
            both.set()
        await both.wait()
        return reply

    engine.generate = generate
    session = open_session(engine)
    prompt = session.prepare([Message("user", "value of c?")])
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.generate, prompt, SAMPLING)
            tasks.start_soon(session.generate, prompt, SAMPLING)
    assert len({request.rid for request in engine.requests}) == 2
    assert {node.response.text for node in session.tree.nodes} == {"get c", "get d"}
    assert all(node.tokens()[: len(prompt.input_ids)].tolist() == list(prompt.input_ids) for node in session.tree.nodes)


async def test_a_prompt_that_no_session_prepared_is_refused(chat, open_session) -> None:
    session = open_session(ScriptedEngine(chat, "get c"))
    prompt = replace(session.prepare([Message("user", "value of c?")]), parent="turn 7")
    with pytest.raises(SessionError, match="must be a stored turn; got str"):
        await session.generate(prompt, SAMPLING)


async def test_a_stop_token_at_the_length_limit_is_not_written_twice(chat, open_session) -> None:
    engine = ScriptedEngine(chat, "get c", "2")
    session = open_session(engine)
    answer = engine.generate

    async def generate(request: GenerateRequest) -> Generation:
        return replace(await answer(request), finish_reason=FinishReason("length"))

    engine.generate = generate
    await play(session, ["2"])
    text = chat.decode(session.samples(status=Status.COMPLETED)[0].tokens.tolist())
    assert "get c<|im_end|>\n<|im_start|>tool" in text


async def test_images_are_refused_not_dropped(chat, open_session) -> None:
    session = open_session(ScriptedEngine(chat, "x"))
    with pytest.raises(SessionError, match="text messages"):
        session.prepare([Message("user", (ImagePart("a.png"),))])


async def test_answers_that_are_not_the_policys_begin_another_conversation_where_they_cannot_be_appended(
    chat, open_session
) -> None:
    session = open_session(ScriptedEngine(chat, "get c", "2"))
    messages = await play(session, ["2"])
    edited = [*messages[:3], Message("assistant", "3"), Message("user", "sure?")]
    prompt = session.prepare(edited)
    text = chat.decode(prompt.input_ids.tolist())
    assert text.endswith("assistant\n3<|im_end|>\n<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n")
    assert text.count("get c") == 1


def test_a_prompt_holds_its_tokens_as_one_array(chat, open_session) -> None:
    prompt = open_session(ScriptedEngine(chat)).prepare([Message("user", "value of c?")])
    assert prompt.input_ids.dtype == np.int32
    assert prompt.appended_tokens == len(prompt.input_ids)
