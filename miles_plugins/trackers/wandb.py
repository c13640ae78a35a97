"""Metrics for Weights & Biases."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import PluginError
from miles_plugins.trackers.optional import require
from miles_plugins.trackers.run_folder import remembered, run_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.api import PluginContext

FINISH_SECONDS = 8.0
"""How long the last upload may take: less than what a run waits for its trackers. What is left is on disk."""


class WandbConfig(BaseModel):
    """Options of ``[[trackers]] use = "wandb"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str = Field("miles", min_length=1, description="project of the run")
    entity: str | None = Field(None, description="user or team; default: that of the login")
    mode: Literal["online", "offline", "disabled"] = Field(
        "online", description="offline: only into the run's folder, for `wandb sync`"
    )
    tags: tuple[str, ...] = Field((), description="tags of the run")
    init_timeout: float = Field(30.0, gt=0, description="seconds that the service may take to answer at the start")


class Wandb:
    """One run of W&B, which a resumed run goes on with; its files are in ``wandb/`` of the run's folder.

    Charts have the training step as their x-axis (metric ``step``): W&B's own counter takes no step twice, but a
    resumed run logs the steps after its checkpoint again.
    """

    Config = WandbConfig

    def __init__(self, config: WandbConfig, context: PluginContext) -> None:
        folder = run_folder(context, "wandb")
        wandb = require("wandb", "wandb")
        run_id, _ = remembered(folder / "wandb" / "run_id", lambda: secrets.token_hex(4))
        try:
            self._run = wandb.init(
                id=run_id,
                resume="allow",
                project=config.project,
                entity=config.entity,
                mode=config.mode,
                tags=config.tags,
                name=context.services.get("run_id", folder.name),
                config=context.services.get("config"),
                dir=str(folder),
                settings=wandb.Settings(
                    console="off",  # the run's own output stays its own
                    silent=True,
                    save_code=False,
                    disable_git=True,
                    init_timeout=config.init_timeout,
                    finish_timeout=FINISH_SECONDS,
                ),
            )
        except (wandb.Error, OSError) as error:
            raise PluginError(
                f"tracker wandb: cannot begin a run in mode {config.mode!r}: {error}",
                remedy='Run `wandb login`, or set mode = "offline".',
            ) from error
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record one step."""
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        """Upload the rest and finish the run; W&B's own process writes its last file until this process ends."""
        self._run.finish()
