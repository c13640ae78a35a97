from __future__ import annotations

import pytest

from miles_core.types import Layout

pytestmark = pytest.mark.anyio


@pytest.fixture
def engine(tiny, memory, toy_engine):
    return toy_engine.ToyEngine(tiny(), memory, version=3)


@pytest.fixture
async def post(engine, serve, http):
    async with serve(engine.app) as url:

        async def post(name, **body):
            async with http.post(f"{url}/weights/{name}", **body) as reply:
                return reply.status, await reply.json()

        yield post


async def test_layout_travels_whole(engine, serve, http):
    async with serve(engine.app) as url, http.get(f"{url}/weights/layout") as reply:
        assert Layout.from_json(await reply.json()) == engine.receiver.layout


async def test_calls_answer_with_version_and_torn(post):
    assert await post("begin", json={"version": 4}) == (200, {"version": 3, "torn": False})
    assert await post("abort", json={}) == (200, {"version": 3, "torn": False})


async def test_call_out_of_turn_is_a_conflict_with_its_remedy(post):
    status, body = await post("begin", json={"version": 3})
    assert status == 409
    assert "versions only grow" in body["error"]["message"]
    assert body["error"]["remedy"] == "Publish a higher version."
    assert (await post("commit", json={"version": 4}))[0] == 409


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("begin", b"{", '{"version": 1}'),
        ("begin", b"[]", '{"version": 1}'),
        ("begin", b'{"version": "4"}', "version: Input should be a valid integer"),
        ("begin", b'{"version": -1}', "version: Input should be greater than or equal to 0"),
        ("begin", b'{"version": 4, "x": 1}', "x: Extra inputs are not permitted"),
        ("receive", b'{"version": 4, "bucket": {"index": 0}, "delivery": {}}', "bucket.tensors: Field required"),
        ("verify", b'{"version": 4, "checksums": "abc"}', "checksums: Input should be a valid array"),
        ("commit", b"\xff\xfe", '{"version": 1}'),
        ("abort", b"", "expected a JSON body {}"),
    ],
)
async def test_malformed_body_is_a_400_that_says_what_was_expected(post, name, data, expected):
    status, body = await post(name, data=data)
    assert status == 400
    assert expected in body["error"]["message"]


async def test_foreign_segment_in_a_delivery_is_refused(post, engine):
    tensors = [placement.tensor for placement in engine.receiver.layout.placements[:1]]
    bucket = {
        "index": 0,
        "tensors": [{"name": t.name, "dtype": t.dtype, "shape": t.shape, "nbytes": t.nbytes} for t in tensors],
        "nbytes": tensors[0].nbytes,
    }
    await post("begin", json={"version": 4})
    delivery = {"segment": "../../etc/passwd", "nbytes": tensors[0].nbytes}
    status, body = await post("receive", json={"version": 4, "bucket": bucket, "delivery": delivery})
    assert status == 409
    assert "a delivery must name a segment" in body["error"]["message"]
    assert engine.out_of_service is None
