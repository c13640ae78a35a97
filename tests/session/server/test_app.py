"""Sessions over HTTP: opened, found by path or key, recorded, turned into samples, closed."""

from __future__ import annotations

from typing import Any

import aiohttp
import anyio
import openai
import pytest

from miles_core.session.registry import SessionRegistry
from miles_core.session.server.app import create_app

pytestmark = pytest.mark.anyio
ASK: Any = {"model": "toy", "messages": [{"role": "user", "content": "count"}]}


async def call(method: str, url: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as http, http.request(method, url, json=body, headers=headers) as reply:
        return reply.status, None if reply.status == 204 else await reply.json()


async def test_a_session_that_a_client_opened_is_reached_by_path_and_by_key(room: Any) -> None:
    async with room("one", "two") as here:
        status, opened = await call("POST", f"{here.url}/sessions", {"task_id": "t", "sampling": {"temperature": 0.5}})
        assert status == 201
        assert opened["api_key"] == opened["id"]
        assert opened["base_url"] == f"{here.url}/sessions/{opened['id']}/v1"
        async with openai.AsyncOpenAI(base_url=opened["base_url"], api_key="any") as client:
            await client.chat.completions.create(**ASK)
        async with openai.AsyncOpenAI(base_url=f"{here.url}/v1", api_key=opened["api_key"]) as client:
            assert [model.id async for model in client.models.list()] == ["toy"]
            await client.chat.completions.create(**ASK)
        assert [node.response.text for node in here.sessions[1].tree.nodes] == ["one", "two"]
        assert [request.sampling.temperature for request in here.engine.requests] == [0.5, 0.5]
        assert not here.session.tree.nodes


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "x"}, "name"),
        ({"task_id": 5}, "task_id"),
        ({"task_id": ""}, "task_id"),
        ({"sampling": {"top_p": 0.5}}, "sampling.top_p"),
        ({"sampling": {"max_new_tokens": 0}}, "sampling.max_new_tokens"),
    ],
)
async def test_a_wrong_opening_is_a_400(room: Any, body: Any, param: str) -> None:
    async with room() as here:
        status, reply = await call("POST", f"{here.url}/sessions", body)
        assert (status, reply["error"]["param"]) == (400, param)


async def test_where_the_run_opens_sessions_clients_cannot(room: Any) -> None:
    async with room(open_session=None) as here:
        status, reply = await call("POST", f"{here.url}/sessions")
        assert status == 403
        assert "opened by the run" in reply["error"]["message"]


async def test_too_many_sessions_are_a_503_that_says_so(room: Any) -> None:
    async with room(max_sessions=1) as here:
        async with aiohttp.ClientSession() as http, http.post(f"{here.url}/sessions") as reply:
            assert (reply.status, reply.headers["retry-after"]) == (503, "5")
            assert "no more than 1" in (await reply.json())["error"]["message"]
        assert len(here.sessions) == 1
        assert (await call("DELETE", f"{here.url}/sessions/{here.session_id}"))[0] == 204
        assert (await call("POST", f"{here.url}/sessions"))[0] == 201


async def test_unknown_sessions_and_keys_are_told_apart(room: Any) -> None:
    async with room() as here:
        async with openai.AsyncOpenAI(base_url=f"{here.url}/sessions/none/v1", api_key="any") as client:
            with pytest.raises(openai.NotFoundError, match="expired or was closed"):
                await client.chat.completions.create(**ASK)
        for key in ("wrong", here.session_id[:-1]):
            async with openai.AsyncOpenAI(base_url=f"{here.url}/v1", api_key=key) as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.chat.completions.create(**ASK)
        assert (await call("POST", f"{here.url}/v1/chat/completions", ASK))[0] == 401
        other = (await call("POST", f"{here.url}/sessions"))[1]["id"]
        async with openai.AsyncOpenAI(base_url=here.base_url, api_key=other) as client:
            with pytest.raises(openai.AuthenticationError, match="another session"):
                await client.chat.completions.create(**ASK)
        assert not here.engine.requests


async def test_errors_have_the_dialects_form_and_other_paths_openais(room: Any) -> None:
    async with room() as here:
        status, reply = await call("POST", f"{here.url}/v1/messages", {})
        assert (status, reply["type"], reply["error"]["type"]) == (401, "error", "authentication_error")
        status, reply = await call("GET", f"{here.base_url}/chat/completions")
        assert (status, reply["error"]["type"]) == (405, "invalid_request_error")
        status, reply = await call("POST", f"{here.url}/chat/completions", ASK)
        assert (status, reply["error"]["type"]) == (404, "invalid_request_error")
        assert "ends in /v1" in reply["error"]["message"]
        assert await call("GET", f"{here.url}/health") == (200, {"status": "ok", "sessions": 1})


