"""``miles serve session`` as a process of its own: engine, router and an unmodified SDK around it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import anyio
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from anyio.streams.text import TextReceiveStream

from miles_core.app.engine_facts import context_of, wait_for_engine
from miles_core.app.processes import child
from miles_core.cli.main import main
from miles_core.errors import EngineError

pytestmark = pytest.mark.anyio
MILES = (sys.executable, "-m", "miles_core.cli")
CONFIG = Path(__file__).parents[2] / "examples" / "quickstart" / "config.toml"
SAVE = (
    "import sys, transformers as t; path = sys.argv[1];"
    "t.Qwen3MoeForCausalLM(t.AutoConfig.from_pretrained(path)).save_pretrained(path)"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's model with random weights; tests only read it."""
    model = tmp_path_factory.mktemp("checkpoint") / "model"
    shutil.copytree(CONFIG.parent / "model", model)
    subprocess.run([sys.executable, "-c", SAVE, str(model)], check=True, capture_output=True)
    return model


class Servers:
    """Starts serving processes, which end with the test."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder, self._stack = folder, stack

    async def start(self, *argv: str) -> str:
        log = self.folder / f"{argv[0]}.log"
        started = child(argv[0], [*MILES, "serve", *argv], log=log, error=EngineError, start_timeout=60)
        return (await self._stack.enter_async_context(started)).ready["url"]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        yield Servers(tmp_path, stack)


async def opened(url: str, **wanted: object) -> dict:
    async with aiohttp.ClientSession() as http, http.post(f"{url}/sessions", json=wanted) as response:
        assert response.status == 201
        return await response.json()


async def shown(base_url: str) -> dict:
    async with aiohttp.ClientSession() as http, http.get(base_url.removesuffix("/v1")) as response:
        return await response.json()


async def two_turns(session: dict) -> dict:
    """Two turns by the OpenAI SDK, and the record of the session."""
    async with openai.AsyncOpenAI(base_url=session["base_url"], api_key=session["api_key"]) as client:
        messages = [{"role": "user", "content": "value of c?"}]
        for _ in range(2):
            answer = await client.chat.completions.create(model="any", messages=messages, max_tokens=4)
            messages += [answer.choices[0].message, {"role": "user", "content": "next"}]
    return await shown(session["base_url"])


async def test_an_sdk_talks_to_an_engine_and_the_record_passes_the_audit(
    servers: Servers, checkpoint: Path, tmp_path: Path
) -> None:
    engine = await servers.start("engine", "--model-path", str(checkpoint))
    url = await servers.start("session", "--url", engine, "--model-path", str(checkpoint))
    record = await two_turns(await opened(url, sampling={"seed": 3}))
    assert [turn["parent"] for turn in record["turns"]] == [None, 0]
    assert all(len(turn["output_ids"]) == len(turn["logprobs"]) for turn in record["turns"])
    assert all(turn["routing_rows"] is None for turn in record["turns"])
    log = servers.log("session")
    assert "can be continued token by token" in log
    assert "append user         yes" in log
    assert f"engine {engine}: contexts of 512 tokens; routed experts off" in log
    (tmp_path / "session.json").write_text(json.dumps(record))
    with pytest.raises(SystemExit) as caught:
        main(["tito", "audit", str(tmp_path / "session.json"), "--model", str(checkpoint)])
    assert caught.value.code == 0


async def test_a_router_may_stand_between_and_routing_is_recorded_where_it_is_asked_for(
    servers: Servers, checkpoint: Path
) -> None:
    engine = await servers.start("engine", "--model-path", str(checkpoint))
    router = await servers.start("router", "--config", str(CONFIG), "--worker", engine)
    options = ["--config", str(CONFIG), "--set", f"model.path={checkpoint}", "--name", "mine", "--routed-experts"]
    url = await servers.start("session", "--url", router, "--model-path", str(checkpoint), *options)
    record = await two_turns(await opened(url))
    rows = [turn["routing_rows"] for turn in record["turns"]]
    lengths = [len(turn["context_ids"]) + len(turn["output_ids"]) for turn in record["turns"]]
    assert sum(rows) == sum(lengths) - 1
    async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/models") as response:
        assert [each["id"] for each in (await response.json())["data"]] == ["mine"]


@pytest.fixture
async def silent_router() -> AsyncIterator[str]:
    """A server that knows no question that an engine answers."""
    async with TestServer(web.Application()) as server:
        yield str(server.make_url("")).rstrip("/")


async def test_sigterm_ends_it_while_a_session_is_open(silent_router: str, model: Path) -> None:
    argv = [*MILES, "serve", "session", "--url", silent_router, "--model-path", str(model)]
    log, url = "", None
    with anyio.fail_after(90):
        async with await anyio.open_process(argv, stdout=subprocess.DEVNULL) as process:
            assert process.stderr is not None
            async for text in TextReceiveStream(process.stderr):
                log += text
                if url is None and (found := re.search(r"^serving on (\S+)\n", log, re.MULTILINE)):
                    url = found[1]
                    await opened(url)
                    process.send_signal(signal.SIGTERM)
            assert await process.wait() in (0, -signal.SIGTERM), log
    assert url is not None, log
    assert "Traceback" not in log


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "session", *argv])
    assert caught.value.code == 1
    return capsys.readouterr().err


def test_an_engine_that_does_not_come_up_is_named(model: Path, capsys, unused_url: str) -> None:
    err = refused(capsys, "--url", unused_url, "--model-path", str(model), "--wait", "0.2")
    assert f"waiting for the engine: no answer from {unused_url}/server_info" in err
    assert "error: no engine answered within 0.2 s: no answer from" in err


def test_a_template_that_cannot_be_continued_is_refused_before_anything_is_served(model: Path, capsys) -> None:
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    err = refused(capsys, "--url", "http://127.0.0.1:9", "--model-path", str(model))
    assert "can append nothing after a generated turn: user: " in err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--set", "session.tll=5"], "session.tll: unknown key; did you mean 'ttl'"),
        (["--set", "rollout.x=5"], "rollout: unknown key"),
        (["--port", "70000"], "session.port: expected less than or equal to 65535; got 70000"),
        (["--set", "session.pick=worst"], "session.pick"),
        (["--config", "gone.toml"], "there is no config file gone.toml"),
    ],
)
def test_a_wrong_option_is_named(model: Path, capsys, options: list[str], problem: str) -> None:
    assert problem in refused(capsys, "--url", "http://127.0.0.1:9", "--model-path", str(model), *options)


def test_a_dense_model_has_no_routed_experts(model: Path, capsys) -> None:
    config = json.loads((model / "config.json").read_text())
    dense = {**config, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    (model / "config.json").write_text(json.dumps(dense))
    err = refused(capsys, "--url", "http://127.0.0.1:9", "--model-path", str(model), "--routed-experts")
    assert "is a dense model: it routes nothing" in err


def test_a_directory_without_a_config_is_refused(model: Path, capsys) -> None:
    (model / "config.json").write_text("{}")
    err = refused(capsys, "--url", "http://127.0.0.1:9", "--model-path", str(model))
    assert "config.json must name max_position_embeddings" in err


@pytest.fixture
def unused_url() -> str:
    """A port of this machine that nobody listens on."""
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


async def test_what_is_no_url_is_told(unused_url: str) -> None:
    with pytest.raises(EngineError, match="no engine answered within 0.1 s"):
        await wait_for_engine("engine:80", 0.1, lambda _: None)


def test_the_shortest_of_what_is_known_bounds_a_context() -> None:
    assert context_of({}, 512) == 512
    assert context_of({"context_length": 99}, 512) == 99
    assert context_of({"context_length": 4096, "max_req_input_len": 300}, 512) == 306
    assert context_of({"context_length": None}, 512) == 512
