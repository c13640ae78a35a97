"""The session server inside a run: only where an agent needs it, at a port of its own, and gone with the run."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from miles_core.app.checks import check_run
from miles_core.app.launch import Run
from miles_core.app.session_server import serve_sessions, session_server
from miles_core.app.wiring import Wiring, wire
from miles_core.config.load import load_config
from miles_core.config.serving import SessionTable
from miles_core.errors import ConfigError, RolloutError
from miles_core.telemetry.progress import TrainingProgress

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The wiring of the agent's example, with other values."""
    monkeypatch.syspath_prepend(EXAMPLES / "agent_tools")

    def make(*overrides: str) -> Wiring:
        return wire(load_config(EXAMPLES / "agent_tools" / "config.toml", overrides), tmp_path)

    return make


async def test_it_serves_where_an_environment_is_an_agent_and_ends_with_the_block(agent) -> None:
    async with session_server(agent()) as server, httpx.AsyncClient() as client:
        assert server is not None
        assert (await client.get(f"{server.url}/health")).status_code == 200
        opened = await client.post(f"{server.url}/sessions")
        assert opened.status_code == 403, "clients open no sessions in a run"
        models = (await client.get(f"{server.url}/v1/models")).json()
        assert [model["id"] for model in models["data"]] == ["policy"]
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient() as client:
            await client.get(f"{server.url}/health")


async def test_a_config_without_agents_has_none(tmp_path: Path) -> None:
    quickstart = wire(load_config(EXAMPLES / "quickstart" / "config.toml"), tmp_path)
    async with session_server(quickstart) as server:
        assert server is None


async def test_a_wildcard_address_is_reached_at_this_host() -> None:
    async with serve_sessions(SessionTable(host="0.0.0.0")) as server, httpx.AsyncClient() as client:
        assert server.url.startswith("http://127.0.0.1:")
        assert (await client.get(f"{server.url}/health")).status_code == 200


async def test_a_port_in_use_ends_the_run_before_any_process_starts(agent, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        wiring = agent(f"session.port={port}")
        run = Run(wiring, tmp_path / "no-such-config.toml", TrainingProgress(0))
        with pytest.raises(RolloutError, match=f"the session server cannot listen on 127.0.0.1:{port}") as raised:
            await run.execute()
    assert raised.value.remedy is not None
    assert "Choose another session server port" in raised.value.remedy


def test_a_generate_function_beside_an_agent_is_refused(agent) -> None:
    with pytest.raises(ConfigError, match="rollout.generate = 'turns' would have no effect"):
        check_run(agent("rollout.generate=turns"))


async def test_what_fails_beside_the_server_comes_out_as_it_is_and_the_server_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(RolloutError, match="no group to train on"):
        async with serve_sessions(SessionTable()):
            raise RolloutError("no group to train on")
    assert caplog.records == []