async def test_a_key_in_anthropics_header_works_too(room: Any) -> None:
    async with room("one") as here:
        status, reply = await call("POST", f"{here.url}/v1/chat/completions", ASK, **{"x-api-key": here.session_id})
        assert (status, reply["choices"][0]["message"]["content"]) == (200, "one")


async def test_two_keys_of_two_sessions_are_refused(room: Any) -> None:
    async with room() as here:
        other = (await call("POST", f"{here.url}/sessions"))[1]["id"]
        keys = {"x-api-key": here.session_id, "authorization": f"Bearer {other}"}
        status, reply = await call("POST", f"{here.url}/v1/chat/completions", ASK, **keys)
        assert (status, reply["error"]["message"]) == (401, "two API keys name two sessions")


async def test_the_record_has_every_token(room: Any) -> None:
    async with room("one", "two") as here:
        await call("POST", f"{here.base_url}/chat/completions", ASK)
        await call("POST", f"{here.base_url}/chat/completions", ASK)
        status, record = await call("GET", f"{here.url}/sessions/{here.session_id}")
        assert status == 200
        for node, turn in zip(here.session.tree.nodes, record["turns"], strict=True):
            assert turn["context_ids"] + turn["output_ids"] == node.tokens().tolist()
            assert turn["response"]["content"] == node.response.text


async def test_samples_come_as_json_and_say_what_is_not_trained(room: Any) -> None:
    async with room("one", "two") as here:
        url = f"{here.url}/sessions/{here.session_id}/samples"
        assert (await call("POST", url, {}))[1] == {"samples": [], "not_trained": []}
        await call("POST", f"{here.base_url}/chat/completions", ASK)
        other = [{"role": "user", "content": "count again"}]
        await call("POST", f"{here.base_url}/chat/completions", {"messages": other, "temperature": 0})
        status, reply = await call("POST", url, {"reward": 0.5})
        assert status == 200
        trained, greedy = reply["samples"]
        node = here.session.tree.nodes[0]
        assert trained["tokens"] == node.tokens().tolist()
        assert sum(trained["loss_mask"]) == len(node.output_ids)
        assert (trained["reward"]["value"], trained["status"]) == (0.5, "completed")
        (span,) = trained["versions"]
        assert (span["version"], span["end"] - span["start"]) == (3, len(node.output_ids))
        assert not any(greedy["loss_mask"])
        assert reply["not_trained"] == [{"turn": 1, "reason": "it was sampled greedily"}]
        assert (await call("POST", url, {"status": "done"}))[1]["error"]["param"] == "status"
        assert (await call("POST", url, {"reward": "high"}))[1]["error"]["param"] == "reward"


@pytest.mark.parametrize("stream", [False, True])
async def test_closing_a_session_ends_what_is_in_flight(room: Any, says: Any, stream: bool) -> None:
    held = says("one two three four five", holds_after=0)
    async with room(held) as here:
        replies: list[tuple[int, Any]] = []

        async def ask() -> None:
            replies.append(await call("POST", f"{here.base_url}/chat/completions", {**ASK, "stream": stream}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await here.engine.until_running(1)
            assert (await call("DELETE", f"{here.url}/sessions/{here.session_id}"))[0] == 204
        assert replies[0][0] == 404
        assert "closed" in replies[0][1]["error"]["message"]
        assert here.engine.running == 0
        assert not here.session.tree.nodes
        assert (await call("DELETE", f"{here.url}/sessions/{here.session_id}"))[0] == 404


async def test_closing_a_session_ends_its_streams_with_an_error(room: Any, says: Any) -> None:
    held = says("one two three four five", holds_after=9)
    async with room(held) as here, aiohttp.ClientSession() as http:
        async with http.post(f"{here.base_url}/chat/completions", json={**ASK, "stream": True}) as reply:
            await reply.content.readline()
            await call("DELETE", f"{here.url}/sessions/{here.session_id}")
            rest = (await reply.content.read()).decode()
        assert "session_closed" in rest
        assert "[DONE]" not in rest


async def test_expired_sessions_are_closed_although_nobody_asks(serving: Any) -> None:
    class Noted(SessionRegistry):
        def sweep(self) -> None:
            super().sweep()
            swept.set()

    swept = anyio.Event()
    app = create_app(Noted(ttl=0.01, max_sessions=1), open_session=None, model="toy", max_body_bytes=100)
    with anyio.fail_after(10):
        async with serving(app):
            await swept.wait()
