"""Tasks, samples, trajectories and groups for tests; every argument has a plain default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.types import (
    MAIN_AGENT,
    Group,
    Message,
    Reward,
    Sample,
    SamplingParams,
    Status,
    Task,
    Trajectory,
    TurnRecord,
    VersionSpan,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.types import RoutingTrace


def make_task(prompt: str = "What is 2 + 3?", label: str | None = "5", *, id: str = "task-0", **fields: Any) -> Task:  # noqa: A002 - the field's name
    """A task of one user message; ``fields`` are other fields of :class:`Task`, such as ``metadata``."""
    return Task(id, (Message("user", prompt),), label=label, **fields)


def make_sample(
    length: int = 8,
    *,
    prompt: int = 3,
    seed: int = 0,
    vocab_size: int = 64,
    version: int = 0,
    temperature: float = 1.0,
    status: Status = Status.COMPLETED,
    reward: float | None = None,
    routing: RoutingTrace | None = None,
    task_id: str = "task-0",
    group_id: str = "group-0",
    trajectory_id: str = "trajectory-0",
) -> Sample:
    """A sample of ``length`` random tokens, those after the first ``prompt`` generated in one turn."""
    rng = np.random.default_rng([seed, length])
    mask = np.array([0] * prompt + [1] * (length - prompt), np.uint8)
    return Sample(
        task_id=task_id,
        group_id=group_id,
        trajectory_id=trajectory_id,
        agent_id=MAIN_AGENT,
        tokens=rng.integers(0, vocab_size, length).astype(np.int32),
        loss_mask=mask,
        logprobs=((-0.05 - rng.random(length)) * mask).astype(np.float32),
        versions=(VersionSpan(version, prompt, length),) if length > prompt else (),
        turns=(TurnRecord(prompt, length, SamplingParams(temperature=temperature), "stop"),),
        status=status,
        routing=routing,
        reward=None if reward is None else Reward(reward),
    )


def make_trajectory(
    *responses: str,
    task: Task | None = None,
    id: str = "trajectory-0",  # noqa: A002 - the field's name
    group_id: str = "group-0",
    reward: Reward | float | None = None,
    status: Status = Status.COMPLETED,
    step_rewards: Sequence[float] = (),
    observation: str = "Go on.",
    length: int = 8,
    seed: int = 0,
    version: int = 0,
    error: str | None = None,
) -> Trajectory:
    """A trajectory whose policy said ``responses``, one per turn, with ``observation`` between them.

    It has one sample of ``length`` random tokens. ``reward`` is ``None`` until it is scored.
    """
    task = task or make_task()
    messages = list(task.messages)
    for number, response in enumerate(responses):
        messages += [Message("user", observation)] if number else []
        messages.append(Message("assistant", response))
    scored = Reward(reward) if isinstance(reward, int | float) else reward
    sample = make_sample(
        length,
        seed=seed,
        version=version,
        status=status,
        reward=scored.value if scored else None,
        task_id=task.id,
        group_id=group_id,
        trajectory_id=id,
    )
    stop = str(status) if status.trainable else ""
    return Trajectory(
        id, task, tuple(messages), (sample,), status, scored, tuple(step_rewards), stop_reason=stop, error=error
    )


def make_group(
    *rewards: float | None,
    task: Task | None = None,
    id: str = "group-0",  # noqa: A002 - the field's name
    index: int = 0,
    responses: Sequence[str] = (),
    lengths: Sequence[int] = (),
    version: int = 0,
) -> Group:
    """A group of one trajectory per reward, by default ``1, 0, 0.5, 0``; ``None`` is one whose scoring failed."""
    task = task or make_task()
    rewards = rewards or (1.0, 0.0, 0.5, 0.0)
    trajectories = tuple(
        make_trajectory(
            responses[number] if number < len(responses) else f"answer {number}",
            task=task,
            id=f"{id}-{number}",
            group_id=id,
            reward=Reward(None, "the grader failed") if reward is None else reward,
            length=lengths[number] if number < len(lengths) else 6 + number,
            seed=number,
            version=version,
        )
        for number, reward in enumerate(rewards)
    )
    return Group(id, index, task, trajectories)
