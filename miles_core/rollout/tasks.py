"""Tasks as the scheduler takes them: from the data source, without prompts that are too long, until the data ends."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from miles_core.errors import DataError, MilesError
from miles_core.types import Task, Trajectory
from miles_core.types.records import from_record, to_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from miles_core.kinds.data_sources import DataSource

logger = logging.getLogger("miles.data")

MAX_LONG_IN_A_ROW = 10_000


@dataclass(frozen=True, slots=True)
class Pending:
    """A task whose group is still to be generated, wholly or in part.

    ``done`` holds the trajectories that are there already, by their number in the group; ``tries`` counts how often
    some of the others were aborted.
    """

    epoch: int
    task: Task
    tries: int = 0
    done: Mapping[int, Trajectory] = field(default_factory=dict)

    def younger_than(self, oldest_version: int) -> Pending:
        """The same without trajectories that hold a token of an older policy version."""
        done = {
            member: trajectory
            for member, trajectory in self.done.items()
            if all((sample.oldest_version or 0) >= oldest_version for sample in trajectory.samples)
        }
        return replace(self, done=done)

    def to_record(self) -> dict[str, Any]:
        """A plain record for a checkpoint."""
        done = [[member, to_record(trajectory)] for member, trajectory in self.done.items()]
        return {"epoch": self.epoch, "task": to_record(self.task), "tries": self.tries, "done": done}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Pending:
        """What :meth:`to_record` wrote."""
        done = {int(member): from_record(trajectory, Trajectory) for member, trajectory in record["done"]}
        return cls(record["epoch"], from_record(record["task"], Task), record["tries"], done)


class TaskStream:
    """Takes tasks from a source; ends after ``epochs`` passes, or where the source does.

    ``prompt_tokens`` counts a task's prompt as the policy will see it; longer ones than ``max_prompt_tokens`` are left
    out and counted.
    """

    def __init__(
        self,
        source: DataSource,
        *,
        epochs: int | None = None,
        max_prompt_tokens: int | None = None,
        prompt_tokens: Callable[[Task], int] | None = None,
    ) -> None:
        self._source = source
        self._epochs = epochs
        self._max_prompt_tokens = max_prompt_tokens
        self._prompt_tokens = prompt_tokens
        self._epoch = 0
        self._taken = 0
        self._long = 0
        self._ended = False

    def take(self, count: int) -> list[Pending]:
        """Up to ``count`` tasks; fewer only at the end of the data.

        Raises:
            DataError: if a row is malformed, or prompt after prompt is too long.
        """
        taken: list[Pending] = []
        long_in_a_row = 0
        while len(taken) < count and not self._ended:
            # one by one: what an epoch's end or a long prompt leaves over would have to be given back
            for epoch, task in self._next():
                if self._is_long(task):
                    self._long += 1
                    long_in_a_row += 1
                    self._refuse_only_long(long_in_a_row, task)
                else:
                    long_in_a_row = 0
                    self._epoch = epoch
                    taken.append(Pending(epoch, task))
        self._taken += len(taken)
        return taken

    def state(self) -> dict[str, Any]:
        """The position for a checkpoint."""
        own = {"epoch": self._epoch, "taken": self._taken, "long": self._long, "ended": self._ended}
        return {**own, "source": dict(self._source.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a position; a higher ``epochs`` than before opens an ended stream again.

        Raises:
            DataError: if the position belongs to other data.
        """
        self._source.restore(state["source"])
        self._epoch, self._taken, self._long = state["epoch"], state["taken"], state["long"]
        self._ended = state["ended"] and (self._epochs is None or self._epoch + 1 >= self._epochs)

    def metrics(self) -> dict[str, float]:
        """Counters since the start of the run."""
        own = {"data/epoch": self._epoch, "data/tasks": self._taken, "data/long_prompts": self._long}
        of_source = {f"data/{name}": value for name, value in self._source.metrics().items()}
        return {name: float(value) for name, value in {**own, **of_source}.items()}

    def _next(self) -> list[tuple[int, Task]]:
        if self._epochs is None:
            fresh = self._source.take(1)
        else:
            before = self._source.state()
            fresh = self._source.take(1)
            if fresh and fresh[0][0] >= self._epochs:
                self._source.restore(before)  # a later resume with more epochs begins with this task
                fresh = []
        self._ended = not fresh
        return fresh

    def _is_long(self, task: Task) -> bool:
        if self._max_prompt_tokens is None or self._prompt_tokens is None:
            return False
        try:
            tokens = self._prompt_tokens(task)
        except MilesError as error:
            raise DataError(
                f"the prompt of task {task.id} cannot be tokenized: {error.message}", remedy=error.remedy
            ) from error
        if tokens > self._max_prompt_tokens:
            logger.info("task %s is left out: its prompt has %d tokens", task.id, tokens)
        return tokens > self._max_prompt_tokens

    def _refuse_only_long(self, long_in_a_row: int, task: Task) -> None:
        if long_in_a_row >= MAX_LONG_IN_A_ROW:
            raise DataError(
                f"{long_in_a_row} prompts in a row have more than data.max_prompt_tokens = {self._max_prompt_tokens} "
                f"tokens; the last is that of task {task.id}",
                remedy="Raise data.max_prompt_tokens, or shorten the prompts; `miles data check` shows their lengths.",
            )
