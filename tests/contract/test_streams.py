"""Streams: server-sent events, which add up to the same reply."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.anyio
GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


async def test_events_grow_to_the_reply_without_a_stream(served: Any) -> None:
    options: dict[str, Any] = {"rid": "s", "return_logprob": True}
    whole = await served.generate([3, 4, 5], GREEDY, **options)
    async with served.stream([3, 4, 5], GREEDY, **options) as events:
        seen = [event async for event in events]
    for event in seen:
        length = len(event["output_ids"])
        assert event["output_ids"] == whole["output_ids"][:length]
        assert whole["text"].startswith(event["text"])
        meta = event["meta_info"]
        assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("s", 3, length)
        assert [entry[1] for entry in meta["output_token_logprobs"]] == event["output_ids"]
        assert meta["weight_version"] == "0"
    lengths = [len(event["output_ids"]) for event in seen]
    assert lengths == sorted(set(lengths))
    assert all(event["meta_info"]["finish_reason"] is None for event in seen[:-1])
    last = seen[-1]["meta_info"]
    assert last["finish_reason"] == {"type": "length", "length": 6}
    assert last["weight_versions"] == [{"version": "0", "start": 0, "end": 6}]
    assert seen[-1]["text"] == whole["text"]
    found = [entry[0] for entry in last["output_token_logprobs"]]
    assert found == pytest.approx(served.reference.logprobs([3, 4, 5], seen[-1]["output_ids"]), abs=1e-4)


async def test_sglang_sends_what_is_new_and_the_embedded_engine_all_so_far(served: Any) -> None:
    body = {"input_ids": [3, 4, 5], "sampling_params": GREEDY, "stream": True}
    async with served.http.post(f"{served.url}/generate", json=body) as reply:
        lines = (await reply.text()).splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    whole = (await served.generate([3, 4, 5], GREEDY))["output_ids"]
    ids = [event["output_ids"] for event in events]
    assert len(ids) > 1
    assert whole == (ids[-1] if served.engine == "embedded" else [token for new in ids for token in new])


@pytest.mark.parametrize("model", ["moe"], indirect=True)
async def test_routed_experts_come_with_the_last_event(served: Any) -> None:
    async with served.stream([3, 4, 5], GREEDY, return_routed_experts=True) as events:
        seen = [event async for event in events]
    assert not [event for event in seen[:-1] if "routed_experts" in event["meta_info"]]
    assert served.rows(seen[-1]).shape == (3 + 6 - 1, 2, 2)


async def test_events_of_a_batch_say_which_prompt_they_belong_to(served: Any) -> None:
    prompts = [[3, 4], [5]]
    whole = await served.generate(prompts, GREEDY)
    async with served.stream(prompts, GREEDY) as events:
        last = {event["index"]: event["output_ids"] async for event in events}
    assert last == {0: whole[0]["output_ids"], 1: whole[1]["output_ids"]}


async def test_several_samples_are_streams_of_one_answer(served: Any) -> None:
    async with served.stream([3, 4], {**GREEDY, "n": 2}) as events:
        last = {event["index"]: event["output_ids"] async for event in events}
    assert sorted(last) == [0, 1]
    assert last[0] == last[1]


async def test_no_event_shows_what_a_stop_string_takes_back(served: Any) -> None:
    pairs = [first + second for first in "bcfghijlmqrtvwxy" for second in "z7"]
    sampling = {"max_new_tokens": 1500, "temperature": 3.0, "ignore_eos": True, "stop": pairs}
    async with served.stream([3, 4], sampling) as events:
        seen = [event async for event in events]
    final = seen[-1]["text"]
    assert seen[-1]["meta_info"]["finish_reason"]["matched"] in pairs
    assert [event["text"] for event in seen if not final.startswith(event["text"])] == []


async def test_a_client_that_leaves_a_stream_aborts_it(served: Any) -> None:
    async with served.stream([3, 4], {"max_new_tokens": 2000, "ignore_eos": True}, rid="left") as events:
        await events.until(2)
    assert await served.rid_comes_free("left")


async def test_an_unknown_parameter_of_a_stream_is_a_400(served: Any) -> None:
    body = {"input_ids": [3], "stream": True, "sampling_params": {"temprature": 1}}
    assert (await served.post("/generate", body))[0] == 400


async def test_a_bad_value_in_a_stream_is_a_400_or_an_event(served: Any) -> None:
    """SGLang looks at values after it has begun to answer."""
    body = {"input_ids": [3], "stream": True, "sampling_params": {"temperature": -1}}
    status, text = await served.post("/generate", body)
    assert status == 400 or '{"error":' in text
    assert "temperature" in str(text)
