"""The ``embedded`` engine kind: its options, and how to start one in a process of its own. Imports no torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from miles_core.kinds.engines import EngineCommand, WeightUpdates

if TYPE_CHECKING:
    from miles_core.kinds.base import PluginContext

Dtype = Literal["float32", "bfloat16"]


class Embedded:
    """A Hugging Face model on CPU behind SGLang's HTTP API, for laptops and tests."""

    weight_updates: WeightUpdates = "miles"

    class Config(BaseModel):
        """Keys of ``[engine]`` beside the host's own."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        dtype: Dtype | None = Field(None, description="default: the type in config.json")
        threads: int = Field(1, ge=1, description="CPU threads of the engine")
        max_running_requests: int = Field(256, ge=1, description="requests that decode together; others wait")
        context_length: int | None = Field(
            None, ge=2, description="tokens of prompt and output, at most the model's own; default: those"
        )
        deterministic: bool = Field(
            False,
            description="bit-equal results whatever runs beside a request, many times slower; needs seeded requests",
        )
        host: str = Field("127.0.0.1", description="address to listen on")
        port: int = Field(0, ge=0, le=65535, description="that of engine 0, the next has the next; 0 picks free ones")

    def __init__(self, config: Config, context: PluginContext) -> None:
        """Keep nothing: the engine's process reads its options from the config file itself."""

    def command(self, model_path: str, *, index: int, config_path: str) -> EngineCommand:
        """The command that serves ``model_path`` as engine number ``index`` of the run of a config file."""
        options = ("--config", config_path, "--model-path", model_path, "--index", str(index))
        return EngineCommand((sys.executable, "-m", "miles_core.cli", "serve", "engine", *options))
