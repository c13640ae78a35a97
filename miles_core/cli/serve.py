"""``miles serve``: one part on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from miles_core.engine.embedded.plugin import Dtype

app = App(name="serve", help="Serve one part on its own: an engine or the router.")


@app.command
def engine(
    *,
    model_path: Path,
    host: str | None = None,
    port: int | None = None,
    dtype: Dtype | None = None,
    config: Path | None = None,
    index: int = 0,
) -> None:
    """Serve a Hugging Face model on CPU behind SGLang's HTTP API.

    With --config the options are those of a run's config file: [engine], [weights], model.bridge, run.seed and
    [plugins]; that is how a run starts its engines.

    Parameters
    ----------
    model_path
        A Hugging Face model directory, such as a checkpoint of a run.
    host
        The address to listen on; 127.0.0.1 if not given.
    port
        The port; a free one if not given.
    dtype
        The type of the weights; that of the model's config.json if not given.
    config
        The config file of a run; instead of --host, --port and --dtype.
    index
        The number of this engine, from 0; it adds to port and seed.
    """
    from miles_core.app.serve import EngineSetup, serve_engine
    from miles_core.config.load import load_config
    from miles_core.config.schema import EngineTable
    from miles_core.errors import ConfigError

    given = {key: value for key, value in (("host", host), ("port", port), ("dtype", dtype)) if value is not None}
    if config is None:
        table = EngineTable.model_validate(given)
        serve_engine(EngineSetup(model_path.resolve(), table, index=index))
        return
    if given:
        first = next(iter(given))
        raise ConfigError(
            f"--{first} and --config exclude each other", remedy=f"Set engine.{first} in {config}, or drop --config."
        )
    serve_engine(EngineSetup.of_run(load_config(config), model_path.resolve(), index))


@app.command
def router(
    *,
    config: Path,
    worker: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    overrides: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)] = (),
) -> None:
    """Serve the router of a config file in front of running engines.

    Parameters
    ----------
    config
        The config file; its [router] table holds address, policy and middlewares.
    worker
        The URL of an engine; may be given several times. More can be added over HTTP.
    overrides
        KEY=VALUE replaces one value of the file, such as router.port=30000; may be given several times.
    """
    from miles_core.app.serve import serve_router
    from miles_core.config.load import load_config

    serve_router(load_config(config, overrides), worker)
