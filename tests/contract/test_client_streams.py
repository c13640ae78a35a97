"""Our client's streamed calls against both engines: the same generation, and its ids as they come."""

from __future__ import annotations

import string
import uuid
from itertools import pairwise
from typing import Any

import anyio
import numpy as np
import pytest

from miles_core.api import SamplingParams
from miles_core.errors import EngineRequestError
from miles_core.types import GenerateRequest, Generation

pytestmark = pytest.mark.anyio
PROMPT = [3, 4, 5, 6]
CHARACTERS = ["<pad>", "<eos>", "<unk>", *string.ascii_lowercase, *string.digits, " "]


def request_of(served: Any, prompt: list[int], **sampling: Any) -> GenerateRequest:
    """Under a rid that comes once, as SGLang asks of streams."""
    options = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 40, **sampling})
    return GenerateRequest(prompt, options, f"{uuid.uuid4().hex}.", return_routed_experts=served.model == "moe")


async def streamed(served: Any, request: GenerateRequest) -> tuple[list[list[int]], Generation]:
    got: list[list[int]] = []
    found = await served.client().generate(request, on_tokens=lambda ids: got.append(list(ids)))
    return got, found


def flat(parts: list[list[int]]) -> list[int]:
    return [token for part in parts for token in part]


async def test_a_streamed_call_returns_what_the_same_call_returns(served: Any) -> None:
    whole = await served.client().generate(request_of(served, PROMPT))
    got, found = await streamed(served, request_of(served, PROMPT))
    assert len(got) > 1, "they came while they were generated"
    assert flat(got) == found.output_ids.tolist() == whole.output_ids.tolist()
    assert found.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert (found.finish_reason, found.versions) == (whole.finish_reason, whole.versions)
    if served.model == "moe":
        np.testing.assert_array_equal(found.routed_experts, whole.routed_experts)


async def test_several_streams_at_once_are_apart(served: Any) -> None:
    requests = [request_of(served, [3 + number, 4], temperature=0.8) for number in range(6)]
    ended: list[int] = []

    async def ask(number: int) -> None:
        got, found = await streamed(served, requests[number])
        assert flat(got) == found.output_ids.tolist()
        expected = served.reference.logprobs(requests[number].input_ids, flat(got), 0.8)
        assert found.logprobs == pytest.approx(expected, abs=1e-3)
        ended.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(len(requests)):
            tasks.start_soon(ask, number)
    assert sorted(ended) == list(range(6))


async def test_a_stop_text_ends_it_and_all_its_tokens_are_kept(served: Any) -> None:
    """What may become the stop is held back, and comes with the end."""
    whole = (await served.client().generate(request_of(served, PROMPT))).output_ids.tolist()
    spelled = [CHARACTERS[token] for token in whole]
    text, pairs = "".join(spelled), [first + second for first, second in pairwise(spelled)]
    # the last place where two letters stand together for the first time
    place = max(n for n, pair in enumerate(pairs) if len(pair) == 2 and text.find(pair) == len("".join(spelled[:n])))
    stop, expected = pairs[place], whole[: place + 2]
    got: list[int] = []
    for on_tokens in (None, got.extend):
        found = await served.client().generate(request_of(served, PROMPT, stop=("-", stop)), on_tokens=on_tokens)
        assert (found.finish_reason.type, found.finish_reason.matched) == ("stop", stop)
        assert found.output_ids.tolist() == expected
        assert len(found.logprobs) == len(expected)
    assert got == expected


async def test_an_abort_in_the_middle_keeps_what_came(served: Any) -> None:
    request = request_of(served, PROMPT, max_new_tokens=1900, temperature=3.0)
    got: list[int] = []
    found: list[Generation] = []
    begun = anyio.Event()

    def seen(ids: Any) -> None:
        got.extend(ids)
        begun.set()

    async def ask() -> None:
        found.append(await served.client().generate(request, on_tokens=seen))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await begun.wait()
        await served.post("/abort_request", {"rid": request.rid})
    assert found[0].finish_reason.type in ("abort", "stop"), "its own eos may come first"
    assert got == found[0].output_ids.tolist()
    assert len(found[0].logprobs) == len(got)
    if served.model == "moe":
        np.testing.assert_array_equal(found[0].routed_experts, served.reference.routes([*PROMPT, *got])[:-1])


async def test_cancelling_a_streamed_call_ends_its_request(served: Any) -> None:
    request = request_of(served, PROMPT, max_new_tokens=1900)
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            await served.client().generate(request, on_tokens=lambda ids: tasks.cancel_scope.cancel())

        tasks.start_soon(ask)
    assert await served.rid_comes_free(request.rid)


async def test_a_value_that_the_engine_refuses_is_a_request_error_of_a_stream_too(served: Any) -> None:
    """SGLang says so in its first event, after it answered 200."""
    request = request_of(served, PROMPT, temperature=-1.0)
    for on_tokens in (None, lambda ids: None):
        with pytest.raises(EngineRequestError, match="temperature"):
            await served.client().generate(request, on_tokens=on_tokens)


async def test_a_json_schema_holds_the_output_or_is_refused(served: Any) -> None:
    request = request_of(served, PROMPT, json_schema='{"type": "integer"}', max_new_tokens=4)
    if served.engine == "embedded":
        with pytest.raises(EngineRequestError, match="no constrained decoding"):
            await streamed(served, request)
        return
    got, found = await streamed(served, request)
    assert flat(got) == found.output_ids.tolist()
    assert "".join(CHARACTERS[token] for token in flat(got) if token > 2).isdecimal()
