"""``miles serve``: one part on its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from miles_core.engine.embedded.plugin import Dtype

app = App(name="serve", help="Serve one part on its own: an engine, the router or sessions.")


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
    from miles_core.config.serving import EngineTable
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


@app.command
def session(
    *,
    url: str,
    model_path: Path,
    config: Path | None = None,
    host: str | None = None,
    port: int | None = None,
    name: str | None = None,
    routed_experts: Annotated[bool, Parameter(negative=())] = False,
    wait: float = 600.0,
    overrides: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)] = (),
) -> None:
    """Serve sessions in front of an engine or a router: OpenAI's and Anthropic's SDKs in, token ids out.

    Each session keeps every token that was generated and never tokenizes it again. Open one and point a client at it:

        miles serve session --url http://127.0.0.1:30000 --model-path models/my-model --port 8000
        curl -X POST http://127.0.0.1:8000/sessions -d '{}' -H 'content-type: application/json'

    The answer has base_url and api_key for the SDK. GET /sessions/ID shows the turns, POST /sessions/ID/samples gives
    training samples, and DELETE /sessions/ID ends it.

    Parameters
    ----------
    url
        The URL of an engine that speaks SGLang's HTTP API, or of a router before some.
    model_path
        The Hugging Face directory of the served model: tokenizer, chat template and config.json are read.
    config
        The config file of a run, whose [session] table is used: match, pick, renderer, parsers, clock and limits.
    host
        The address to listen on; session.host if not given.
    port
        The port; session.port if not given, where 0 picks a free one.
    name
        What clients call the model; the name of its directory if not given.
    routed_experts
        Record the experts of every token, for routing replay. Off by default: the engine must have been started to
        report them, and they weigh more than all else that a session keeps.
    wait
        Seconds that the engine may take until it answers.
    overrides
        KEY=VALUE replaces one value of the config, such as session.ttl=600; may be given several times.
    """
    from miles_core.app.serve_session import SessionSetup, serve_session
    from miles_core.config.load import load_config
    from miles_core.config.session_only import session_table

    given = [f"session.{key}={value}" for key, value in (("host", host), ("port", port)) if value is not None]
    path = model_path.resolve()
    setup = SessionSetup(url, path, name or path.name, routed_experts=routed_experts, wait=wait)
    if config is None:
        serve_session(replace(setup, session=session_table([*overrides, *given])))
        return
    run = load_config(config, [*overrides, *given]).config
    serve_session(replace(setup, session=run.session, plugins=run.plugins, bridge=run.model.bridge))
