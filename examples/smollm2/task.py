"""Tasks and reward of the example: a reasoning-gym data set and its own grader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import reasoning_gym

from miles_core.api import Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.api import Message, PluginContext, Task, Trajectory

DATASET = "letter_counting"
SYSTEM = "Answer with a number."


def tasks(size: int, seed: int, **settings: Any) -> Iterator[dict[str, Any]]:
    """Rows for ``[data] use = "iterable"``: each question after one that is answered, to show what is wanted."""
    dataset = reasoning_gym.create_dataset(DATASET, size=size + 1, seed=seed, **settings)
    shown = dataset[size]
    for index in range(size):
        entry = dataset[index]
        turns = [
            ("system", SYSTEM),
            ("user", shown["question"]),
            ("assistant", shown["answer"]),
            ("user", entry["question"]),
        ]
        yield {
            "id": f"{DATASET}-{seed}-{index}",
            "messages": [{"role": role, "content": content} for role, content in turns],
            "label": entry["answer"],
        }


def score(trajectory: Trajectory) -> float:
    """1 for the answer alone, less for an answer inside other words, 0 for a wrong one."""
    grade = reasoning_gym.get_score_answer_fn(DATASET)
    return float(grade(trajectory.response.strip(), {"answer": trajectory.task.label}))


class OneTurn:
    """An environment of one turn: any answer ends the episode."""

    def __init__(self, config: object, context: PluginContext) -> None:
        """Take no options."""

    def reset(self, task: Task, seed: int) -> None:
        """Show nothing beside the task's own messages."""

    def step(self, response: Message) -> Step:
        """End the episode."""
        return Step(done=True)

    def close(self) -> None:
        """Nothing is held."""
