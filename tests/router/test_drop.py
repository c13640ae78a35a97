"""A worker that is dropped gives its requests back: others answer them, and no count stays behind."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

pytestmark = pytest.mark.anyio


class Hanging:
    """An answer that stops before, or after, its first chunk; counts the clients that came and hung up."""

    def __init__(self, *, first: bytes = b"") -> None:
        self.first = first
        self.started = 0
        self.hung_up = 0

    async def __call__(self, scope, receive, send):
        self.started += 1
        if self.first:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": self.first, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        self.hung_up += 1


async def drop(rig, router: str, url: str) -> int:
    status, _, _ = await rig.fetch("DELETE", f"{router}/workers", json={"url": url, "drop": True})
    return status


async def counts(rig, router: str) -> dict[str, int]:
    async with rig.client.get(f"{router}/workers") as reply:
        return {row["url"]: row["in_flight"] for row in (await reply.json())["workers"]}


async def test_requests_without_a_byte_are_made_again_on_another_worker(rig, eventually):
    hanging = Hanging()
    stuck, good = await rig.worker(hanging), await rig.worker((200, {}, b'{"text": "whole"}'))
    router = await rig.router(stuck)
    requests = [asyncio.create_task(rig.fetch("POST", f"{router}/generate", data=b"%d" % n)) for n in range(50)]

    async def all_started() -> bool:
        return hanging.started == 50

    async def all_hung_up() -> bool:
        return hanging.hung_up == 50

    await eventually(all_started)
    await rig.fetch("POST", f"{router}/workers", json={"url": good.url})
    assert await drop(rig, router, stuck.url) == 200
    answers = await asyncio.gather(*requests)

    assert [(status, body) for status, _, body in answers] == [(200, b'{"text": "whole"}')] * 50
    assert sorted(int(seen.body) for seen in good.seen) == list(range(50))
    await eventually(all_hung_up)
    assert await counts(rig, router) == {good.url: 0}


async def test_a_drop_costs_no_try(rig, eventually):
    hanging = Hanging()
    stuck = await rig.worker(hanging)
    bad, good = await rig.raw_worker(b""), await rig.worker((200, {}, b"whole"))
    router = await rig.router(stuck, max_retries=1)
    request = asyncio.create_task(rig.fetch("POST", f"{router}/generate", data=b"{}"))

    async def started() -> bool:
        return hanging.started == 1

    await eventually(started)
    await rig.fetch("POST", f"{router}/workers", json={"url": bad.url})
    await rig.fetch("POST", f"{router}/workers", json={"url": good.url})
    await drop(rig, router, stuck.url)

    assert (await request)[::2] == (200, b"whole")
    assert bad.attempts == 1, "the first of two tries, since the drop was none"


async def test_an_answer_that_has_begun_breaks_off(rig, eventually):
    hanging = Hanging(first=b"data: He\n\n")
    stuck, good = await rig.worker(hanging), await rig.worker()
    router = await rig.router(stuck)
    async with rig.client.post(f"{router}/generate", data=b"{}") as reply:
        assert await reply.content.readany() == b"data: He\n\n"
        await rig.fetch("POST", f"{router}/workers", json={"url": good.url})
        await drop(rig, router, stuck.url)
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.content.readany()

    async def hung_up() -> bool:
        return hanging.hung_up == 1

    await eventually(hung_up)
    assert good.seen == []


async def test_a_control_call_to_a_dropped_worker_is_a_502(rig, eventually):
    hanging = Hanging()
    stuck, good = await rig.worker(hanging), await rig.worker()
    router = await rig.router(stuck)
    request = asyncio.create_task(rig.fetch("POST", f"{router}/flush_cache", data=b"{}"))

    async def started() -> bool:
        return hanging.started == 1

    await eventually(started)
    await rig.fetch("POST", f"{router}/workers", json={"url": good.url})
    await drop(rig, router, stuck.url)
    status, _, body = await request

    assert status == 502
    assert stuck.url in json.loads(body)["error"]["message"]
    assert good.seen == []


async def test_without_another_worker_a_dropped_request_is_a_503_at_once(rig, eventually):
    hanging = Hanging()
    stuck = await rig.worker(hanging)
    router = await rig.router(stuck)
    request = asyncio.create_task(rig.fetch("POST", f"{router}/generate", data=b"{}"))

    async def started() -> bool:
        return hanging.started == 1

    await eventually(started)
    await drop(rig, router, stuck.url)
    status, _, body = await request

    assert (status, json.loads(body)["error"]["type"]) == (503, "no_worker")


async def test_a_worker_that_is_removed_without_a_drop_answers_what_it_has(rig, eventually):
    hold = asyncio.Event()

    async def slow(scope, receive, send):
        await hold.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})

    worker = await rig.worker(slow)
    router = await rig.router(worker)
    request = asyncio.create_task(rig.fetch("POST", f"{router}/generate", data=b"{}"))

    async def started() -> bool:
        return len(worker.seen) == 1

    await eventually(started)
    assert (await rig.fetch("DELETE", f"{router}/workers", json={"url": worker.url, "drop": False}))[0] == 200
    hold.set()
    assert (await request)[::2] == (200, b"late")


async def test_a_worker_that_was_dropped_can_be_added_again(rig):
    worker = await rig.worker((200, {}, b"ok"))
    router = await rig.router(worker)
    await drop(rig, router, worker.url)
    await rig.fetch("POST", f"{router}/workers", json={"url": worker.url})

    assert (await rig.fetch("POST", f"{router}/generate", data=b"{}"))[::2] == (200, b"ok")


@pytest.mark.parametrize(("query", "body"), [("&drop=yes", None), ("", {"drop": "true"}), ("", {"drop": 1})])
async def test_a_drop_that_is_neither_true_nor_false_is_refused_and_changes_nothing(rig, query, body):
    worker = await rig.worker()
    router = await rig.router(worker)

    status, _, raw = await rig.fetch("DELETE", f"{router}/workers?url={worker.url}{query}", json=body)

    assert status == 400
    assert "drop must be true or false" in json.loads(raw)["error"]["message"]
    assert await counts(rig, router) == {worker.url: 0}
