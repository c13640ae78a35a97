"""What crosses the proxy unchanged, and what must not cross it."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from itertools import pairwise

import anyio
import pytest
from yarl import URL

pytestmark = pytest.mark.anyio


async def test_method_path_query_body_and_headers_reach_the_worker_as_the_client_wrote_them(rig):
    worker = await rig.worker()
    router = await rig.router(worker)
    target = "/v1/a%2Fb%20c?x=1&x=%C3%BC+y&empty="
    body = b'{"label": 123456789012345678901, "spaced" :1.0}'

    status, _, _ = await rig.fetch(
        "PUT",
        URL(router + target, encoded=True),
        data=body,
        headers={"authorization": "Bearer t", "x-own": "1", "content-type": "application/x-own"},
    )

    assert status == 200
    (seen,) = worker.seen
    assert (seen.method, seen.target, seen.body) == ("PUT", target, body)
    assert seen.header("authorization") == "Bearer t"
    assert seen.header("x-own") == "1"
    assert seen.header("content-type") == "application/x-own"
    assert seen.header("host") == worker.url.removeprefix("http://")


async def test_hop_by_hop_headers_stay_at_the_router_and_it_adds_none_of_its_own(rig):
    worker = await rig.worker(
        (200, {"keep-alive": "timeout=9", "connection": "x-drop", "x-drop": "1", "x": "1"}, b"{}")
    )
    router = await rig.router(worker)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(router.rpartition(":")[2]))
    writer.write(
        b"GET /model_info HTTP/1.1\r\nHost: r\r\nTE: trailers\r\nProxy-Authorization: secret\r\n"
        b"Connection: close, X-Secret\r\nX-Secret: 1\r\nX-Kept: 1\r\n\r\n"
    )
    answer = (await reader.read()).decode().lower()
    writer.close()

    assert sorted(name for name, _ in worker.seen[0].headers) == ["host", "x-kept"]
    assert "x: 1" in answer
    assert "keep-alive" not in answer
    assert "x-drop" not in answer


async def test_an_answer_keeps_its_bytes_and_its_length(rig):
    pretty = json.dumps({"text": "ü", "meta_info": {"id": 2**60}}, indent=8).encode()
    router = await rig.router(await rig.worker((200, {"content-type": "application/json"}, pretty)))

    status, headers, body = await rig.fetch("POST", f"{router}/generate", data=b"{}")

    assert (status, body) == (200, pretty)
    assert headers["content-length"] == str(len(pretty))


async def test_a_compressed_answer_stays_compressed(rig):
    packed = gzip.compress(b"x" * 1000)
    worker = await rig.worker((200, {"content-encoding": "gzip"}, packed))
    router = await rig.router(worker)

    _, headers, body = await rig.fetch("GET", f"{router}/x", headers={"accept-encoding": "gzip"})

    assert (headers["content-encoding"], body) == ("gzip", packed)


async def test_the_length_of_a_body_that_a_middleware_rewrote_is_counted_again(rig):
    longer = b'{"messages": [], "input_ids": [1, 2, 3]}'

    def enlarge(app):
        async def middleware(scope, receive, send):
            async def receive_longer():
                message = await receive()
                return {**message, "body": longer} if message["type"] == "http.request" else message

            await app(scope, receive_longer if scope["type"] == "http" else receive, send)

        return middleware

    worker = await rig.worker()
    router = await rig.router(worker, middlewares=[("enlarge", enlarge)])

    await rig.fetch("POST", f"{router}/generate", data=b'{"messages": []}')

    assert worker.seen[0].body == longer
    assert worker.seen[0].header("content-length") == str(len(longer))


async def test_a_path_that_a_middleware_rewrote_wins_over_the_one_on_the_wire(rig):
    def rewrite(app):
        async def middleware(scope, receive, send):
            await app({**scope, "path": "/new path"} if scope["type"] == "http" else scope, receive, send)

        return middleware

    worker = await rig.worker()
    router = await rig.router(worker, middlewares=[("rewrite", rewrite)])

    await rig.fetch("GET", f"{router}/old?q=1")

    assert worker.seen[0].target == "/new%20path?q=1"


async def test_an_answer_that_declares_its_length_twice_is_refused_and_says_why(rig):
    # RFC 9112, section 6.1: it "ought to be handled as an error", because it may smuggle a second answer.
    worker = await rig.raw_worker(
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    )
    router = await rig.router(worker)

    status, _, body = await rig.fetch("POST", f"{router}/v1/completions", data=b"{}")

    assert status == 502
    assert "Transfer-Encoding can't be present with Content-Length" in json.loads(body)["error"]["message"]


async def test_a_chunked_answer_has_one_framing_header(rig):
    worker = await rig.raw_worker(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    router = await rig.router(worker)

    status, headers, body = await rig.fetch("POST", f"{router}/generate", data=b"{}")

    assert (status, body) == (200, b"hello")
    assert headers["transfer-encoding"] == "chunked"
    assert "content-length" not in headers


@pytest.mark.parametrize(
    ("method", "status", "headers", "body"),
    [
        ("HEAD", 200, {"content-length": "5000000"}, b""),
        ("HEAD", 200, {"content-length": "50"}, b""),
        ("GET", 204, {}, b""),
        ("GET", 304, {"content-length": "12"}, b""),
        ("GET", 302, {"location": "/elsewhere"}, b""),
        ("POST", 502, {"content-type": "text/html"}, b"<html>bad gateway</html>"),
        ("POST", 400, {"content-type": "application/json"}, b'{"error": "no"}'),
    ],
)
async def test_the_status_passes_whatever_it_is(rig, method, status, headers, body):
    worker = await rig.worker((status, headers, body))
    router = await rig.router(worker)

    got = await rig.fetch(method, f"{router}/x", allow_redirects=False)

    assert (got[0], got[2]) == (status, body)
    assert len(worker.seen) == 1
    if method == "HEAD":
        assert got[1]["content-length"] == headers["content-length"]


async def test_a_chunk_is_passed_on_before_the_next_one_exists(rig):
    gate = anyio.Event()

    async def stream(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: He\n\n", "more_body": True})
        await gate.wait()
        await send({"type": "http.response.body", "body": b"data: Hello\n\n"})

    router = await rig.router(await rig.worker(stream))

    async with rig.client.post(f"{router}/generate", data=b"{}") as reply:
        assert await reply.content.readany() == b"data: He\n\n"
        assert await rig.in_flight(router) == [1]
        gate.set()
        assert await reply.content.read() == b"data: Hello\n\n"
    assert await rig.in_flight(router) == [0]


async def test_an_upload_longer_than_the_replay_limit_is_streamed(rig):
    worker = await rig.worker((500, {}, b"no"))
    router = await rig.router(worker, max_replay_bytes=1000)
    body = bytes(range(256)) * 2000

    status, _, _ = await rig.fetch("POST", f"{router}/generate", data=body)

    assert status == 500
    (seen,) = worker.seen
    assert seen.body == body
    assert seen.header("transfer-encoding") == "chunked"


async def test_a_body_of_several_megabytes_is_replayed(rig):
    worker = await rig.worker((500, {}, b"no"), (200, {}, b"yes"))
    router = await rig.router(worker)
    body = b"x" * (5 << 20)

    status, _, _ = await rig.fetch("POST", f"{router}/generate", data=io.BytesIO(body))

    assert status == 200
    assert [seen.body == body for seen in worker.seen] == [True, True]


async def test_large_answers_do_not_hold_up_the_event_loop(rig):
    chunk = b"x" * (1 << 20)

    async def large(scope, receive, send):
        headers = [(b"content-length", str(16 << 20).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for i in range(16):
            await send({"type": "http.response.body", "body": chunk, "more_body": i < 15})

    router = await rig.router(await rig.worker(large))
    loop = asyncio.get_running_loop()
    beats = [loop.time()]

    def beat() -> None:
        nonlocal timer
        beats.append(loop.time())
        timer = loop.call_later(0.01, beat)

    timer = loop.call_later(0, beat)
    sizes = []

    async def one() -> None:
        async with rig.client.post(f"{router}/generate", data=b"{}") as reply:
            sizes.append(sum([len(chunk) async for chunk in reply.content.iter_any()]))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(one)
    timer.cancel()

    assert sizes == [16 << 20] * 8
    assert max(b - a for a, b in pairwise(beats)) < 0.5


async def test_a_long_generation_outlives_the_connect_time_out(rig):
    async def slow(scope, receive, send):
        await anyio.sleep(0.4)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})

    router = await rig.router(await rig.worker(slow), connect_timeout=0.1)

    status, _, body = await rig.fetch("POST", f"{router}/generate", data=b"{}")

    assert (status, body) == (200, b"late")
