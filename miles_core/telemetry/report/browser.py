"""The data of the episode browser: columns for its list, and the episodes' bodies in chunks.

The list is small and is read when the page opens. A body is read with its chunk when someone looks at it.
"""

from __future__ import annotations

import math
from base64 import b64encode
from dataclasses import dataclass, field
from gzip import compress
from json import dumps
from typing import TYPE_CHECKING, Any

from miles_core.telemetry.report.plain import plain
from miles_core.types import ImagePart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from miles_core.telemetry.episodes import StepEpisodes
    from miles_core.types import Message, Sample, Trajectory, TurnRecord

CHUNK = 64
"""Episodes of a chunk: some hundred kB, decoded in a few milliseconds."""

LOGPROB_SCALE = 10_000
"""Logprobs travel as whole numbers of this fraction of a nat."""

_URL_CHARACTERS = 200


def packed(value: Any) -> str:
    """JSON, compressed, in characters that mean nothing to HTML."""
    text = dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return b64encode(compress(text.encode("ascii"), compresslevel=6, mtime=0)).decode("ascii")


@dataclass
class EpisodeData:
    """Everything of the browser, packed: ``columns`` for the list, ``chunks`` of bodies, the ids in use."""

    columns: dict[str, list[Any]] = field(default_factory=dict)
    chunks: list[str] = field(default_factory=list)
    token_ids: set[int] = field(default_factory=set)

    @property
    def count(self) -> int:
        """How many episodes there are."""
        return len(self.columns.get("id", ()))


def collect(steps: Iterable[StepEpisodes], default_environment: str) -> EpisodeData:
    """Pack the episodes of a run; ``default_environment`` names that of tasks which ask for none."""
    data = EpisodeData()
    bodies: list[dict[str, Any]] = []
    for step in steps:
        for trajectory in step.trajectories:
            row = _row(step, trajectory, default_environment)
            for name, value in row.items():
                data.columns.setdefault(name, []).append(value)
            for sample in trajectory.samples:
                data.token_ids.update(sample.tokens.tolist())
            bodies.append(_body(trajectory))
            if len(bodies) == CHUNK:
                data.chunks.append(packed(bodies))
                bodies = []
    if bodies:
        data.chunks.append(packed(bodies))
    return data


def _row(step: StepEpisodes, trajectory: Trajectory, default_environment: str) -> dict[str, Any]:
    return {
        "step": step.step,
        "version": step.version,
        "id": trajectory.id,
        "task": trajectory.task.id,
        "environment": trajectory.task.environment or default_environment,
        "status": str(trajectory.status),
        "stop": trajectory.stop_reason,
        "reward": None if trajectory.reward is None else trajectory.reward.value,
        "kept": int(trajectory.id in step.kept),
        "length": sum(sample.trained_tokens for sample in trajectory.samples),
        "turns": trajectory.turns,
    }


def _body(trajectory: Trajectory) -> dict[str, Any]:
    task, reward = trajectory.task, trajectory.reward
    return {
        "messages": [_message(message) for message in trajectory.messages],
        "prompt": len(task.messages),
        "error": trajectory.error,
        "reason": None if reward is None else reward.reason,
        "components": {**({} if reward is None else plain(reward.components)), **plain(trajectory.agent_rewards)},
        "step_rewards": plain(trajectory.step_rewards),
        "info": plain(trajectory.info),
        "label": task.label,
        "metadata": plain(task.metadata),
        "samples": [_sample(sample) for sample in trajectory.samples],
    }


def _message(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "text": message.text}
    extra: dict[str, Any] = {
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": message.tool_calls,
        "extra": message.extra,
        "images": _images(message),
    }
    return shown | {name: plain(value) for name, value in extra.items() if value}


def _images(message: Message) -> list[str]:
    parts = () if isinstance(message.content, str) else message.content
    return [part.image[:_URL_CHARACTERS] for part in parts if isinstance(part, ImagePart)]


def _sample(sample: Sample) -> dict[str, Any]:
    trained = sample.loss_mask == 1
    return {
        "agent": sample.agent_id,
        "tokens": sample.tokens.tolist(),
        "trained": _runs(trained.tolist()),
        "logprobs": [_logprob(value) for value in sample.logprobs[trained].tolist()],
        "versions": [[span.version, span.start, span.end] for span in sample.versions],
        "media": [[span.kind, span.index, span.start, span.end] for span in sample.media],
        "turns": [_turn(turn) for turn in sample.turns],
    }


def _logprob(value: float) -> int | None:
    return round(value * LOGPROB_SCALE) if math.isfinite(value) else None


def _runs(flags: list[bool]) -> list[list[int]]:
    """``[start, end]`` of each run of true values."""
    edges = [at for at in range(len(flags) + 1) if (at < len(flags) and flags[at]) != (at > 0 and flags[at - 1])]
    return [list(pair) for pair in zip(edges[::2], edges[1::2], strict=True)]


def _turn(turn: TurnRecord) -> dict[str, Any]:
    return {
        "start": turn.start,
        "end": turn.end,
        "finish": turn.finish_reason,
        "generate": round(turn.generate_seconds, 4),
        "environment": round(turn.environment_seconds, 4),
        "retries": turn.retries,
        "cached": turn.cached_tokens,
        "temperature": turn.sampling.temperature,
        "reward": plain(turn.reward),
        "info": plain(turn.info),
    }
