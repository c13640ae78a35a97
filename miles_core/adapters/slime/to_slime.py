"""From our tasks and trajectories to slime's samples: copies, whose changes reach nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from miles_core.adapters.slime.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.types import Group, Message, Task, Trajectory

EXTRA = "slime_attributes"
"""Where a trajectory's ``info`` keeps attributes that a generate function set on its sample."""


def task_sample(task: Task, cls: type[Any] = Sample, **values: Any) -> Any:
    """A pending sample of a task, of class ``cls``; ``values`` are further fields."""
    prompt = chat_messages(task.messages)
    return _make(cls, {"prompt": prompt, "label": task.label, "metadata": thaw(task.metadata), **values})


def trajectory_sample(trajectory: Trajectory, cls: type[Any] = Sample, **values: Any) -> Any:
    """The sample of a trajectory, of class ``cls``; ``values`` are further fields.

    ``response`` is what follows the task's messages, the texts joined by newlines. ``metadata`` is the task's with
    the trajectory's ``info``.
    """
    info = dict(thaw(trajectory.info))
    extra = info.pop(EXTRA, {})
    sample = task_sample(
        trajectory.task,
        cls,
        response="\n".join(message.text for message in trajectory.messages[len(trajectory.task.messages) :]),
        metadata={**thaw(trajectory.task.metadata), **info},
        messages=chat_messages(trajectory.messages),
        reward=None if trajectory.reward is None else trajectory.reward.value,
        status=cls.Status(str(trajectory.status)),
        session_id=trajectory.id,
        **_tokens(trajectory, cls),
        **values,
    )
    for name, value in extra.items():
        setattr(sample, name, value)
    return sample


def group_samples(group: Group, cls: type[Any] = Sample) -> list[Any]:
    """The samples of a group's trajectories, in order."""
    return trajectory_samples(group.trajectories, cls, group_index=group.index)


def trajectory_samples(trajectories: Sequence[Trajectory], cls: type[Any] = Sample, **values: Any) -> list[Any]:
    """The samples of trajectories, in order, with their places as ``index``."""
    return [trajectory_sample(t, cls, index=index, **values) for index, t in enumerate(trajectories)]


def thaw(value: Any) -> Any:
    """A deep copy of read-only JSON-like data that may be changed: mappings as ``dict``, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: thaw(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(inner) for inner in value]
    return value


def chat_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Chat mappings of messages, which may be changed."""
    return [thaw(message.to_chat()) for message in messages]


def _tokens(trajectory: Trajectory, cls: type[Any]) -> dict[str, Any]:
    if not trajectory.samples:
        return {}
    sample = trajectory.samples[-1]
    trained = sample.loss_mask.nonzero()[0]
    start = int(trained[0]) if len(trained) else len(sample.tokens)
    return {
        "tokens": sample.tokens.tolist(),
        "response_length": len(sample.tokens) - start,
        "loss_mask": sample.loss_mask[start:].tolist(),
        "rollout_log_probs": sample.logprobs[start:].tolist(),
        "weight_versions": _versions(sample.versions, cls),
    }


def _versions(spans: Sequence[Any], cls: type[Any]) -> list[Any]:
    """Texts, as slime has them; spans where the class comes from a Miles that has those."""
    module = sys.modules[cls.__module__]
    if not hasattr(module, "WeightVersionsPerCall"):
        return [str(span.version) for span in spans]
    return [
        module.WeightVersionsPerCall(spans=[module.WeightVersionSpan(str(span.version), span.start, span.end)])
        for span in spans
    ]


def _make(cls: type[Any], values: Mapping[str, Any]) -> Any:
    known = {field.name for field in fields(cls)}
    sample = cls(**{name: value for name, value in values.items() if name in known})
    for name in values.keys() - known:  # such as `messages`, which slime's class does not have
        setattr(sample, name, values[name])
    return sample
