"""The ``sglang`` engine kind: its options, and how to start or watch one server. Imports neither torch nor SGLang."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_core.config.load import load_config
from miles_core.engine.sglang.arguments import server_arguments
from miles_core.engine.sglang.cpu.environment import SERVER_ARGUMENTS, SERVER_ENVIRONMENT, SERVER_FILE
from miles_core.engine.sglang.gpus import share
from miles_core.engine.sglang.interpreter import find_interpreter
from miles_core.engine.sglang.models import check_model
from miles_core.engine.sglang.options import Options
from miles_core.engine.sglang.version import check_version
from miles_core.errors import ConfigError
from miles_core.kinds.engines import EngineCommand, WeightUpdates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.config.schema import Config as RunConfig
    from miles_core.config.serving import EngineTable
    from miles_core.kinds.base import PluginContext

_ENVIRONMENT = {
    # Its log is read while it starts.
    "PYTHONUNBUFFERED": "1",
    # Otherwise /health generates a token, and a server that is paused or has released its memory seems dead.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    # It would dump its state for 5 s, or 60 s on a GPU, before it dies; it is started again instead.
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "false",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "false",
}


class SGLang:
    """SGLang's own server, started in an environment that has it, or running already."""

    weight_updates: WeightUpdates = "sglang"
    Config = Options

    def __init__(self, config: Options, context: PluginContext) -> None:
        """Keep the options of one server, and the seed of the run."""
        self._options = config
        self._seed = context.seed

    def check(self) -> None:
        """Find the SGLang that would be started.

        Raises:
            EngineError: if there is none, or an old one.
        """
        if not self._options.urls:
            check_version(find_interpreter(self._options).path)

    def command(self, model_path: str, *, index: int, config_path: str) -> EngineCommand:
        """The command that serves ``model_path`` as engine number ``index`` of the run of a config file.

        Raises:
            EngineError: if there is no SGLang to start.
            ConfigError: if URLs or GPUs are too few, the port is too high, or SGLang serves the model wrongly.
        """
        config = load_config(Path(config_path)).config
        if self._options.urls:
            return _module("attach", self._url(config.engine.servers, index))
        return self._start(model_path, index, config)

    def _start(self, model_path: str, index: int, config: RunConfig) -> EngineCommand:
        options = self._options
        hf_config = _hf_config(Path(model_path))
        check_model(hf_config)
        interpreter = find_interpreter(options)
        if interpreter.on_cpu:
            options = options.model_copy(update={"device": "cpu"})
            environment = dict(SERVER_ENVIRONMENT)
            server = [interpreter.path, str(SERVER_FILE), *SERVER_ARGUMENTS]
        else:
            before = [Options.model_validate(table.options) for table in config.engine.servers[:index]]
            others = [(other.gpus_per_server, _pool(other)) for other in before]
            environment = {"CUDA_VISIBLE_DEVICES": share(options.gpus_per_server, _pool(options), others)}
            server = [interpreter.path, "-m", "sglang.launch_server"]
        arguments = server_arguments(
            options,
            hf_config,
            model_path=model_path,
            seed=self._seed + index,
            replay=config.train.replay_routing,
            colocated=config.run.placement == "colocated",
        )
        own = ("--host", options.host, "--port", str(_port(options, index)))
        return _module(
            "launch", *own, "--", *server, *arguments, environment=_ENVIRONMENT | environment | options.environment
        )

    def _url(self, servers: Sequence[EngineTable], index: int) -> str:
        """One of the URLs; the servers of a group share a list."""
        listed = [table.options.get("urls") for table in servers]
        peers = [number for number, urls in enumerate(listed) if urls == listed[index]]
        urls = self._options.urls
        if len(peers) != len(urls):
            raise ConfigError(
                f"engine.urls names {len(urls)} servers and count is {len(peers)}",
                remedy=f"Set count = {len(urls)}, in [engine] or in the group that has the urls.",
            )
        return urls[peers.index(index)]


def _module(name: str, *arguments: str, environment: dict[str, str] | None = None) -> EngineCommand:
    argv = (sys.executable, "-m", f"miles_core.engine.sglang.{name}", *arguments)
    return EngineCommand(argv, environment or {})


def _pool(options: Options) -> list[str] | None:
    if options.gpus is not None:
        return [str(gpu) for gpu in options.gpus]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if visible is None else [gpu for gpu in visible.split(",") if gpu]


def _port(options: Options, index: int) -> int:
    port = options.port + index if options.port else 0
    if port > 65535:
        raise ConfigError(
            f"engine {index} would listen on port {port}; the highest is 65535",
            remedy="Lower engine.port, or set it to 0.",
        )
    return port


def _hf_config(model: Path) -> dict[str, Any]:
    file = model / "config.json"
    try:
        hf_config: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", remedy="Name a Hugging Face model directory.") from None
    return hf_config
