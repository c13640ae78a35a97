"""Tasks as the scheduler takes them: from the data source, without prompts that are too long, until the data ends."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from miles_core.errors import DataError, MilesError
from miles_core.lib.error_text import error_text, value_text
from miles_core.lib.plugin_calls import CallTimeoutError, PluginCalls
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
    out and counted. :meth:`take` waits ``timeout`` seconds for one task. ``calls`` are those into the source.
    """

    def __init__(
        self,
        source: DataSource,
        *,
        epochs: int | None = None,
        max_prompt_tokens: int | None = None,
        prompt_tokens: Callable[[Task], int] | None = None,
        timeout: float = 600.0,
        calls: PluginCalls | None = None,
    ) -> None:
        self._source = source
        self._epochs = epochs
        self._max_prompt_tokens = max_prompt_tokens
        self._prompt_tokens = prompt_tokens
        self._timeout = timeout
        self._calls = calls or PluginCalls("data", f"data source {type(source).__module__}:{type(source).__qualname__}")
        self._epoch = 0
        self._taken = 0
        self._long = 0
        self._before: dict[str, Any] | None = None
        """The position before tasks that a thread is taking now; the source must not be asked meanwhile."""
        self._beyond: Pending | None = None
        """The first task after the last epoch, for a later run that has more."""

    async def take(self, count: int) -> tuple[list[Pending], MilesError | None]:
        """Up to ``count`` tasks, fewer at the end of the data or before an error, and the error; the source may block.

        Until they are returned, :meth:`state` is the position before them.
        """
        taken: list[Pending] = []
        if count <= 0:
            return taken, None
        self._before = self.state()
        try:
            while len(taken) < count:
                pending = await self._calls("take", self.next, limit=self._timeout)
                if pending is None:
                    break
                taken.append(pending)
        except CallTimeoutError as error:  # the source is never asked again, and the position stays that before
            return [], DataError(
                f"{self._calls.title}: take() {error}", remedy="Mend the source, or raise `timeout` in its table."
            )
        except MilesError as error:
            self._before = None
            return taken, error
        self._before = None
        return taken, None

    def next(self) -> Pending | None:
        """The next task; ``None`` at the end of the data.

        Raises:
            DataError: if a row is malformed, prompt after prompt is too long, or the source fails.
        """
        long_in_a_row = 0
        while (pending := self._beyond or self._from_source()) is not None:
            self._beyond = None
            if self._epochs is not None and pending.epoch >= self._epochs:
                self._beyond = pending
                return None
            if not self._is_long(pending.task):
                self._epoch = pending.epoch
                self._taken += 1
                return pending
            self._long += 1
            long_in_a_row += 1
            self._refuse_only_long(long_in_a_row, pending.task)
        return None

    def state(self) -> dict[str, Any]:
        """The position for a checkpoint."""
        if self._before is not None:
            return self._before
        beyond = None if self._beyond is None else self._beyond.to_record()
        own = {"epoch": self._epoch, "taken": self._taken, "long": self._long, "beyond": beyond}
        return {**own, "source": dict(self._ask("state"))}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a position.

        Raises:
            DataError: if the position belongs to other data.
        """
        self._ask("restore", state["source"])
        self._epoch, self._taken, self._long = state["epoch"], state["taken"], state["long"]
        beyond = state.get("beyond")
        self._beyond = None if beyond is None else Pending.from_record(beyond)

    def metrics(self) -> dict[str, float]:
        """Counters since the start of the run."""
        own = {"data/epoch": self._epoch, "data/tasks": self._taken, "data/long_prompts": self._long}
        of_source = {f"data/{name}": value for name, value in self._ask("metrics").items()}
        return {name: float(value) for name, value in {**own, **of_source}.items()}

    def _from_source(self) -> Pending | None:
        taken = self._ask("take", 1)
        return self._checked(taken) if taken else None

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._source, method)(*arguments)
        except (MilesError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise DataError(
                f"{self._calls.title}: {method}() raised {error_text(error)}", remedy="Mend the source."
            ) from error

    def _checked(self, taken: Any) -> Pending:
        match taken:
            case [(int(epoch), Task() as task)]:
                return Pending(epoch, task)
        raise DataError(
            f"{self._calls.title}: take(1) must return a list of at most one (epoch, Task); got {value_text(taken)}",
            remedy="Mend the source.",
        )

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
