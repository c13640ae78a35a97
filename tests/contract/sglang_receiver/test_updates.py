"""Updates of real SGLang, two tensor-parallel ranks, through our receiver."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from .true_layouts import assert_true_layouts

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def url(launch: Any, make_checkpoint: Callable[..., Any]) -> Iterator[str]:
    with launch(make_checkpoint("Qwen3Moe"), tp_size=2) as url:
        yield url


@pytest.fixture
async def server(
    url: str, connect: Any, make_checkpoint: Callable[..., Any], make_end: Callable[[str], Any]
) -> AsyncIterator[Any]:
    """With the weights of the first checkpoint, before and after."""
    server = connect(url)
    yield server
    await server.post("/pause_generation", {"mode": "retract"})
    await server.update(make_checkpoint("Qwen3Moe"), make_end("memory"))
    await server.must("/continue_generation", {})


async def assert_refused(server: Any, path: str, body: Any, *, status: int, words: str) -> None:
    found, reply = await server.post(path, body)
    assert found == status
    assert words in reply["error"]["message"]


async def test_ranks_that_divide_each_expert_hold_what_mapping_and_plan_say(
    server: Any, make_checkpoint: Callable[..., Any]
) -> None:
    checkpoint = make_checkpoint("Qwen3Moe")
    await assert_true_layouts(server, checkpoint, await server.ranks(checkpoint))


WAYS = [
    ("memory", "abort"),
    ("memory", "retract"),
    ("memory", "in_place"),
    ("disk", "retract"),
    ("mooncake", "retract"),
]


@pytest.mark.parametrize(("transport", "mode"), WAYS)
async def test_generation_comes_from_the_weights_of_the_update(
    server: Any, make_checkpoint: Callable[..., Any], make_end: Callable[[str], Any], transport: str, mode: str
) -> None:
    end = make_end(transport)
    before = await server.logprobs()
    await updated(server, make_checkpoint("Qwen3Moe", seed=1), end, mode)
    assert differ(before, await server.logprobs())
    version = await updated(server, make_checkpoint("Qwen3Moe"), end, mode)
    assert await server.logprobs() == before
    assert (await server.get("/model_info"))[1]["weight_version"] == str(version)


async def test_changes_alone_make_the_next_version_of_the_weights_that_the_ranks_hold(
    server: Any, make_checkpoint: Callable[..., Any], make_end: Callable[[str], Any], tmp_path: Path
) -> None:
    first, end = make_checkpoint("Qwen3Moe"), make_end("disk_delta")
    before = await server.logprobs()
    whole = await updated(server, first, end)
    assert all("base" not in delivery for delivery in end.deliveries)
    changed = await updated(server, first.nudged(tmp_path / "nudged"), end)
    assert {delivery.get("base") for delivery in end.deliveries} == {whole}
    assert differ(before, await server.logprobs())
    await updated(server, first, end)
    assert {delivery.get("base") for delivery in end.deliveries} == {changed}
    assert await server.logprobs() == before


async def updated(server: Any, checkpoint: Any, end: Any, mode: str = "retract") -> int:
    """The version under which the server serves a checkpoint's weights now."""
    await server.must("/pause_generation", {"mode": mode})
    version: int = await server.update(checkpoint, end)
    await server.must("/continue_generation", {})
    return version


