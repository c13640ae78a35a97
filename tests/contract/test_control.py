"""Health, information, the cache, and memory."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.anyio
GREEDY = {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ready"])
async def test_a_serving_engine_is_healthy(served: Any, path: str) -> None:
    assert await served.get(path) == (200, "")


async def test_health_is_told_while_generation_is_paused(served: Any) -> None:
    await served.post("/pause_generation", {"mode": "in_place"})
    assert await served.get("/health") == (200, "")


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
async def test_the_model_is_described(served: Any, path: str) -> None:
    status, info = await served.get(path)
    assert status == 200
    assert (info["model_path"], info["weight_version"], info["is_generation"]) == (served.model_path, "0", True)


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
async def test_the_settings_are_described(served: Any, path: str) -> None:
    status, info = await served.get(path)
    assert status == 200
    assert (info["context_length"], info["max_running_requests"]) == (2048, 8)
    assert info["enable_return_routed_experts"] is (served.model == "moe")


async def test_flushing_forgets_prefixes(served: Any) -> None:
    prompt = [9, 8, 7, 6, 5, 4, 3]
    await served.generate(prompt, GREEDY)
    assert (await served.generate(prompt, GREEDY))["meta_info"]["cached_tokens"] == len(prompt) - 1
    assert (await served.post("/flush_cache"))[0] == 200
    assert (await served.generate(prompt, GREEDY))["meta_info"]["cached_tokens"] == 0
    assert (await served.get("/flush_cache"))[0] == 200


async def test_a_prefix_is_not_shared_over_different_salts(served: Any) -> None:
    prompt = [9, 8, 7, 6, 5, 4, 30]
    await served.generate(prompt, GREEDY, extra_key="red")
    meta = (await served.generate(prompt, GREEDY, extra_key="blue"))["meta_info"]
    assert meta["cached_tokens"] == 0


async def test_flushing_is_refused_while_requests_run(served: Any) -> None:
    async with served.in_flight():
        assert (await served.post("/flush_cache"))[0] == 400
        await served.post("/abort_request", {"abort_all": True})


@pytest.mark.parametrize("body", [{}, {"tags": ["kv_cache"]}])
async def test_memory_of_the_cache_can_be_released_and_taken_again(served: Any, body: Any) -> None:
    """Of the weights too, but what they then hold differs: see docs/engines.md."""
    if not body:
        body = {"tags": ["kv_cache"]}
    before = await served.generate([3, 4, 5], GREEDY)
    assert (await served.post("/release_memory_occupation", body))[0] == 200
    assert (await served.post("/resume_memory_occupation", body))[0] == 200
    after = await served.generate([3, 4, 5], GREEDY)
    assert after["output_ids"] == before["output_ids"]
    assert after["meta_info"]["cached_tokens"] == 0


@pytest.mark.parametrize("path", ["/release_memory_occupation", "/resume_memory_occupation"])
async def test_memory_needs_a_body(served: Any, path: str) -> None:
    assert (await served.post(path))[0] == 400
