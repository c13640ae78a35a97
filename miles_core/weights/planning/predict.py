"""The plan of an update whose trainer and engines do not exist yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from miles_core.errors import MilesError, WeightSyncError
from miles_core.lib.layout import build_layout
from miles_core.weights.holders import Holders
from miles_core.weights.misfits import misfits
from miles_core.weights.plan import Nodes, Receiver, make_plan
from miles_core.weights.planning import sglang
from miles_core.weights.planning.tables import Tables
from miles_core.weights.planning.trainer import trainer_layouts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from miles_core.types import Layout
    from miles_core.weights.plan import Plan
    from miles_core.weights.planning.grid import EngineGrid, TrainerGrid
    from miles_core.weights.planning.model import PlannedModel


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """Engines that are alike; ``dtype`` is what they hold instead of the trainer's type."""

    name: str
    grid: EngineGrid
    replicas: int = 1
    naming: str = sglang.NAMING
    dtype: str | None = None

    @property
    def receivers(self) -> Iterator[Receiver]:
        """All ranks, engine by engine."""
        names = [self.name if self.replicas == 1 else f"{self.name} #{one}" for one in range(self.replicas)]
        return (Receiver(name, rank) for name in names for rank in range(self.grid.ranks))


@dataclass(frozen=True, slots=True)
class Placing:
    """Which ranks share a machine: ``per_node`` of them do, in order; engines run where the trainer does not.

    Unless they are ``colocated``: then engines fill the trainer's machines from the first one on.
    """

    per_node: int = 8
    colocated: bool = False

    def nodes(self, trainer: TrainerGrid, groups: Sequence[EngineGroup]) -> Nodes:
        """The machine of every rank."""
        first = 0 if self.colocated else -(-trainer.ranks // self.per_node)
        receivers = [receiver for group in groups for receiver in group.receivers]
        return Nodes(
            [rank // self.per_node for rank in range(trainer.ranks)],
            {receiver: first + number // self.per_node for number, receiver in enumerate(receivers)},
        )


@dataclass(frozen=True)
class PredictedPlan:
    """A plan for the engines that can be updated; ``problems`` says of each other group why it cannot."""

    plan: Plan
    sources: Sequence[Layout]
    nodes: Nodes
    problems: dict[str, str] = field(default_factory=dict)


def predict_plan(
    model: PlannedModel,
    trainer: TrainerGrid,
    groups: Sequence[EngineGroup],
    bucket_bytes: int,
    placing: Placing = Placing(),
    note: Callable[[str], None] = lambda _: None,
) -> PredictedPlan:
    """Plan an update; ``note`` is told what goes on.

    Raises:
        WeightSyncError: if the trainer's ranks cannot hold the model so, or no engine is left to plan for.
    """
    note(f"trainer: what {trainer.ranks} ranks hold")
    sources = trainer_layouts(model, trainer)
    holders = Holders(sources)
    nodes = placing.nodes(trainer, groups)
    receivers: dict[Receiver, Layout] = {}
    problems: dict[str, str] = {}
    for group in groups:
        note(f"engines {group.name}: what {group.grid.ranks} ranks hold")
        try:
            mine = _layouts(model, group)
        except MilesError as error:
            problems[group.name] = str(error)
            continue
        unfit = misfits(holders, mine)
        if unfit:
            problems[group.name] = next(iter(unfit.values()))
        else:
            receivers |= mine
    if not receivers:
        raise WeightSyncError("no engine can be updated: " + "; ".join(problems.values()))
    note(f"plan: {len(receivers)} receivers")
    plan = make_plan(holders, receivers, bucket_bytes, nodes)
    return PredictedPlan(plan, sources, nodes, problems)


def _layouts(model: PlannedModel, group: EngineGroup) -> dict[Receiver, Layout]:
    """By receiver; the ranks of engines that are alike have the same objects."""
    tables = Tables(model, group.naming, group.dtype)
    mapping, tensors = model.mapping(group.naming), model.layout.tensors
    layouts = [
        build_layout(mapping, tables.of(group.grid.shard(rank)), model.hf_config, tensors)
        for rank in range(group.grid.ranks)
    ]
    return {receiver: layouts[receiver.rank] for receiver in group.receivers}
