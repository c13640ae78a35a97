"""What the rollout hands to the trainer: samples, trajectories and groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from miles_core.types.frozen import freeze_fields, nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from miles_core.types.generation import SamplingParams, VersionSpan
    from miles_core.types.message import Message
    from miles_core.types.routing import RoutingTrace
    from miles_core.types.task import Task


MAIN_AGENT = "policy"
"""``Sample.agent_id`` of an episode's main agent, the only one of most episodes."""


class Status(StrEnum):
    """How a trajectory ended. Only completed and truncated ones may enter the loss."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"

    @property
    def trainable(self) -> bool:
        """Whether samples of this status may enter the loss."""
        return self in (Status.COMPLETED, Status.TRUNCATED)


@dataclass(frozen=True, slots=True)
class Reward:
    """A score, or ``None`` with a ``reason`` when scoring failed: a failure is never a 0.0."""

    _deeply_frozen: ClassVar[bool] = True

    value: float | None
    reason: str | None = None
    components: Mapping[str, float | None] = field(default_factory=nothing)

    def __post_init__(self) -> None:
        freeze_fields(self, "components")


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Tokens ``start <= t < end`` are the expanded placeholders of media item ``index``."""

    _deeply_frozen: ClassVar[bool] = True

    kind: str
    index: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One model generation: its tokens ``start <= t < end`` and how they came to be.

    ``sampling`` is kept per turn since logprobs are those of ``logits / temperature``. Seconds are wall
    time. ``info`` is what the environment reported.
    """

    _deeply_frozen: ClassVar[bool] = True

    start: int
    end: int
    sampling: SamplingParams
    finish_reason: str
    generate_seconds: float = 0.0
    environment_seconds: float = 0.0
    retries: int = 0
    cached_tokens: int = 0
    reward: float | None = None
    info: Mapping[str, Any] = field(default_factory=nothing)

    def __post_init__(self) -> None:
        freeze_fields(self, "info")


@dataclass(frozen=True, eq=False)
class Sample:
    """One training sequence of a trajectory; arrays are aligned to tokens and of length T.

    ``tokens`` int32 ``[T]``; ``loss_mask`` uint8 ``[T]``, 1 on tokens that the policy generated; ``logprobs``
    float32 ``[T]``, the engine's at the sampling temperature, 0 where not generated; ``versions``: spans of
    policy versions that cover each generated token once and no other; ``routing``: ``[T-1, layers, top_k]`` or
    ``None``; ``media``: where expanded images stand; ``media_tensors``: one array per processor key.

    Raises:
        ValueError: if lengths differ, spans leave the sequence, versions do not cover exactly the trained tokens, or
            token 0, which no logits predict, is to be trained.
    """

    _deeply_frozen: ClassVar[bool] = True

    task_id: str
    group_id: str
    trajectory_id: str
    agent_id: str
    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    versions: tuple[VersionSpan, ...]
    turns: tuple[TurnRecord, ...]
    status: Status
    routing: RoutingTrace | None = None
    media: tuple[MediaSpan, ...] = ()
    media_tensors: Mapping[str, NDArray[Any]] = field(default_factory=nothing)
    reward: Reward | None = None

    def __post_init__(self) -> None:
        length = len(self.tokens)
        for name in ("loss_mask", "logprobs"):
            if len(getattr(self, name)) != length:
                got = len(getattr(self, name))
                raise ValueError(f"sample {self.trajectory_id}: {name} has length {got}, tokens have {length}")
        if self.routing is not None and self.routing.rows != max(length - 1, 0):
            raise ValueError(
                f"sample {self.trajectory_id}: {length} tokens need {max(length - 1, 0)} routing rows; "
                f"got {self.routing.rows}"
            )
        if length and self.loss_mask[0]:
            raise ValueError(f"sample {self.trajectory_id}: token 0 has no logprob, so its loss_mask must be 0")
        spans: tuple[VersionSpan | TurnRecord | MediaSpan, ...] = (*self.versions, *self.turns, *self.media)
        for span in spans:
            if not 0 <= span.start <= span.end <= length:
                raise ValueError(f"sample {self.trajectory_id}: {span} leaves the {length} tokens")
        self._check_versions()
        for array in (self.tokens, self.loss_mask, self.logprobs):
            array.setflags(write=False)
        freeze_fields(self, "versions", "turns", "routing", "media", "media_tensors")

    def _check_versions(self) -> None:
        import numpy as np

        cover = np.zeros(len(self.tokens), np.uint8)
        for span in self.versions:
            if cover[span.start : span.end].any():
                raise ValueError(f"sample {self.trajectory_id}: {span} overlaps another span of policy versions")
            cover[span.start : span.end] = 1
        differing = np.flatnonzero(cover != self.loss_mask)
        if len(differing):
            raise ValueError(
                f"sample {self.trajectory_id}: versions must cover exactly the trained tokens, {self.trained_tokens}; "
                f"they cover {int(cover.sum())} and differ at token {differing[0]}"
            )

    @property
    def trained_tokens(self) -> int:
        """How many tokens enter the loss."""
        return int(self.loss_mask.sum())

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version among the trained tokens; ``None`` without any."""
        return min((span.version for span in self.versions), default=None)

    @property
    def newest_version(self) -> int | None:
        """The newest policy version among the trained tokens; ``None`` without any."""
        return max((span.version for span in self.versions), default=None)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One episode on one task; ``error`` says why it failed or was aborted.

    ``samples`` are those of all its agents. ``agent_rewards`` are the rewards of agents other than the main one, by
    ``Sample.agent_id``; an agent that is not among them has the trajectory's ``reward``.
    """

    id: str
    task: Task
    messages: tuple[Message, ...]
    samples: tuple[Sample, ...]
    status: Status
    reward: Reward | None = None
    step_rewards: tuple[float, ...] = ()
    stop_reason: str = ""
    error: str | None = None
    info: Mapping[str, Any] = field(default_factory=nothing)
    agent_rewards: Mapping[str, float] = field(default_factory=nothing)

    @property
    def response(self) -> str:
        """The text of the last assistant message, or an empty string."""
        return next((m.text for m in reversed(self.messages) if m.role == "assistant"), "")

    @property
    def turns(self) -> int:
        """How many generations the episode holds; what several samples share counts once."""
        generated = {
            (sample.agent_id, turn.start, turn.end, turn.generate_seconds)
            for sample in self.samples
            for turn in sample.turns
        }
        said = sum(message.role == "assistant" for message in self.messages[len(self.task.messages) :])
        return max(len(generated), said)


@dataclass(frozen=True, eq=False)
class Group:
    """The trajectories of one task (a GRPO group); ``index`` is its place in the step."""

    id: str
    index: int
    task: Task
    trajectories: tuple[Trajectory, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards of the trajectories that may be trained, in order."""
        return tuple(
            trajectory.reward.value
            for trajectory in self.trajectories
            if trajectory.status.trainable and trajectory.reward is not None and trajectory.reward.value is not None
        )

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version among all trained tokens of the group."""
        versions = [s.oldest_version for t in self.trajectories for s in t.samples]
        return min((v for v in versions if v is not None), default=None)

    @property
    def newest_version(self) -> int | None:
        """The newest policy version among all trained tokens of the group."""
        versions = [s.newest_version for t in self.trajectories for s in t.samples]
        return max((v for v in versions if v is not None), default=None)
