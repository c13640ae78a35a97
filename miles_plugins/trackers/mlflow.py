"""Metrics for MLflow."""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import PluginError
from miles_plugins.trackers.optional import require
from miles_plugins.trackers.run_folder import remembered, run_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from miles_core.api import PluginContext

PARAMETERS_AT_ONCE = 100
PARAMETER_LENGTH = 6000
"""What MLflow's API takes."""


class MlflowConfig(BaseModel):
    """Options of ``[[trackers]] use = "mlflow"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tracking_uri: str | None = Field(None, description="the server or store; default: `mlruns` in the run's folder")
    experiment: str = Field("miles", min_length=1, description="experiment of the run; made if it is not there")
    tags: dict[str, str] = Field(default_factory=dict, description="tags of the run")


class Mlflow:
    """One MLflow run with the config as its parameters, which a resumed run goes on with.

    MLflow keeps each value that a step is given; a resumed run adds a second one to steps that come again. Names may
    hold letters, digits and ``_-. :/``; other characters become ``_``.
    """

    Config = MlflowConfig

    def __init__(self, config: MlflowConfig, context: PluginContext) -> None:
        folder = run_folder(context, "mlflow")
        client_module = require("mlflow.tracking", "mlflow")
        self._entities = require("mlflow.entities", "mlflow")
        uri = config.tracking_uri or (folder / "mlruns").absolute().as_uri()
        try:
            with _file_store_allowed():
                self._client = client_module.MlflowClient(tracking_uri=uri)
            self._run_id, again = remembered(
                folder / "mlflow_run_id", lambda: self._begin(config, context, folder.name)
            )
            if again:
                self._client.update_run(self._run_id, status="RUNNING")
        except Exception as error:
            raise PluginError(
                f"tracker mlflow: cannot begin a run in {uri}: {error}",
                remedy="Check tracking_uri and that its server is up.",
            ) from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step."""
        now = int(time.time() * 1000)
        rows = [self._entities.Metric(_name(key), float(value), now, step) for key, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=rows)

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run_id)

    def _begin(self, config: MlflowConfig, context: PluginContext, folder_name: str) -> str:
        found = self._client.get_experiment_by_name(config.experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(config.experiment)
        name = context.services.get("run_id", folder_name)
        run_id = str(self._client.create_run(experiment, run_name=name, tags=config.tags).info.run_id)
        parameters = [
            self._entities.Param(_name(key), str(value)[:PARAMETER_LENGTH])
            for key, value in _leaves("", context.services.get("config") or {})
        ]
        for start in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(run_id, params=parameters[start : start + PARAMETERS_AT_ONCE])
        return run_id


@contextmanager
def _file_store_allowed() -> Iterator[None]:
    """MLflow refuses stores in a folder unless the environment says so; a database would need packages of its own."""
    name = "MLFLOW_ALLOW_FILE_STORE"
    before = os.environ.get(name)
    os.environ[name] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Dotted keys, such as ``rewards.0.weight``, and their values."""
    if isinstance(value, dict | list | tuple) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), inner)
    elif prefix:
        yield prefix, value


def _name(key: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)
