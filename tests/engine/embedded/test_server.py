"""The embedded engine over HTTP on loopback: SGLang's requests, replies, errors and control endpoints."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pybase64
import pytest
import torch
from starlette.responses import JSONResponse
from starlette.routing import Route

from miles_core.engine.embedded.server import create_app

pytestmark = pytest.mark.anyio
GREEDY = {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}


async def test_the_reply_has_sglangs_shape(make_engine: Any, served: Any, post: Any, moe: Any, reference: Any) -> None:
    async with served(make_engine(moe)) as (url, http):
        body = {"rid": "x", "input_ids": [3, 4, 5], "sampling_params": GREEDY, "return_logprob": True}
        body |= {"return_routed_experts": True, "routed_experts_start_len": 2, "some_future_key": 1}
        status, reply = await post(http, f"{url}/generate", body)
    assert status == 200
    meta, ids = reply["meta_info"], reply["output_ids"]
    assert set(reply) == {"text", "output_ids", "meta_info"}
    assert meta["id"] == "x"
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (3, 5, 0)
    assert meta["weight_version"] == "0"
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": 5}]
    assert [entry[1:] for entry in meta["output_token_logprobs"]] == [[token, None] for token in ids]
    rows = np.frombuffer(pybase64.b64decode(meta["routed_experts"]), np.int32).reshape(3 + 5 - 1 - 2, 3, 2)
    plain = reference(moe, [3, 4, 5, *ids])
    np.testing.assert_array_equal(rows[:, [1, 2]], plain.routing[2:-1])
    assert not rows[:, 0].any()


async def test_without_asking_there_are_no_logprobs_and_no_routing(
    make_engine: Any, served: Any, post: Any, moe: Any
) -> None:
    async with served(make_engine(moe)) as (url, http):
        _, reply = await post(http, f"{url}/generate", {"input_ids": [3], "sampling_params": GREEDY})
    assert not {"output_token_logprobs", "routed_experts"} & set(reply["meta_info"])


async def test_a_batch_of_lists_or_texts_answers_a_list_in_order(
    make_engine: Any, served: Any, post: Any, moe: Any, tokenizer: Any
) -> None:
    async with served(make_engine(moe)) as (url, http):
        texts = ["abc", "de", "f"]
        _, singles = (
            200,
            [(await post(http, f"{url}/generate", {"text": text, "sampling_params": GREEDY}))[1] for text in texts],
        )
        _, batch = await post(http, f"{url}/generate", {"text": texts, "sampling_params": GREEDY})
        body = {
            "input_ids": [tokenizer.encode(text) for text in texts],
            "sampling_params": [GREEDY] * 3,
            "rid": ["a", "b", "c"],
        }
        _, by_ids = await post(http, f"{url}/generate", body)
    outputs = [reply["output_ids"] for reply in singles]
    assert outputs == [reply["output_ids"] for reply in batch] == [reply["output_ids"] for reply in by_ids]
    assert [reply["meta_info"]["id"] for reply in by_ids] == ["a", "b", "c"]


async def test_text_is_trimmed_at_stops_while_output_ids_keep_them(
    make_engine: Any, served: Any, post: Any, moe: Any, tokenizer: Any
) -> None:
    async with served(make_engine(moe)) as (url, http):

        async def ask(**sampling: Any) -> Any:
            sampling = {"temperature": 1, "sampling_seed": 3, "max_new_tokens": 30, **sampling}
            status, reply = await post(http, f"{url}/generate", {"text": "abc", "sampling_params": sampling})
            assert status == 200, reply
            return reply

        free = await ask(ignore_eos=True)
        text = free["text"]
        assert text == tokenizer.decode(free["output_ids"], skip_special_tokens=True)
        stop = next(text[i : i + 2] for i in range(4, len(text)) if text[i : i + 2] not in text[: i + 1])
        by_text = await ask(stop=[stop, "zzzzzz"], ignore_eos=True)
        untrimmed = await ask(stop=stop, ignore_eos=True, no_stop_trim=True)
        token = free["output_ids"][3]
        by_token = await ask(stop_token_ids=[token])
    assert by_text["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert by_text["text"] == text[: text.index(stop)]
    assert untrimmed["text"] == text[: text.index(stop) + 2]
    assert by_text["output_ids"] == free["output_ids"][: len(by_text["output_ids"])]
    assert by_token["meta_info"]["finish_reason"]["type"] == "stop"
    assert by_token["output_ids"][-1] == by_token["meta_info"]["finish_reason"]["matched"]
    assert by_token["text"] == tokenizer.decode(by_token["output_ids"][:-1], skip_special_tokens=True)


async def test_an_invalid_request_is_a_400_that_says_why_and_the_engine_lives_on(
    make_engine: Any, served: Any, post: Any, moe: Any
) -> None:
    async with served(make_engine(moe)) as (url, http):
        body = {"input_ids": [3, 4, 5], "sampling_params": {"temprature": 1}}
        status, reply = await post(http, f"{url}/generate", body)
        alive, _ = await post(http, f"{url}/generate", {"input_ids": [3], "sampling_params": GREEDY})
    assert status == 400
    assert "unknown sampling_params key 'temprature'" in reply["error"]["message"]
    assert alive == 200


async def test_a_body_that_is_no_json_object_is_a_400(make_engine: Any, served: Any, post: Any, moe: Any) -> None:
    async with served(make_engine(moe)) as (url, http):
        async with http.post(f"{url}/generate", data=b"{") as response:
            assert response.status == 400
        assert (await post(http, f"{url}/generate", [1]))[0] == 400


async def test_routed_experts_of_a_dense_model_are_a_400(make_engine: Any, served: Any, post: Any, dense: Any) -> None:
    async with served(make_engine(dense)) as (url, http):
        status, reply = await post(http, f"{url}/generate", {"input_ids": [3], "return_routed_experts": True})
    assert status == 400
    assert "--enable-return-routed-experts" in reply["error"]["message"]


async def test_a_client_that_disconnects_aborts_its_request(make_engine: Any, served: Any, gate: Any, moe: Any) -> None:
    engine = make_engine(moe)
    steps = gate(engine)
    async with served(engine) as (url, http):
        body = {"input_ids": [3], "sampling_params": {"max_new_tokens": 120, "ignore_eos": True}}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: http.post(f"{url}/generate", json=body))
            await steps.at_forward()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(10):
            while engine._thread.live() and not engine._thread._aborts:
                await anyio.sleep(0.01)
        steps.open()
        with anyio.fail_after(10):
            while engine.load()["num_requests"]:
                await anyio.sleep(0.01)  # a busy loop would keep the engine's lock from its thread
        # the prefill, and at most the decode of the same step
        assert engine.load()["num_cached_tokens"] <= 2


async def test_pause_abort_and_continue_over_http(
    make_engine: Any, served: Any, post: Any, gate: Any, moe: Any
) -> None:
    engine = make_engine(moe, max_running_requests=1)
    steps = gate(engine)
    replies: dict[str, Any] = {}
    async with served(engine) as (url, http):

        async def ask(rid: str) -> None:
            body = {"rid": rid, "input_ids": [3, 4], "sampling_params": {**GREEDY, "max_new_tokens": 100}}
            replies[rid] = await post(http, f"{url}/generate", body)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "running")
            await steps.at_forward()
            tasks.start_soon(ask, "queued")
            while len(engine._thread.live()) < 2:
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(post, http, f"{url}/pause_generation", {"mode": "in_place"})
            while not engine._thread._holds:
                await anyio.lowlevel.checkpoint()
            steps.open()
            while not engine.paused or engine._thread._holds:
                await anyio.lowlevel.checkpoint()
            assert (await post(http, f"{url}/flush_cache", {}))[0] == 400
            assert (await post(http, f"{url}/health_generate", {}))[0] == 405
            async with http.get(f"{url}/health_generate") as response:
                assert response.status == 503
            assert await post(http, f"{url}/abort_request", {"abort_all": True}) == (200, "")
        status, running = replies["running"]
        assert status == 200
        assert running["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(running["output_ids"]) == running["meta_info"]["completion_tokens"] == 2
        status, queued = replies["queued"]
        assert (status, queued["output_ids"]) == (200, [])
        assert set(queued["meta_info"]) == {
            "id",
            "finish_reason",
            "completion_tokens",
            "weight_version",
            "weight_versions",
        }
        assert (await post(http, f"{url}/continue_generation", {}))[0] == 200
        assert (await post(http, f"{url}/flush_cache", {}))[0] == 200
        assert (await post(http, f"{url}/pause_generation", {"mode": "later"}))[0] == 400
        assert (await post(http, f"{url}/abort_request", {}))[0] == 200
        assert (await post(http, f"{url}/abort_request", None))[0] == 400
        assert (await post(http, f"{url}/abort_request", {"rid": "unknown"}))[0] == 200


async def test_a_client_that_leaves_a_stream_aborts_it(make_engine: Any, served: Any, gate: Any, moe: Any) -> None:
    engine = make_engine(moe)
    steps = gate(engine)
    async with served(engine) as (url, http):
        body = {"input_ids": [3, 4], "stream": True, "sampling_params": {**GREEDY, "max_new_tokens": 100}}
        # one for the prompt and one for the next token
        steps.permit(2)
        async with http.post(f"{url}/generate", json=body) as reply:
            event = json.loads((await reply.content.readline()).removeprefix(b"data: "))
            assert len(event["output_ids"]) == 2
        with anyio.fail_after(20):
            while not engine._thread._aborts:
                await anyio.lowlevel.checkpoint()
            steps.permit()
            while engine.load()["num_requests"]:
                await anyio.lowlevel.checkpoint()


async def test_an_engine_that_dies_ends_its_streams_with_an_error(
    make_engine: Any, served: Any, gate: Any, own_moe: Any
) -> None:
    engine = make_engine(own_moe)
    steps = gate(engine)
    async with served(engine) as (url, http):
        body = {"input_ids": [3, 4], "stream": True, "sampling_params": {**GREEDY, "max_new_tokens": 100}}
        # one for the prompt and one for the next token
        steps.permit(2)
        async with http.post(f"{url}/generate", json=body) as reply:
            await reply.content.readline()
            with torch.no_grad():
                own_moe.lm_head.weight.fill_(float("nan"))
            steps.open()
            lines = [line async for line in reply.content if line.strip()]
    assert "not finite" in json.loads(lines[-2].removeprefix(b"data: "))["error"]["message"]
    assert lines[-1].strip() == b"data: [DONE]"


async def test_health_and_information(make_engine: Any, served: Any, moe: Any) -> None:
    engine = make_engine(moe, model_path="models/tiny", weight_version="7")
    async with served(engine) as (url, http):

        async def get(path: str) -> tuple[int, str]:
            async with http.get(f"{url}{path}") as response:
                return response.status, await response.text()

        assert (await get("/health"))[0] == 200
        assert (await get("/health_generate"))[0] == 200
        for path in ("/model_info", "/get_model_info"):
            assert json.loads((await get(path))[1]) == {
                "model_path": "models/tiny",
                "is_generation": True,
                "weight_version": "7",
                "context_length": 128,
                "vocab_size": 40,
            }
        assert json.loads((await get("/server_info"))[1])["max_running_requests"] == 8
        engine.set_out_of_service("torn weights")
        status, text = await get("/health")
        assert status == 503
        assert "torn weights" in text
        status, text = await get("/nowhere")
        assert status == 404
        assert "/nowhere" in json.loads(text)["error"]["message"]


async def test_a_crash_is_a_500_with_its_cause_and_health_503(
    make_engine: Any, served: Any, post: Any, own_moe: Any
) -> None:
    with torch.no_grad():
        own_moe.lm_head.weight.fill_(float("nan"))
    async with served(make_engine(own_moe)) as (url, http):
        for _ in range(2):
            status, reply = await post(http, f"{url}/generate", {"input_ids": [3, 4]})
            assert status == 500
            assert "not finite" in reply["error"]["message"]
        async with http.get(f"{url}/health") as response:
            assert response.status == 503


async def test_extra_routes_find_the_engine(make_engine: Any, serve: Any, post: Any, moe: Any) -> None:
    async def names(request: Any) -> JSONResponse:
        return JSONResponse(sorted(request.app.state.engine.parameters()))

    import aiohttp

    app = create_app(make_engine(moe), [Route("/names", names, methods=["POST"])])
    async with serve(app) as url, aiohttp.ClientSession() as http:
        assert await post(http, f"{url}/names", {}) == (200, sorted(moe.state_dict()))
