"""The config file as one typed model.

Every table forbids unknown keys. A plugin table holds the host's keys (``use``, ``name``, ``weight``, ``timeout``)
and, beside them, the plugin's own, which its ``Config`` model validates.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from miles_core.config.serving import EngineTable, RouterTable, SessionTable
from miles_core.config.tables import ADAPTER, Adapter, FunctionTable, PluginTable, Table


class EnvironmentTable(PluginTable):
    """``[[environments]]``: a task's ``environment`` key picks by ``name``, otherwise the first serves."""

    name: str | None = Field(None, description="what a task's `environment` key refers to; default: `use`")
    adapter: Adapter | None = ADAPTER
    timeout: float = Field(60.0, gt=0, description="seconds that one reset or step may take")


class RewardTable(PluginTable):
    """``[[rewards]]``: weighted sum; any ``None`` gives ``None``."""

    name: str | None = Field(None, description="the name in reward components; default: `use`")
    adapter: Adapter | None = ADAPTER
    weight: float = Field(1.0, description="factor in the weighted sum")
    timeout: float = Field(60.0, gt=0, description="seconds that scoring one trajectory or group may take")


class FilterTable(PluginTable):
    """``[[filters]]``: applied in the order of the file; the first that drops an item gives the reason."""

    adapter: Adapter | None = ADAPTER
    timeout: float = Field(60.0, gt=0, description="seconds that judging one item may take")


Named = TypeVar("Named", EnvironmentTable, RewardTable)


class LossTable(PluginTable):
    """``[[losses]]``: token losses are added with their weights."""

    weight: float = Field(1.0, description="factor of this loss")


class RunTable(Table):
    """``[run]``: identity and length of a run."""

    name: str = Field("run", pattern=r"^[\w.-]+$", description="first part of the run id")
    dir: str = Field("runs", description="folder that holds one folder per run; relative to where miles is started")
    base_dir: str | None = Field(None, description="where relative paths start; default: the config file's folder")
    id: str | None = Field(None, pattern=r"^[\w.-]+$", description="folder name of this run; default: name, time")
    seed: int = Field(0, ge=0, lt=2**32, description="seed of weights, data order, environments and sampling")
    steps: int | None = Field(None, ge=1, description="training steps; the run ends at the first limit that it reaches")
    epochs: int | None = Field(None, ge=1, description="passes over the data")
    max_hours: float | None = Field(None, gt=0, description="hours of training, those before a resume included")
    placement: Literal["disaggregated", "colocated"] = Field(
        "disaggregated", description="colocated: engines give their memory to the trainer while it trains"
    )
    true_on_policy: Literal["off", "report", "require"] = Field(
        "off",
        description="compare sampled logprobs with the trainer's before the first step; require: bit-equal, always",
    )
    solved_reward: float = Field(1.0, description="when steps stay empty, a mean reward of at least this means solved")
    max_empty_steps: int = Field(2, ge=1, description="steps in a row without a trainable group that end the run")
    samples_every: int = Field(10, ge=1, description="steps between dumps of readable samples")
    samples_per_dump: int = Field(4, ge=0, description="trajectories in a dump")
    episodes_per_step: int = Field(16, ge=0, description="trajectories of each step that `miles report` can show")

    @model_validator(mode="after")
    def _has_an_end(self) -> RunTable:
        if self.steps is None and self.epochs is None and self.max_hours is None:
            raise ValueError("set steps, epochs or max_hours: a run needs an end")
        return self


class ModelTable(Table):
    """``[model]``: the Hugging Face directory to train."""

    path: str = Field(description="directory with config.json and tokenizer; relative to the config file")
    init: Literal["pretrained", "random"] = Field("pretrained", description="load weights or draw them")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="type of the trained weights")
    bridge: str | None = Field(None, description="model bridge; default: by the architecture in config.json")


class DataTable(PluginTable):
    """``[data]``: where tasks come from."""

    timeout: float = Field(600.0, gt=0, description="seconds that reading one task may take")
    max_prompt_tokens: int | None = Field(
        None, ge=1, description="leave out tasks with longer prompts, chat template included; default: none"
    )


class GenerateTable(FunctionTable):
    """``[rollout.generate]``: a function of yours in place of the turns between policy and environment."""

    use: str = Field(min_length=1, description="turns, or module:attribute")
    adapter: Adapter | None = ADAPTER