def differ(one: list[float], other: list[float]) -> bool:
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.1


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_request_in_flight_has_a_span_of_each_version(
    server: Any, make_checkpoint: Callable[..., Any], make_end: Callable[[str], Any], mode: str
) -> None:
    before = await server.version()
    async with server.in_flight(200) as events:
        await server.must("/pause_generation", {"mode": mode})
        version = await server.update(make_checkpoint("Qwen3Moe", seed=1), make_end("memory"))
        await server.must("/continue_generation", {})
    meta = events[0]["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 200}
    first, second = meta["weight_versions"]
    assert (first["version"], second["version"], second["end"]) == (str(before), str(version), 200)


async def test_an_update_needs_a_pause(server: Any) -> None:
    body = {"version": 99, "transport": "memory"}
    await assert_refused(server, "/weights/begin?rank=0", body, status=409, words="needs a paused engine")


async def test_what_does_not_fit_is_refused_and_nothing_is_torn(
    server: Any, make_checkpoint: Callable[..., Any], make_end: Callable[[str], Any]
) -> None:
    checkpoint = make_checkpoint("Qwen3Moe")
    ranks = await server.ranks(checkpoint)
    version = await server.version() + 1
    await server.must("/pause_generation", {"mode": "retract"})
    unknown = {"version": version, "transport": "pigeon"}
    await assert_refused(server, "/weights/begin?rank=1", unknown, status=409, words="no transport 'pigeon'")
    await assert_refused(server, "/weights/begin?rank=2", unknown, status=400, words="0 to 1")
    await assert_refused(server, "/weights/begin?rank=1", {"version": -1}, status=400, words="version")
    await server.begin(ranks, version, make_end("memory"))
    bucket = ranks[0].buckets()[0].to_json()
    bucket["placements"][0][4] = "model.nothing.weight"
    wrong = {"version": version, "bucket": bucket, "delivery": {"segment": "none", "nbytes": 1}}
    await assert_refused(server, "/weights/receive?rank=0", wrong, status=409, words="model.nothing.weight")
    assert (await server.post("/continue_generation", {}))[0] == 503, "an update is open"
    for number in range(len(ranks)):
        assert not (await server.must(f"/weights/abort?rank={number}", {}))["torn"]
    await server.must("/continue_generation", {})
    assert await server.logprobs()


async def test_torn_weights_never_serve(
    server: Any, make_checkpoint: Callable[..., Any], make_end: Callable[[str], Any]
) -> None:
    end = make_end("memory")
    first, second = make_checkpoint("Qwen3Moe"), make_checkpoint("Qwen3Moe", seed=1)
    ranks = await server.ranks(first)
    before, version = await server.logprobs(), await server.version() + 1
    await server.must("/pause_generation", {"mode": "in_place"})
    await server.begin(ranks, version, end)
    await server.send(ranks[:1], version, end, second.tensors())
    assert (await server.must("/weights/abort?rank=0", {}))["torn"]
    assert not (await server.must("/weights/abort?rank=1", {}))["torn"]
    status, reply = await server.post("/continue_generation", {})
    assert (status, "weights are torn" in reply["message"]) == (503, True)
    status, reply = await server.get("/health")
    assert (status, "weights are torn" in reply["error"]["message"]) == (503, True)
    assert (await server.get("/weights/layout"))[1]["torn"]
    await server.update(first, end)
    await server.must("/continue_generation", {})
    assert (await server.get("/health"))[0] == 200
    assert await server.logprobs() == before


async def test_a_rank_that_is_stopped_is_an_error_and_not_a_hang(server: Any, url: str) -> None:
    victim = scheduler_of(url, "TP1")
    victim.send_signal(signal.SIGSTOP)
    try:
        await assert_refused(
            server, "/weights/checksums?rank=1", {"placements": []}, status=503, words="rank 1 of this server has not"
        )
        assert not (await server.must("/weights/abort?rank=0", {}))["torn"]
    finally:
        victim.send_signal(signal.SIGCONT)
    assert await server.must("/weights/checksums?rank=1", {"placements": []})


def scheduler_of(url: str, name: str) -> psutil.Process:
    """The process of one rank of the server that listens there."""
    port = url.rpartition(":")[2]
    mine = psutil.Process(os.getpid()).children(recursive=True)
    (main,) = (one for one in mine if is_server(one, port))
    (found,) = (one for one in main.children() if one.cmdline()[:1] == [f"sglang::scheduler_{name}"])
    return found


def is_server(process: psutil.Process, port: str) -> bool:
    words = process.cmdline()
    return any(word.endswith("serve.py") for word in words[1:2]) and words[-2:] == ["--port", port]
