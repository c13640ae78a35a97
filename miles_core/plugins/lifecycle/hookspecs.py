"""The hooks that a plugin distribution may implement.

Observers get frozen values and decide nothing: one that raises or takes too long is a warning that names it. Hooks
that act say so; what they raise ends the run. Each may be ``def`` or, except the first two, ``async def``, and takes
only the parameters that it names. Those of miles-hub run first, the others by distribution and name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cyclopts import App

    from miles_core.config.schema import Config
    from miles_core.kinds.hooks import RunInfo, TrainerHandle
    from miles_core.plugins.registry import Registry
    from miles_core.types import Group, StepBatch, Task
    from miles_core.types.weights import Manifest

PROJECT = "miles"

Role = Literal["driver", "trainer", "engine", "router"]

hookspec = pluggy.HookspecMarker(PROJECT)


@hookspec
def miles_register(registry: Registry) -> None:
    """Add plugins with ``registry.add(kind, name, target)``.

    Every distribution's entry points arrive through this hook. A module named in the entry-point group ``miles``
    implements it to add plugins that are computed at run time, in every process of a run; it needs no decorator.
    """


@hookspec
def miles_add_commands(app: App) -> None:
    """Add sub-commands to the ``miles`` command, a cyclopts ``App``; called for ``--help`` and unknown commands."""


@hookspec
def miles_config_loaded(config: Config) -> None:
    """Acts, in the driver: sees the checked config before a run has a folder; what it raises rejects it."""


@hookspec
def miles_process_started(role: Role, rank: int) -> None:
    """Called once in every process of a run or an evaluation: ``driver``, ``trainer``, ``engine`` and ``router``.

    ``rank`` is the engine's index or the trainer's rank, else 0. It comes before what the process builds. Servers that
    run without our plugins, such as SGLang's, do not call it.
    """


@hookspec
def miles_run_started(run: RunInfo) -> None:
    """Called in the driver when everything has started and the first step begins."""


@hookspec
def miles_run_finished(run: RunInfo, error: BaseException | None) -> None:
    """Called in the driver, once, at the end of every run that started, when its other processes are gone.

    ``error`` is what the run failed with, ``KeyboardInterrupt`` where the user ended it at once, else ``None``.
    """


@hookspec
def miles_rollout_started(step: int, tasks: Sequence[Task]) -> None:
    """Called when a step, counted from 0, begins: ``tasks`` are the first that are handed out for it.

    There are none where groups left over from the step before are enough.
    """


@hookspec
def miles_rollout_finished(step: int, groups: Sequence[Group], dropped: Mapping[str, int]) -> None:
    """Called when a step has its groups: those that were kept, and how many each reason dropped.

    Staleness and filters of the stage ``buffer`` may still drop some when the step is trained.
    """


@hookspec
def miles_batch_ready(step: int, batch: StepBatch) -> StepBatch | None:
    """Acts, in the trainer: may return a changed copy of the step (``dataclasses.replace``), before its forward passes.

    ``rewards``, ``rollout_logprobs``, ``group_index``, ``trajectory_index`` and ``denominator_tokens`` may change, and
    ``loss_mask`` may lose tokens. The rest stays, because the model is fed from the samples. Several implementations
    see each other's copies, in order.
    """


@hookspec
def miles_trainer_built(trainer: TrainerHandle) -> None:
    """Acts, in the trainer: may change the model that was built, before the first optimizer is made."""


@hookspec
def miles_before_logprobs(trainer: TrainerHandle, batch: StepBatch) -> None:
    """Acts, in the trainer: called once per step before its forward passes that compute logprobs, if it needs any."""


@hookspec
def miles_before_train_step(trainer: TrainerHandle, step: int) -> None:
    """Acts, in the trainer: called before the first backward pass of a step, counted from 0."""


@hookspec
def miles_step_finished(step: int, metrics: Mapping[str, float]) -> None:
    """See the metrics of a step, counted from 1, after its weight update."""


@hookspec
def miles_eval_finished(step: int, results: Mapping[str, float]) -> None:
    """See the metrics (``eval/...``) of an evaluation after ``step`` steps of training."""


@hookspec
def miles_weights_published(version: int, manifest: Manifest) -> None:
    """Called after each weight update of a step, when all engines serve it; the manifest tells bytes and buckets."""


@hookspec
def miles_checkpoint_saved(step: int, path: str) -> None:
    """Called once per checkpoint, when it is whole on disk; that of step 0 comes before the run starts."""


@hookspec
def miles_engine_lost(url: str, error: str) -> None:
    """Called when an engine that served died, left the run or gives no answer any more; ``error`` says why."""


ACTING = frozenset(
    {"miles_config_loaded", "miles_batch_ready", "miles_trainer_built", "miles_before_logprobs",
     "miles_before_train_step"}
)  # fmt: skip
"""Hooks whose failure ends the run, and whose result or changes count."""
