"""``miles serve``: one part on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(name="serve", help="Serve one part on its own: an engine or the router.")


@app.command
def engine(
    *,
    model_path: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    dtype: Literal["float32", "bfloat16"] | None = None,
    threads: int = 1,
    max_running_requests: int = 256,
    context_length: int | None = None,
    transport: str = "memory",
    weight_version: int = 0,
    seed: int = 0,
) -> None:
    """Serve a Hugging Face model on CPU behind SGLang's HTTP API.

    Parameters
    ----------
    model_path
        A Hugging Face model directory.
    host
        The address to listen on.
    port
        The port; 0 picks a free one.
    dtype
        The type of the weights; default: the one in config.json.
    threads
        CPU threads of one forward pass.
    max_running_requests
        Requests that are decoded together.
    context_length
        Tokens of prompt and output; default: the model's.
    transport
        The weight transport that updates arrive by.
    weight_version
        The policy version of the weights in `model_path`.
    seed
        Draws the noise of requests that bring no sampling_seed.
    """
    from miles_core.app.serve import EngineOptions, serve_engine

    options = EngineOptions(
        model_path.resolve(),
        host,
        port,
        dtype,
        threads,
        max_running_requests,
        context_length,
        transport,
        weight_version,
        seed,
    )
    serve_engine(options)


@app.command
def router(
    *,
    config: Path,
    worker: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    overrides: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
) -> None:
    """Serve the router of a config file in front of running engines.

    Parameters
    ----------
    config
        The config file; its [router] table holds address, policy and middlewares.
    worker
        The URL of an engine; may be given several times. More can be added over HTTP.
    overrides
        Change a key, such as `--set router.port=30000`.
    """
    from miles_core.app.serve import serve_router
    from miles_core.config.load import load_config
    from miles_core.kinds.base import PluginContext

    loaded = load_config(config, overrides)
    serve_router(loaded.config, worker, PluginContext(services={"base_dir": loaded.base_dir}))
