"""The receiver over HTTP."""

from __future__ import annotations

import pytest
import torch
import xxhash

from miles_core.types import ParameterTable
from miles_core.weights.host import host_id

pytestmark = pytest.mark.anyio


@pytest.fixture
def engine(tiny, memory, toy_engine):
    return toy_engine.ToyEngine(tiny(), memory, version=3)


@pytest.fixture
async def post(engine, serve, http):
    async with serve(engine.app) as url:

        async def post(name, *, rank=None, **body):
            query = "" if rank is None else f"?rank={rank}"
            async with http.post(f"{url}/weights/{name}{query}", **body) as reply:
                return reply.status, await reply.json()

        yield post


async def test_the_layout_says_what_the_rank_holds_and_where_it_runs(engine, serve, http):
    async with serve(engine.app) as url, http.get(f"{url}/weights/layout") as reply:
        said = await reply.json()
    assert [ParameterTable.from_json(rank) for rank in said.pop("ranks")] == [engine.receiver.table]
    assert said == {"version": 3, "torn": False, "host": host_id(), "transports": {"memory": None, "disk": None}}


async def test_calls_answer_with_version_and_torn(post):
    begun = {"version": 3, "torn": False, "base": 3, "offer": {}}
    assert await post("begin", rank=0, json={"version": 4, "transport": "memory"}) == (200, begun)
    assert await post("abort", json={}) == (200, {"version": 3, "torn": False})


async def test_call_out_of_turn_is_a_conflict_with_its_remedy(post):
    status, body = await post("begin", json={"version": 2, "transport": "memory"})
    assert status == 409
    assert "versions only grow" in body["error"]["message"]
    assert body["error"]["remedy"] == "Publish a higher version."
    assert (await post("commit", json={"version": 4}))[0] == 409


@pytest.mark.parametrize("rank", ["1", "-1", "x", ""])
@pytest.mark.parametrize("name", ["begin", "receive", "verify", "commit", "abort", "checksums"])
async def test_a_rank_that_the_engine_has_not_is_refused(post, name, rank):
    status, body = await post(name, rank=rank, json={})
    assert status == 400
    assert body["error"]["message"] == f"this engine has one rank, 0; got rank {rank!r}"


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("begin", b"{", '{"version": 1, "transport": "memory"}'),
        ("begin", b"[]", '{"version": 1, "transport": "memory"}'),
        ("begin", b'{"version": "4", "transport": "memory"}', "version: Input should be a valid integer"),
        ("begin", b'{"version": -1, "transport": "memory"}', "version: Input should be greater than or equal to 0"),
        ("begin", b'{"version": 4}', "transport: Field required"),
        ("begin", b'{"version": 4, "transport": ""}', "transport: String should have at least 1 character"),
        ("begin", b'{"version": 4, "transport": "memory", "x": 1}', "x: Extra inputs are not permitted"),
        ("receive", b'{"version": 4, "bucket": {"index": 0}, "delivery": {}}', "bucket: KeyError"),
        ("receive", b'{"version": 4, "bucket": [], "delivery": {}}', "bucket: Input should be an object"),
        ("verify", b'{"version": 4, "checksums": "abc"}', "checksums: Input should be an object"),
        ("verify", b'{"version": 4, "checksums": {"first": []}}', "checksums: ValueError"),
        ("commit", b"\xff\xfe", '{"version": 1, "padding": 0}'),
        ("commit", b'{"version": 4, "padding": -1}', "padding: Input should be greater than or equal to 0"),
        ("checksums", b'{"placements": [["w"]]}', "placements: ValueError"),
        ("checksums", b'{"placements": "w"}', "placements: Input should be a valid array"),
        ("abort", b"", "expected a JSON body {}"),
    ],
)
async def test_malformed_body_is_a_400_that_says_what_was_expected(post, name, data, expected):
    await post("begin", json={"version": 4, "transport": "memory"})
    status, body = await post(name, data=data)
    assert status == 400
    assert expected in body["error"]["message"]


PLACEMENT = {
    "name": "w", "dtype": "float32", "shape": [1], "region": [[0, 1]], "parameter": "w", "offset": 0, "strides": None
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"offset": "0"}, {"offset": -4}, {"offset": 0.5}, {"offset": None}, {"offset": True}, {"dtype": "float9"},
        {"dtype": None}, {"dtype": []}, {"name": None}, {"parameter": 7}, {"shape": ["1"]}, {"shape": 1},
        {"region": [[0]]}, {"region": [[0, None]]}, {"region": [["a", "b"]]}, {"strides": [-1]}, {"strides": ["1"]},
        {"strides": 1},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("verb", ["receive", "checksums"])
async def test_a_placement_of_another_form_is_a_400_and_writes_nothing(post, engine, verb, change):
    await post("begin", json={"version": 4, "transport": "memory"})
    row = [*{**PLACEMENT, **change}.values()]
    bucket = {"index": 0, "placements": [row], "nbytes": 4, "stream": 0}
    body = {"placements": [row]} if verb == "checksums" else {"version": 4, "bucket": bucket, "delivery": {}}
    status, answer = await post(verb, json=body)
    assert status == 400, answer
    assert answer["error"]["message"].startswith("expected a JSON body")
    assert engine.out_of_service is None


@pytest.mark.parametrize("change", [{"index": "0"}, {"index": -1}, {"nbytes": 4.5}, {"stream": None}], ids=str)
async def test_a_bucket_of_another_form_is_a_400(post, change):
    await post("begin", json={"version": 4, "transport": "memory"})
    bucket = {"index": 0, "placements": [[*PLACEMENT.values()]], "nbytes": 4, "stream": 0, **change}
    status, answer = await post("receive", json={"version": 4, "bucket": bucket, "delivery": {}})
    assert status == 400
    assert "bucket: ValueError index, nbytes and stream must be whole numbers" in answer["error"]["message"]


async def test_foreign_segment_in_a_delivery_is_refused(post, engine, layout_of):
    placement = layout_of(engine.model).placements[0]
    bucket = {"index": 0, "placements": [placement.to_json()], "nbytes": placement.nbytes, "stream": 0}
    await post("begin", json={"version": 4, "transport": "memory"})
    delivery = {"segment": "../../etc/passwd", "nbytes": placement.nbytes, "size": placement.nbytes}
    status, body = await post("receive", json={"version": 4, "bucket": bucket, "delivery": delivery})
    assert status == 409
    assert "a delivery must name a segment" in body["error"]["message"]
    assert engine.out_of_service is None


async def test_checksums_of_any_boxes_can_be_asked_for(post, engine, layout_of):
    one, other = layout_of(engine.model).placements[:2]
    status, answer = await post("checksums", json={"placements": [one.to_json(), other.to_json()]})
    assert (status, answer["version"], answer["torn"]) == (200, 3, False)
    first = engine.tensors[one.parameter].detach().view(torch.uint8).numpy().tobytes()
    assert answer["checksums"][0] == xxhash.xxh3_128_hexdigest(first[: one.nbytes])
    assert len(answer["checksums"]) == 2
    foreign = [*other.to_json()[:4], "foreign", 0, None]
    assert (await post("checksums", json={"placements": [foreign]}))[0] == 409
