"""The hooks that a plugin distribution may implement.

Observers get frozen values and decide nothing: one that raises or takes too long is a warning that names it. Hooks
that act say so; what they raise ends the run. Each may be ``def`` or ``async def``, and takes only the parameters that
it names. Built-in hooks run first, the others by distribution and name.
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
    implements it to add plugins that are computed at run time; it needs no decorator.
    """


@hookspec
def miles_add_commands(app: App) -> None:
    """Add sub-commands to the ``miles`` command, a cyclopts ``App``; called for ``--help`` and unknown commands."""


@hookspec
def miles_config_loaded(config: Config) -> None:
    """Acts: sees the resolved config before anything of a run starts; what it raises rejects it."""


@hookspec
def miles_process_started(role: Role, rank: int) -> None:
    """Called once in every process of a run: ``driver``, ``trainer``, ``engine`` and ``router``.

    ``rank`` is the engine's index or the trainer's rank, else 0.
    """


@hookspec
def miles_run_started(run: RunInfo) -> None:
    """Called in the driver when everything has started and the first step begins."""


@hookspec
def miles_run_finished(run: RunInfo, error: BaseException | None) -> None:
    """Called in the driver at the end of every run that started; ``error`` is ``None`` unless it failed."""


@hookspec
def miles_rollout_started(step: int, tasks: Sequence[Task]) -> None:
    """Called when the first tasks of a step, counted from 0, are handed out."""


@hookspec
def miles_rollout_finished(step: int, groups: Sequence[Group], dropped: Mapping[str, int]) -> None:
    """Called when a step has its groups: those that were kept, and how many each reason dropped."""


@hookspec
def miles_batch_ready(step: int, batch: StepBatch) -> StepBatch | None:
    """Acts, in the trainer: may return a changed copy of the step, before its forward passes.

    The number of samples and their lengths stay. Several implementations see each other's copies, in order.
    """


@hookspec
def miles_trainer_built(trainer: TrainerHandle) -> None:
    """Acts, in the trainer: may change the model that was built, before the first optimizer is made."""


@hookspec
def miles_before_logprobs(trainer: TrainerHandle, batch: StepBatch) -> None:
    """Acts, in the trainer: called before the forward passes of a step that compute logprobs."""


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
    """Called when all engines serve a policy version; the manifest tells bytes and buckets."""


@hookspec
def miles_checkpoint_saved(step: int, path: str) -> None:
    """Called when the checkpoint after ``step`` steps is whole on disk."""


@hookspec
def miles_engine_lost(url: str, error: str) -> None:
    """Called when an engine died, hangs or left the run; ``error`` says why."""


ACTING = frozenset(
    {"miles_config_loaded", "miles_batch_ready", "miles_trainer_built", "miles_before_logprobs",
     "miles_before_train_step"}
)  # fmt: skip
"""Hooks whose failure ends the run, and whose result or changes count."""
