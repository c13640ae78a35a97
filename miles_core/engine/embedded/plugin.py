"""The ``embedded`` engine kind: how to start one in a process of its own. Imports no torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from miles_core.kinds.engines import EngineCommand

if TYPE_CHECKING:
    from miles_core.kinds.base import PluginContext


class Embedded:
    """A Hugging Face model on CPU behind SGLang's HTTP API, for laptops and tests."""

    class Config(BaseModel):
        """Keys of ``[engine]`` beside the host's own."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        dtype: Literal["float32", "bfloat16"] | None = Field(None, description="default: the type in config.json")
        threads: int = Field(1, ge=1, description="CPU threads of the engine")
        max_running_requests: int = Field(256, ge=1, description="requests that decode together; others wait")
        context_length: int | None = Field(None, ge=2, description="default: the model's max_position_embeddings")
        host: str = Field("127.0.0.1", description="address to listen on")
        port: int = Field(0, ge=0, le=65535, description="0 picks a free port")

    def __init__(self, config: Config, context: PluginContext) -> None:
        self._config = config
        self._seed = context.seed

    def command(self, model_path: str, *, index: int, transport: str) -> EngineCommand:
        """The command that serves ``model_path`` as engine number ``index``, updated over a weight transport."""
        config = self._config
        options = {
            "--model-path": model_path,
            "--dtype": config.dtype,
            "--threads": config.threads,
            "--max-running-requests": config.max_running_requests,
            "--context-length": config.context_length,
            "--host": config.host,
            # engines on one host cannot share a port
            "--port": config.port + index if config.port else 0,
            "--seed": self._seed + index,
            "--transport": transport,
        }
        given = [text for name, value in options.items() if value is not None for text in (name, str(value))]
        return EngineCommand((sys.executable, "-m", "miles_core.cli", "serve", "engine", *given))
