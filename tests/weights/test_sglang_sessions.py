from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from miles_core.weights.exchange import EngineExchange, NoEngineError
from miles_core.weights.sglang_groups import EngineGroups
from miles_core.weights.sglang_sessions import LoadSessions, ServerFacts, server_facts

pytestmark = pytest.mark.anyio
FACTS = {"tp_size": 2, "dp_size": 1, "pp_size": 1, "device": "cpu"}


class Endpoints:
    """The endpoints around the loads, as SGLang 0.5.23 answers; ``calls`` are paths and bodies."""

    def __init__(self):
        self.facts, self.version, self.is_open, self.calls = dict(FACTS), "0", False, []
        self.refused = set()

    @property
    def app(self):
        async def answer(request):
            path = request.url.path
            body = await request.json() if request.method == "POST" else None
            self.calls.append((path, body))
            if path == "/server_info":
                return JSONResponse(self.facts)
            if path == "/model_info":
                return JSONResponse({"weight_version": self.version})
            success = path not in self.refused
            if path in ("/begin_weight_update", "/end_weight_update"):
                success = success and self.is_open == path.startswith("/end")
                self.is_open = path.startswith("/begin") if success else self.is_open
            return JSONResponse({"success": success, "message": f"{path}: {success}"}, 200 if success else 400)

        return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])

    @property
    def paths(self):
        return [path for path, _ in self.calls]


@pytest.fixture
def endpoints():
    return Endpoints()


@pytest.fixture
async def engines(endpoints, serve, http):
    async with serve(endpoints.app) as url:
        yield EngineExchange((url,), http, timeout=10.0)


async def test_an_engine_that_was_only_asked_to_begin_may_serve_after_an_abort(engines, endpoints):
    sessions = LoadSessions()
    await sessions.begin(engines, 1)
    assert await sessions.abort(engines, engines.urls[0]) is None
    assert not endpoints.is_open


async def test_an_engine_that_was_told_to_load_must_not_serve_until_a_commit(engines, endpoints):
    sessions = LoadSessions()
    await sessions.begin(engines, 1)
    sessions.loading(engines)
    assert "began to load" in await sessions.abort(engines, engines.urls[0])
    assert not endpoints.is_open
    await sessions.begin(engines, 2)
    await sessions.end(engines)
    sessions.committed(engines)
    assert await sessions.abort(engines, engines.urls[0]) is None


async def test_a_session_that_was_left_open_is_ended_first(engines, endpoints):
    endpoints.is_open = True
    await LoadSessions().begin(engines, 1)
    assert endpoints.paths == ["/begin_weight_update", "/end_weight_update", "/begin_weight_update"]


async def test_an_engine_that_never_begins_is_lost(engines, endpoints):
    endpoints.refused = {"/begin_weight_update"}
    endpoints.is_open = True
    with pytest.raises(NoEngineError, match="begin of version 1 was refused with status 400") as caught:
        await LoadSessions().begin(engines, 1)
    assert caught.value.refused


async def test_ranks_and_device_come_from_the_server(engines):
    assert await server_facts(engines) == {engines.urls[0]: ServerFacts(2, "cpu")}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dp_size": 2}, "expected dp_size 1 and pp_size 1, got 2 and 1"),
        ({"pp_size": 4}, "expected dp_size 1 and pp_size 1, got 1 and 4"),
        ({"tp_size": None}, "/server_info lacks sizes or device"),
    ],
)
async def test_an_engine_that_cannot_take_tensors_is_lost_with_the_reason(engines, endpoints, wrong, message):
    endpoints.facts |= wrong
    with pytest.raises(NoEngineError, match=message):
        await server_facts(engines)


async def test_an_engine_joins_once_while_it_keeps_the_version(engines, endpoints):
    groups = EngineGroups()
    for version in ("1", "2"):
        await groups.prepare(engines)
        await groups.join(engines)
        endpoints.version = version
        groups.committed(engines, int(version))
    joins = [body for path, body in endpoints.calls if path == "/init_weights_update_group"]
    (group,) = groups.opening(engines.urls)["groups"]
    assert groups.opening(engines.urls)["active"] == [group["name"]]
    assert joins == [
        {
            "master_address": "127.0.0.1",
            "master_port": group["port"],
            "rank_offset": 1,
            "world_size": 3,
            "group_name": group["name"],
            "backend": "gloo",
        }
    ]


async def test_an_engine_that_was_started_again_gets_a_new_group_and_leaves_the_old_one(engines, endpoints):
    groups = EngineGroups()
    await groups.prepare(engines)
    await groups.join(engines)
    endpoints.version = "1"
    groups.committed(engines, 1)
    old = groups.name(engines.urls[0])
    endpoints.version = "0"
    endpoints.refused = {"/destroy_weights_update_group"}  # it knows nothing of it
    await groups.prepare(engines)
    await groups.join(engines)
    assert groups.name(engines.urls[0]) != old
    assert ("/destroy_weights_update_group", {"group_name": old}) in endpoints.calls
    assert endpoints.paths.count("/init_weights_update_group") == 2


async def test_a_group_whose_engine_missed_a_commit_is_given_up(engines, endpoints):
    groups = EngineGroups()
    await groups.prepare(engines)
    await groups.join(engines)
    groups.committed(engines, 1)
    others = EngineExchange(("http://127.0.0.1:1",), None, timeout=1.0)
    groups.committed(others, 2)
    assert groups.opening(()) == {"groups": [], "active": []}


async def test_an_engine_on_a_gpu_meets_the_trainer_by_nccl(engines, endpoints):
    endpoints.facts["device"] = "cuda"
    groups = EngineGroups()
    await groups.prepare(engines)
    assert groups.opening(())["groups"][0]["backend"] == "nccl"


async def test_an_engine_that_refuses_to_join_is_lost(engines, endpoints):
    endpoints.refused = {"/init_weights_update_group"}
    groups = EngineGroups()
    await groups.prepare(engines)
    with pytest.raises(NoEngineError, match="joining the trainer's process group was refused"):
        await groups.join(engines)