class RolloutTable(Table):
    """``[rollout]``: how many trajectories a step has, and their budgets."""

    groups_per_step: int = Field(ge=1, description="tasks per step")
    group_size: int = Field(ge=1, description="trajectories per task")
    generate: GenerateTable | None = Field(
        None,
        description="the function that generates an episode, or a table with `use` and its options; default: turns",
    )
    max_turns: int = Field(1, ge=1, description="generations per trajectory")
    max_context_tokens: int = Field(ge=2, description="all tokens of a trajectory")
    max_response_tokens: int = Field(ge=1, description="generated tokens of a trajectory")
    max_staleness: int = Field(0, ge=0, description="policy versions a trained token may lag; 0 is synchronous")
    fill: Literal["generated", "kept"] = Field(
        "generated", description="what groups_per_step counts: groups generated, or groups that filters kept"
    )
    over_sampling: float = Field(
        1.0, ge=1, description='with fill = "kept": groups generated at once for each one that is missing'
    )
    max_groups_per_step: int | None = Field(
        None, ge=1, description='with fill = "kept": where generating more ends; default: 8 x groups_per_step'
    )
    stragglers: Literal["wait", "requeue"] = Field(
        "wait", description='with fill = "kept": wait for groups that are not needed any more, or continue them later'
    )
    max_tries: int = Field(3, ge=1, description="times that aborted trajectories of a task are generated")
    max_steps_ahead: int | None = Field(
        None,
        ge=0,
        description="steps generated before their turn; default: max_staleness, fewer leave room for waiting",
    )
    max_concurrency: int = Field(256, ge=1, description="trajectories in flight")
    episode_timeout: float = Field(600.0, gt=0, description="seconds that one trajectory may take")

    @field_validator("generate", mode="before")
    @classmethod
    def _generate(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits_together(self) -> RolloutTable:
        if self.fill == "generated" and (ignored := _FILL_KEYS & self.model_fields_set & _changed(self)):
            raise ValueError(f"{sorted(ignored)[0]} has an effect only with fill = 'kept'")
        if self.max_groups_per_step is not None and self.max_groups_per_step < self.groups_per_step:
            raise ValueError(
                f"max_groups_per_step = {self.max_groups_per_step} is less than groups_per_step = "
                f"{self.groups_per_step}: no step could ever be full"
            )
        if self.max_steps_ahead is not None and self.max_steps_ahead > self.max_staleness:
            raise ValueError(
                f"max_steps_ahead = {self.max_steps_ahead} is more than max_staleness = {self.max_staleness}: "
                "what is generated so early would be too stale to train"
            )
        return self


_FILL_KEYS = {"over_sampling", "max_groups_per_step", "stragglers"}


def _changed(table: Table) -> set[str]:
    """Keys whose value is not the default; a resolved config spells defaults out."""
    return {name for name, field in type(table).model_fields.items() if getattr(table, name) != field.default}


class SamplingTable(Table):
    """``[sampling]``: only temperature shapes the distribution that is trained."""

    temperature: float = Field(1.0, ge=1e-6, description="divides the logits; engines take less than 1e-6 as greedy")
    max_new_tokens: int = Field(128, ge=1, description="generated tokens per turn")


class CorrectionTable(FunctionTable):
    """``[correction]``: factors on token losses for what separates rollout from training."""

    use: str = Field("none", min_length=1, description="none, tis, or module:attribute")


class ObjectiveTable(Table):
    """``[objective]``: how token losses become a gradient."""

    reduction: str = Field(
        "token_mean",
        description="what token losses are averaged over: token_mean, sequence_mean, group_mean, or module:attribute",
    )
    old_logprobs: Literal["proximal", "rollout"] = Field("proximal", description="denominator of the ratio")
    epochs: int = Field(1, ge=1, description="passes over a step")
    mini_batches: int = Field(1, ge=1, description="optimizer steps per pass")


class TrainTable(PluginTable):
    """``[train]``: the train backend."""

    use: str = "torch"
    replay_routing: bool = Field(True, description="R3: replay the rollout's MoE routing; no effect on dense models")
    max_tokens_per_micro_batch: int = Field(16384, ge=1, description="padded tokens per forward pass")
    start_timeout: float = Field(300.0, gt=0, description="seconds until the trainer must be ready")


class OptimizerTable(Table):
    """``[optimizer]``: AdamW and its learning-rate schedule."""

    learning_rate: float = Field(1e-6, gt=0, description="the highest, after the rise and before the decay")
    betas: tuple[float, float] = Field((0.9, 0.95), description="decay rates of the two moments")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients of a larger norm are scaled down to it")
    warmup_steps: int = Field(0, ge=0, description="steps over which the learning rate rises; not [warmup]")
    decay: Literal["constant", "linear", "cosine"] = Field("constant", description="how the learning rate falls")
    decay_steps: int | None = Field(None, ge=1, description="steps until the decay is over; default: run.steps")
    final_lr_fraction: float = Field(0.1, ge=0, le=1, description="where a decay ends, as a share of learning_rate")

    @field_validator("betas")
    @classmethod
    def _betas(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("each beta must be in [0, 1)")
        return betas


class WarmupTable(Table):
    """``[warmup]``: a supervised stage before the first checkpoint, declared in the run's output."""

    data: str = Field(description="JSONL of {messages: [...]}; relative to the config file")
    steps: int = Field(ge=1, description="optimizer steps")
    batch_size: int = Field(64, ge=1, description="conversations per step")
    learning_rate: float = Field(1e-5, gt=0, description="constant over the stage")
    purpose: str = Field(min_length=1, description="what the stage teaches, shown when it runs")


class WeightsTable(PluginTable):
    """``[weights]``: the transport from the trainer into engines."""

    use: str = Field("auto", min_length=1, description="transport; auto: the fastest of those that all engines have")
    bucket_bytes: int = Field(64 << 20, ge=1, description="bytes that travel together")
    timeout: float = Field(120.0, gt=0, description="seconds that one exchange with an engine may take")
    patience: float = Field(
        30.0, gt=0, description="seconds that an engine may take longer than another one before it is left behind"
    )


class CheckpointTable(Table):
    """``[checkpoint]``: Hugging Face directories ``checkpoints/step-N``; step 0 is the initial model."""

    every: int = Field(20, ge=0, description="steps between checkpoints; 0 saves the first and the last")
    keep: int = Field(3, ge=0, description="newest checkpoints that stay, besides step-0; 0 keeps all")
    write_async: bool = Field(True, description="write files while training goes on, at the cost of a copy in memory")


class EvalTable(Table):
    """``[eval]``: tasks that are never trained on, scored by the run's environments and rewards."""

    data: DataTable = Field(description="plugin: the tasks; a table like [data]")
    every: int = Field(0, ge=0, description="steps between evaluations; 0: at the end only")
    tasks: int = Field(
        64, ge=1, description="tasks of an evaluation: the first ones of the data, the same for every run.seed"
    )
    samples_per_task: int = Field(1, ge=1, description="trajectories per task; pass@k is reported up to this k")
    temperature: float = Field(1.0, ge=1e-6, description="sampling temperature")
    pass_reward: float = Field(1.0, description="a reward of at least this passes, for pass@k")


class PluginsTable(Table):
    """``[plugins]``: which distributions may take part."""

    block: tuple[str, ...] = Field((), description="distributions whose plugins must not load")
    require: tuple[str, ...] = Field((), description='distributions that must be there, such as "acme-envs>=1.2"')
    prefer: tuple[str, ...] = Field(
        (), description="distribution/name of plugins that win where several distributions offer the name"
    )
    autoload: bool = Field(True, description="false: of other distributions only those in `require` take part")
    strict: bool = Field(False, description="whatever `miles plugins doctor` would report stops the run")
    hook_timeout: float = Field(60.0, gt=0, description="seconds that a plugin may take to observe one event of a run")
    slow_call: float = Field(10.0, gt=0, description="seconds after which a call into a plugin is reported as slow")


class Config(Table):
    """A whole run."""

    run: RunTable
    model: ModelTable
    data: DataTable
    rollout: RolloutTable
    sampling: SamplingTable = SamplingTable()
    environments: tuple[EnvironmentTable, ...] = Field(min_length=1)
    rewards: tuple[RewardTable, ...] = ()
    filters: tuple[FilterTable, ...] = ()
    advantage: PluginTable = PluginTable(use="grpo")
    losses: tuple[LossTable, ...] = Field((LossTable(use="ppo_clip"),), min_length=1)
    session: SessionTable = SessionTable()
    correction: CorrectionTable = CorrectionTable()
    objective: ObjectiveTable = ObjectiveTable()
    engine: EngineTable = EngineTable()
    router: RouterTable = RouterTable()
    train: TrainTable = TrainTable()
    optimizer: OptimizerTable = OptimizerTable()
    warmup: WarmupTable | None = None
    weights: WeightsTable = WeightsTable()
    checkpoint: CheckpointTable = CheckpointTable()
    eval: EvalTable | None = None
    trackers: tuple[PluginTable, ...] = (PluginTable(use="jsonl"),)
    plugins: PluginsTable = PluginsTable()

    @model_validator(mode="after")
    def _decay_has_an_end(self) -> Config:
        if self.optimizer.decay != "constant" and self.optimizer.decay_steps is None and self.run.steps is None:
            raise ValueError("optimizer.decay needs optimizer.decay_steps where run.steps is not set")
        return self

    @model_validator(mode="after")
    def _colocated_is_synchronous(self) -> Config:
        if self.run.placement == "colocated" and self.rollout.max_staleness:
            raise ValueError("placement = 'colocated' needs rollout.max_staleness = 0: engines rest while training")
        return self

    @model_validator(mode="after")
    def _on_policy_is_synchronous(self) -> Config:
        if self.run.true_on_policy == "require" and self.rollout.max_staleness:
            raise ValueError(
                "true_on_policy = 'require' needs rollout.max_staleness = 0: older weights give other logprobs"
            )
        return self

    @field_validator("environments", "rewards")
    @classmethod
    def _names(cls, tables: tuple[Named, ...]) -> tuple[Named, ...]:
        names = [table.name or table.use for table in tables]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two tables have the name {twice[0]!r} (`name`, or else `use`); give each its own `name`")
        return tables
