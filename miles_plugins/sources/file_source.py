"""What all sources over files share: order, position, bad rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from miles_core.api import InspectedRow
from miles_plugins.sources.bad_rows import BadRows
from miles_plugins.sources.blocks import BlockSet
from miles_plugins.sources.fingerprint import check_fingerprint
from miles_plugins.sources.order import BlockOrder, Position, Walk
from miles_plugins.sources.row_error import RowError, kind_of
from miles_plugins.sources.start_check import check_first_rows, no_task, require_tasks
from miles_plugins.sources.task_rows import TaskRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from miles_core.api import PluginContext, Task
    from miles_plugins.sources.blocks import BlockFile, LoadedBlock


class FileSource:
    """Tasks of block files; subclasses say how their files are opened.

    The order of an epoch is a function of seed and epoch; a state is a position in it, so resuming replays nothing.
    """

    columnar: ClassVar[bool] = False

    @classmethod
    def open(cls, config: Any, context: PluginContext) -> list[BlockFile]:
        """The files of a config.

        Raises:
            DataError: if one is missing, empty or of another format.
        """
        raise NotImplementedError

    def __init__(self, config: Any, context: PluginContext) -> None:
        self._blocks = BlockSet(self.open(config, context))
        self._rows = TaskRows(config.columns, columnar=self.columnar)
        self._bad = BadRows(config.on_bad_row, context.logger)
        order = BlockOrder(self._blocks.block_bytes, seed=context.seed, shuffle=config.shuffle)
        self._walk = Walk(order, self._blocks.load)
        self._last_good_epoch = 0
        self._fingerprint = _fingerprint(config, context.seed, self._blocks)
        check = require_tasks if self._bad.skipping else check_first_rows
        check(self._blocks, self._rows)

    def take(self, count: int) -> list[tuple[int, Task]]:
        """The next ``count`` tasks, each with its epoch; epochs follow one another."""
        taken: list[tuple[int, Task]] = []
        while len(taken) < count:
            found = self._walk.next()
            if found is None or found[0] > self._last_good_epoch + 1:
                raise no_task(self._blocks.files)
            epoch, block, index = found
            try:
                taken.append((epoch, block.task(self._rows, index)))
            except RowError as error:
                self._bad.add(error, block.where(index))
            else:
                self._last_good_epoch = epoch
        return taken

    def state(self) -> dict[str, Any]:
        """The position; ``row`` counts rows taken from the window."""
        position = self._walk.position
        return {
            "epoch": position.epoch,
            "window": position.window,
            "row": position.row,
            "fingerprint": self._fingerprint,
            "counters": {"skipped_rows": self._bad.skipped},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            DataError: if it belongs to other data.
        """
        check_fingerprint(self._fingerprint, state.get("fingerprint"))
        self._walk.position = Position(state["epoch"], state["window"], state["row"])
        self._last_good_epoch = state["epoch"]
        self._bad.skipped = state["counters"]["skipped_rows"]

    def metrics(self) -> dict[str, float]:
        """Rows that were skipped since the start; one that is bad counts in every epoch."""
        return {"skipped_rows": float(self._bad.skipped)}

    @classmethod
    def inspect(cls, config: Any, context: PluginContext) -> Iterator[InspectedRow]:
        """Every row in the order of the files, good or bad, for ``miles data check``."""
        blocks = BlockSet(cls.open(config, context))
        rows = TaskRows(config.columns, columnar=cls.columnar)
        for number in range(len(blocks)):
            block = blocks.load(number)
            for index in range(len(block)):
                yield _inspected(rows, block, index, (number + index / len(block)) / len(blocks))


def _inspected(rows: TaskRows, block: LoadedBlock, index: int, progress: float) -> InspectedRow:
    kinds: dict[str, str] = {}
    task, problem = None, ""
    try:
        row = block.row(index)
        kinds = {str(column): kind_of(value) for column, value in row.items()}
        task = block.task(rows, index, row)
    except RowError as error:
        problem = error.reason
    return InspectedRow(lambda: block.where(index), kinds, task, problem, progress)


def _fingerprint(config: Any, seed: int, blocks: BlockSet) -> dict[str, Any]:
    columns = config.columns.model_dump(mode="json", exclude_none=True) if config.columns else None
    return {
        "files": [[file.name, file.size] for file in blocks.files],
        "columns": columns,
        "split": getattr(config, "split", None),
        "shuffle": config.shuffle,
        "seed": seed if config.shuffle else None,
    }
