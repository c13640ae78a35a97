"""Workers that die and clients that leave."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

pytestmark = pytest.mark.anyio

HALF = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 60\r\n\r\n{"text": "half of'
HALF_OF_MUCH = b"HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n" + b"x" * 2_000_000
HALF_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Hanging:
    """A worker's answer that never comes, or stops after its first chunk; counts the clients that hung up."""

    def __init__(self, *, stream: bool = False) -> None:
        self.stream = stream
        self.started = 0
        self.hung_up = 0

    async def __call__(self, scope, receive, send):
        self.started += 1
        if self.stream:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"data: He\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        self.hung_up += 1


@pytest.mark.parametrize("broken", [HALF, CHUNKED_HEAD, b"", b"HTTP/1.1 2"])
async def test_a_worker_that_dies_before_the_clients_first_byte_costs_a_retry(rig, broken):
    bad, good = await rig.raw_worker(broken), await rig.worker((200, {}, b'{"text": "whole"}'))
    router = await rig.router(bad, good)

    status, _, body = await rig.fetch("POST", f"{router}/generate", data=b"{}")

    assert (status, body) == (200, b'{"text": "whole"}')
    assert bad.attempts == 1


async def test_half_an_answer_is_a_502_that_names_the_worker(rig):
    bad = await rig.raw_worker(HALF)
    router = await rig.router(bad)

    status, headers, body = await rig.fetch("POST", f"{router}/generate", data=b"{}")

    assert status == 502
    assert headers["content-type"] == "application/json"
    error = json.loads(body)["error"]
    assert error["type"] == "worker_failed"
    assert bad.url in error["message"]
    assert "/workers" in error["remedy"]
    assert bad.attempts == 4
    assert await rig.in_flight(router) == [0]


@pytest.mark.parametrize("broken", [HALF_OF_MUCH, HALF_CHUNKED])
async def test_an_answer_that_breaks_off_in_its_stream_reaches_the_client_broken(rig, broken):
    bad = await rig.raw_worker(broken)
    router = await rig.router(bad)

    with pytest.raises(aiohttp.ClientPayloadError):
        await rig.fetch("POST", f"{router}/generate", data=b"{}")

    assert bad.attempts == 1
    assert await rig.in_flight(router) == [0]


@pytest.mark.parametrize("broken", [HALF, b""])
async def test_a_control_call_whose_answer_breaks_off_is_not_sent_again(rig, broken):
    bad, good = await rig.raw_worker(broken), await rig.worker()
    router = await rig.router(bad, good)

    status, _, _ = await rig.fetch("POST", f"{router}/update_weights_from_distributed", data=b"{}")

    assert status == 502
    assert (bad.attempts, len(good.seen)) == (1, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_closes_the_connection_to_the_worker(rig, eventually, stream):
    hanging = Hanging(stream=stream)
    router = await rig.router(await rig.worker(hanging))

    async def started() -> bool:
        return hanging.started == 1

    async def hung_up() -> bool:
        return hanging.hung_up == 1

    request = asyncio.create_task(rig.fetch("POST", f"{router}/generate", data=b"{}"))
    await eventually(started)
    assert hanging.hung_up == 0
    request.cancel()
    await asyncio.wait([request])
    await eventually(hung_up)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hundred_clients_that_leave_leave_no_count_behind(rig, eventually, stream):
    hanging = Hanging(stream=stream)
    router = await rig.router(await rig.worker(hanging))

    async def all_in_flight() -> bool:
        return await rig.in_flight(router) == [100]

    async def none_in_flight() -> bool:
        return await rig.in_flight(router) == [0] and hanging.hung_up == 100

    requests = [asyncio.create_task(rig.fetch("POST", f"{router}/generate", data=b"{}")) for _ in range(100)]
    await eventually(all_in_flight)
    for request in requests:
        request.cancel()
    await asyncio.wait(requests)
    await eventually(none_in_flight)


async def test_a_client_that_leaves_in_its_upload_ends_the_request_at_the_worker(rig, eventually):
    worker = await rig.worker(Hanging())
    router = await rig.router(worker, max_replay_bytes=10)
    port = int(router.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /generate HTTP/1.1\r\nHost: r\r\nContent-Length: 1000\r\n\r\n" + b"x" * 500)

    async def in_flight() -> bool:
        return await rig.in_flight(router) == [1]

    async def none_in_flight() -> bool:
        return await rig.in_flight(router) == [0]

    await eventually(in_flight)
    writer.close()
    await eventually(none_in_flight)


async def test_a_client_that_leaves_while_all_workers_rest_is_not_served_later(rig, eventually):
    worker = await rig.worker((429, {"retry-after": "0.5"}, b""), (200, {}, b"ok"))
    router = await rig.router(worker)
    request = asyncio.create_task(rig.fetch("POST", f"{router}/generate", data=b"gone"))

    async def resting() -> bool:
        return len(worker.seen) == 1 and await rig.in_flight(router) == [0]

    await eventually(resting)
    request.cancel()
    await asyncio.wait([request])
    await rig.fetch("POST", f"{router}/generate", data=b"here")

    assert [seen.body for seen in worker.seen] == [b"gone", b"here"]
