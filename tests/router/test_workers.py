"""The registry counts requests, lets workers rest and waits for one."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import RouterError
from miles_core.router.policy import least_in_flight, round_robin
from miles_core.router.workers import NoWorkerError, WorkerRegistry

A, B = "http://a:1", "http://b:2"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.anyio
async def test_a_request_counts_from_acquire_to_release():
    registry = WorkerRegistry([A], least_in_flight)
    worker = await registry.acquire()
    assert worker.in_flight == 1
    registry.release(worker)
    assert worker.in_flight == 0


@pytest.mark.anyio
async def test_a_resting_worker_is_passed_over_until_its_time_is_over():
    clock = Clock()
    registry = WorkerRegistry([A, B], round_robin, clock)
    registry.rest(registry.workers[0], 5.0)
    assert {(await registry.acquire()).url for _ in range(4)} == {B}
    assert not registry.is_available(registry.workers[0])
    clock.now += 5.0
    assert {(await registry.acquire()).url for _ in range(4)} == {A, B}


def test_a_shorter_rest_does_not_end_a_longer_one():
    clock = Clock()
    registry = WorkerRegistry([A], round_robin, clock)
    (worker,) = registry.workers
    registry.rest(worker, 10.0)
    registry.rest(worker, 1.0)
    clock.now += 5.0
    assert not registry.is_available(worker)


@pytest.mark.anyio
async def test_a_tried_worker_is_picked_again_only_where_there_is_no_other():
    registry = WorkerRegistry([A, B], least_in_flight)
    first = await registry.acquire()
    second = await registry.acquire([first])
    registry.release(first)
    assert second is not first
    assert await registry.acquire([first, second]) is first


@pytest.mark.anyio
async def test_a_worker_that_joins_ends_the_wait_for_resting_ones():
    registry = WorkerRegistry([A], least_in_flight)
    registry.rest(registry.workers[0], 3600.0)
    picked = []

    async def wait() -> None:
        picked.append(await registry.acquire())

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            registry.add(B)
    assert [worker.url for worker in picked] == [B]


@pytest.mark.anyio
async def test_without_workers_the_error_says_how_to_add_one():
    with pytest.raises(NoWorkerError, match=r"no worker(.|\n)*POST /workers"):
        await WorkerRegistry([], least_in_flight).acquire()


def test_a_worker_is_added_once_whatever_slash_ends_its_url():
    registry = WorkerRegistry([A, A + "/"], least_in_flight)
    assert [worker.url for worker in registry.workers] == [A]
    registry.remove(A + "/")
    assert registry.workers == ()


def test_an_unknown_worker_cannot_be_removed():
    with pytest.raises(RouterError, match=f"known: {A}"):
        WorkerRegistry([A], least_in_flight).remove(B)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a:1",
        "ftp://a",
        "http://",
        "http://a:x",
        "http://u:p@a",
        "http://a?b",
        "http://a b",
        "http://a#c",
        "http://\ud800:1",
        "http://x\x00",
    ],
)
def test_only_the_root_of_an_http_server_is_a_worker(url):
    with pytest.raises(RouterError, match="root of an HTTP server"):
        WorkerRegistry([url], least_in_flight)


@given(releases=st.lists(st.integers(0, 7), max_size=40), count=st.integers(1, 8))
@pytest.mark.anyio
async def test_least_in_flight_never_picks_a_busier_worker_and_loses_no_count(releases, count):
    registry = WorkerRegistry([f"http://w:{port}" for port in range(1, count + 1)], least_in_flight)
    held = []
    for release in releases:
        fewest = min(worker.in_flight for worker in registry.workers)
        worker = await registry.acquire()
        assert worker.in_flight == fewest + 1
        held.append(worker)
        if release < len(held):
            registry.release(held.pop(release))
        assert sum(worker.in_flight for worker in registry.workers) == len(held)


@pytest.mark.parametrize("policy", [least_in_flight, round_robin])
@pytest.mark.anyio
async def test_idle_workers_take_turns(policy):
    registry = WorkerRegistry([f"http://w:{port}" for port in (1, 2, 3)], policy)
    urls = []
    for _ in range(6):
        worker = await registry.acquire()
        urls.append(worker.url)
        registry.release(worker)
    assert urls == ["http://w:1", "http://w:2", "http://w:3"] * 2


@pytest.mark.anyio
async def test_round_robin_does_not_look_at_the_load():
    registry = WorkerRegistry([A, B], round_robin)
    busy = await registry.acquire()
    busy.in_flight = 100
    await registry.acquire()
    assert await registry.acquire() is busy
