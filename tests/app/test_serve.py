"""An engine process serves what the config of its run says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from miles_core.app.processes import child
from miles_core.app.serve import EngineSetup, serve_engine
from miles_core.cli.main import main
from miles_core.config.load import LoadedConfig, dump_config
from miles_core.config.serving import EngineTable
from miles_core.engine.embedded.plugin import Embedded
from miles_core.errors import ConfigError, EngineError, PluginNotFound
from miles_core.kinds.base import PluginContext

Quickstart = Callable[..., LoadedConfig]
PLUGINS = """
from pydantic import BaseModel
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.transports.memory import Memory

class Bridge(Qwen3Moe):
    def build(self, *arguments, **options):
        print("built by my bridge", flush=True)
        return super().build(*arguments, **options)

class Transport(Memory):
    class Config(BaseModel):
        note: str

    def __init__(self, config, context):
        super().__init__(config, context)
        print("transport", config.note, context.seed, context.run_dir.name, flush=True)

class Remote:
    weight_updates = "sglang"
    def __init__(self, config, context): ...
    def command(self, model_path, *, index, config_path): ...
"""
SAVE = (
    "import sys, transformers as t; path = sys.argv[1];"
    "t.Qwen3MoeForCausalLM(t.AutoConfig.from_pretrained(path)).save_pretrained(path)"
)


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_plugins.py").write_text(PLUGINS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def checkpoint(model: Path) -> Path:
    """The quickstart's model with random weights; it knows 512 positions."""
    subprocess.run([sys.executable, "-c", SAVE, str(model)], check=True, capture_output=True)
    return model


@pytest.mark.anyio
@pytest.mark.parametrize(("context_length", "served"), [(99, 99), (100_000, 512)])
async def test_bridge_transport_options_and_limits_come_from_the_config(
    quickstart: Quickstart, checkpoint: Path, plugins: Path, context_length: int, served: int
) -> None:
    loaded = quickstart(
        "model.bridge=my_plugins:Bridge",
        "weights.use=my_plugins:Transport",
        "weights.note=hello",
        "run.seed=5",
        f"engine.context_length={context_length}",
    )
    run = plugins / "run-7"
    run.mkdir()
    config_file = run / "config.toml"
    config_file.write_text(dump_config(loaded.config))
    argv = (
        Embedded(Embedded.Config(), PluginContext())
        .command(str(checkpoint), index=1, config_path=str(config_file))
        .argv
    )
    environment = {"PYTHONPATH": str(plugins), "PATH": os.environ["PATH"]}
    log = plugins / "e.log"
    async with (
        child("engine-1", argv, log=log, error=EngineError, start_timeout=60, environment=environment) as engine,
        aiohttp.ClientSession() as http,
    ):
        async with http.get(f"{engine.ready['url']}/get_model_info") as response:
            info = await response.json()
        async with http.get(f"{engine.ready['url']}/weights/layout") as response:
            layout = await response.json()
        assert "transport hello" not in log.read_text(), "made when the first update names it"
        begin = {"version": 1, "transport": "my_plugins:Transport"}
        assert (await post(http, f"{engine.ready['url']}/weights/begin", begin))[0] == 200
        unknown = await post(http, f"{engine.ready['url']}/weights/begin", {"version": 1, "transport": "none"})
    assert (info["context_length"], info["weight_version"], info["model_path"]) == (served, "0", str(checkpoint))
    assert layout["transports"]["my_plugins:Transport"] is None
    assert layout["ranks"][0]["naming"] == "torch"
    assert unknown[0] == 409
    assert "none" in unknown[1]["error"]["message"]
    lines = log.read_text().splitlines()
    assert "built by my bridge" in lines
    assert "transport hello 5 run-7" in lines


async def post(http: aiohttp.ClientSession, url: str, body: object) -> tuple[int, Any]:
    async with http.post(url, json=body) as response:
        return response.status, await response.json()


@pytest.mark.anyio
async def test_two_deterministic_processes_agree_bit_by_bit_and_release_their_memory(
    quickstart: Quickstart, checkpoint: Path, plugins: Path
) -> None:
    config_file = plugins / "config.toml"
    config_file.write_text(dump_config(quickstart("engine.deterministic=true").config))
    embedded = Embedded(Embedded.Config(), PluginContext())
    sampling = {"temperature": 1.0, "max_new_tokens": 20, "sampling_seed": 3, "ignore_eos": True}
    replies: list[Any] = []
    async with aiohttp.ClientSession() as http:
        for index in (0, 1):
            argv = embedded.command(str(checkpoint), index=index, config_path=str(config_file)).argv
            log = plugins / "e.log"
            async with child(f"engine-{index}", argv, log=log, error=EngineError, start_timeout=60) as engine:
                url = engine.ready["url"]
                body = {"rid": "r", "input_ids": [5, 6, 7], "sampling_params": sampling, "return_logprob": True}
                replies.append(await post(http, f"{url}/generate", body))
                assert (await post(http, f"{url}/generate", {"input_ids": [5]}))[0] == 400
                assert (await post(http, f"{url}/release_memory_occupation", {}))[0] == 200
                assert await post(http, f"{url}/weights/abort", {}) == (200, {"version": 0, "torn": True})
    assert replies[0][0] == 200
    assert replies[0] == replies[1]


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        (["plugins.block=['acme']"], PluginNotFound, r"\[plugins\] block names 'acme'"),
        (["engine.use=my_plugins:Remote"], ConfigError, 'the config says .engine. use = "my_plugins:Remote"'),
        (["engine.port=65535"], ConfigError, "engine 1 would listen on port 65536"),
        (["engine.treads=1"], ConfigError, "treads: unknown key; did you mean 'threads'"),
    ],
)
def test_a_config_that_an_engine_cannot_serve_is_refused(
    quickstart: Quickstart, plugins: Path, overrides: list[str], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        serve_engine(EngineSetup.of_run(quickstart(*overrides), plugins, 1))


def test_a_person_s_options_are_checked_by_the_engine_s_own_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="port: expected less than or equal to 65535; got 70000"):
        serve_engine(EngineSetup(tmp_path, EngineTable.model_validate({"port": 70000})))


def test_options_beside_a_config_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["serve", "engine", "--model-path", str(tmp_path), "--config", "run/config.toml", "--port", "30000"]
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 1
    assert capsys.readouterr().err == (
        "error: --port and --config exclude each other\n  -> Set engine.port in run/config.toml, or drop --config.\n"
    )
