"""Readable dumps of trajectories: what was said, token by token, and what it scored."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from miles_core.types import Sample, Trajectory


def dump_samples(path: Path, trajectories: Sequence[Trajectory], decode: Callable[[Sequence[int]], str]) -> None:
    """Write trajectories to a text file; ``decode`` turns ids into text, special tokens included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = ["\n".join(_lines(trajectory, decode)) for trajectory in trajectories]
    path.write_text(("\n\n" + "=" * 100 + "\n\n").join(blocks) + "\n", "utf-8")


def _lines(trajectory: Trajectory, decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    reward = trajectory.reward
    value = "none" if reward is None or reward.value is None else f"{reward.value:g}"
    yield f"trajectory {trajectory.id}   task {trajectory.task.id}   label {trajectory.task.label!r}"
    yield f"status {trajectory.status} ({trajectory.stop_reason})   reward {value}"
    for agent, own in trajectory.agent_rewards.items():
        yield f"reward of {agent}: {own:g}"
    if reward is not None and reward.reason:
        yield f"no reward because: {reward.reason}"
    if trajectory.error:
        yield f"error: {trajectory.error}"
    for message in trajectory.messages:
        yield ""
        yield f"[{message.role}]"
        yield message.text
    for sample in trajectory.samples:
        yield ""
        yield from _tokens(sample, decode)


def _tokens(sample: Sample, decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    trained = sample.trained_tokens
    size = f"{len(sample.tokens)} tokens, {trained} trained"
    yield f"{sample.agent_id}: {size}; trained ones with logprob and policy version:"
    versions = {t: span.version for span in sample.versions for t in range(span.start, span.end)}
    for turn in sample.turns:
        spelled = [
            f"{decode([int(sample.tokens[t])])!r} {float(sample.logprobs[t]):.3f} v{versions.get(t, '?')}"
            for t in range(turn.start, turn.end)
        ]
        yield f"  tokens {turn.start}..{turn.end}, finished by {turn.finish_reason}: " + " | ".join(spelled)
