"""What is tried again, where, when and how often."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from miles_core.router.retry import may_retry, retry_after_seconds


@pytest.mark.parametrize(("method", "path"), [("POST", "/generate"), ("GET", "/v1/models"), ("GET", "/model_info")])
@pytest.mark.anyio
async def test_a_dead_worker_is_passed_over(rig, dead_url, method, path):
    alive = await rig.worker()
    router = await rig.router(dead_url, alive, cooldown=30)

    statuses = [(await rig.fetch(method, f"{router}{path}"))[0] for _ in range(4)]

    assert statuses == [200] * 4
    assert len(alive.seen) == 4


@pytest.mark.anyio
async def test_a_worker_that_refuses_rests_and_returns_by_itself(rig, dead_url):
    router = await rig.router(dead_url, cooldown=0.05)
    first, _, _ = await rig.fetch("POST", f"{router}/generate", data=b"{}")
    await rig.worker(port=int(dead_url.rpartition(":")[2]))
    second, _, _ = await rig.fetch("POST", f"{router}/generate", data=b"{}")

    assert (first, second) == (502, 200)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
@pytest.mark.anyio
async def test_retries_are_bounded_and_the_last_answer_passes(rig, status):
    worker = await rig.worker((status, {"x-why": "full"}, b"<html>no</html>"))
    router = await rig.router(worker, max_retries=3)

    got, headers, body = await rig.fetch("POST", f"{router}/generate", data=b"{}")

    assert (got, headers["x-why"], body) == (status, "full", b"<html>no</html>")
    assert len(worker.seen) == 1 + 3


@pytest.mark.parametrize("status", [400, 404, 409, 501])
@pytest.mark.anyio
async def test_a_refusal_is_not_tried_again(rig, status):
    worker = await rig.worker((status, {}, b"no"))
    router = await rig.router(worker)

    assert (await rig.fetch("POST", f"{router}/generate", data=b"{}"))[0] == status
    assert len(worker.seen) == 1


@pytest.mark.parametrize("status", [500, 503, 429])
@pytest.mark.parametrize("path", ["/update_weights_from_tensor", "/pause_generation", "/v1/chat/completions"])
@pytest.mark.anyio
async def test_all_other_calls_are_sent_once(rig, status, path):
    worker = await rig.worker((status, {"retry-after": "0"}, b"no"), (200, {}, b"yes"))
    router = await rig.router(worker)

    assert (await rig.fetch("POST", f"{router}{path}", data=b"{}"))[0] == status
    assert len(worker.seen) == 1


@pytest.mark.anyio
async def test_a_retry_goes_to_a_worker_that_was_not_tried(rig):
    bad, good = await rig.worker((500, {}, b"no")), await rig.worker()
    router = await rig.router(bad, good)

    statuses = [(await rig.fetch("POST", f"{router}/generate", data=b"{}"))[0] for _ in range(6)]

    assert statuses == [200] * 6
    assert len(good.seen) == 6


@pytest.mark.anyio
async def test_retry_after_is_waited_for(rig):
    worker = await rig.worker((429, {"retry-after": "1"}, b""), (200, {}, b"yes"))
    router = await rig.router(worker)

    start = time.monotonic()
    status, _, _ = await rig.fetch("POST", f"{router}/generate", data=b"{}")

    assert status == 200
    assert time.monotonic() - start >= 1
    assert len(worker.seen) == 2


@pytest.mark.anyio
async def test_retry_after_is_bounded(rig):
    worker = await rig.worker((503, {"retry-after": "3600"}, b""), (200, {}, b"yes"))
    router = await rig.router(worker, max_retry_after=0.05)

    assert (await rig.fetch("POST", f"{router}/generate", data=b"{}"))[0] == 200


@pytest.mark.anyio
async def test_an_overloaded_worker_gets_nothing_until_its_time_is_over(rig):
    full, free = await rig.worker((503, {"retry-after": "20"}, b"")), await rig.worker()
    router = await rig.router(full, free)

    statuses = [(await rig.fetch("POST", f"{router}/generate", data=b"{}"))[0] for _ in range(6)]

    assert statuses == [200] * 6
    assert len(full.seen) == 1


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("-4", 0.0),
        ("Wed, 01 Jan 2025 00:00:10 GMT", 10.0),
        ("Tue, 31 Dec 2024 00:00:00 GMT", 0.0),
        ("soon", None),
        ("inf", None),
        ("nan", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value, seconds):
    assert retry_after_seconds(value, now=datetime(2025, 1, 1, tzinfo=UTC)) == seconds


def test_only_generation_and_reads_are_tried_again():
    assert may_retry("POST", "/generate")
    assert may_retry("GET", "/model_info")
    assert not may_retry("PUT", "/generate")
    assert not may_retry("DELETE", "/model_info")
    assert not may_retry("POST", "/weights/commit")
