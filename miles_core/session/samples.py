"""Conversations as training sequences: each generated token is trained once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from miles_core.types import RoutingTrace, Sample, TurnRecord, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.session.tree import TurnNode
    from miles_core.types import Reward, RoutingSpec, Status


@dataclass(frozen=True, slots=True)
class SampleMaker:
    """Makes the samples of one session; ``routing`` is the model's routing shape where traces are recorded."""

    task_id: str
    group_id: str
    trajectory_id: str
    agent_id: str
    routing: RoutingSpec | None

    def samples(
        self,
        paths: Sequence[Sequence[TurnNode]],
        status: Status,
        records: Mapping[object, TurnRecord],
        reward: Reward | None,
    ) -> tuple[Sample, ...]:
        """One sample for each path that holds a turn which no earlier path holds."""
        made: list[Sample] = []
        seen: set[TurnNode] = set()
        for path in paths:
            if seen.issuperset(path):
                continue
            trained = {node for node in path if node not in seen and node.sampling.trainable}
            made.append(self._sample(path, trained, status, records, reward))
            seen.update(path)
        return tuple(made)

    def _sample(
        self,
        path: Sequence[TurnNode],
        trained: set[TurnNode],
        status: Status,
        records: Mapping[object, TurnRecord],
        reward: Reward | None,
    ) -> Sample:
        versions: list[VersionSpan] = []
        for node in path:
            at = node.length - len(node.output_ids)
            if node in trained:
                versions += [VersionSpan(span.version, at + span.start, at + span.end) for span in node.versions]
        return Sample(
            task_id=self.task_id,
            group_id=self.group_id,
            trajectory_id=self.trajectory_id,
            agent_id=self.agent_id,
            tokens=path[-1].tokens(),
            loss_mask=np.concatenate([_mask(node, node in trained) for node in path]),
            logprobs=np.concatenate([part for node in path for part in (_zeros(node), node.logprobs)]),
            versions=tuple(versions),
            turns=tuple(records.get(node) or record_of(node) for node in path),
            status=status,
            routing=self._trace(path, status),
            reward=reward,
        )

    def _trace(self, path: Sequence[TurnNode], status: Status) -> RoutingTrace | None:
        """The trace of a path; what was aborted in the queue lacks its last rows, and its sample is never trained."""
        if self.routing is None:
            return None
        if not status.trainable and path[-1].rows != path[-1].length - 1:
            return None
        return RoutingTrace.joined([node.routing for node in path if node.routing is not None], self.routing)


def record_of(node: TurnNode) -> TurnRecord:
    """What a stored turn says of itself: where its output stands in its conversation, and how it was sampled."""
    return TurnRecord(
        start=node.length - len(node.output_ids),
        end=node.length,
        sampling=node.sampling,
        finish_reason=node.finish_reason.type,
        cached_tokens=node.cached_tokens,
    )


def _zeros(node: TurnNode) -> np.ndarray:
    return np.zeros(len(node.context_ids), np.float32)


def _mask(node: TurnNode, trained: bool) -> np.ndarray:
    return np.repeat(np.array([0, trained], np.uint8), [len(node.context_ids), len(node.output_ids)])
