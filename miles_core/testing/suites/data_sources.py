"""What every data source must keep."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from miles_core.errors import DataError
from miles_core.lib.numbers import is_finite
from miles_core.testing.suites.base import PluginSuite
from miles_core.types import Task

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Taken = list[tuple[int, Task]]

EXAMPLE_ROWS = tuple({"prompt": f"What is {n} + {n}?", "label": str(2 * n)} for n in range(23))


class DataSourceSuite(PluginSuite):
    """Conformance of data sources.

    ``files`` maps file names to contents, by default ``tasks.jsonl`` with some rows; they are written into an empty
    folder, the service ``base_dir``. A method ``write(folder)`` may be overridden instead, and ``folder`` names one
    that exists. ``take`` is how many tasks are taken: best more than two epochs hold. ``other_options`` are options of
    other data, whose state must be refused.
    """

    kind = "data_sources"
    files: ClassVar[Mapping[str, str | bytes]] = {
        "tasks.jsonl": "".join(json.dumps(row) + "\n" for row in EXAMPLE_ROWS)
    }
    folder: ClassVar[Path | None] = None
    take: ClassVar[int] = 60
    other_options: ClassVar[Mapping[str, Any] | None] = None

    _base_dir: Path

    @pytest.fixture(autouse=True)
    def _use_base_dir(self, tmp_path: Path) -> None:
        self._base_dir = self.folder or tmp_path
        if self.folder is None:
            self.write(tmp_path)

    def write(self, folder: Path) -> None:
        """Write the data into an empty folder."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    def default_services(self) -> dict[str, Any]:
        """The folder that relative paths start from, and how to make the source of a nested table."""
        return {"base_dir": self._base_dir, "build_source": self._build_source}

    def _build_source(self, options: Mapping[str, Any]) -> Any:
        from miles_core.kinds import PluginContext
        from miles_core.testing.make import make_plugin

        rest = {key: value for key, value in options.items() if key != "use"}
        context = PluginContext(seed=self.seed, services=self.default_services())
        return make_plugin("data_sources", options["use"], rest, context, hub=self.hub)

    def taken(self, count: int | None = None, **how: Any) -> Taken:
        """The first tasks of a new source."""
        taken: Taken = self.make(**how).take(self.take if count is None else count)
        return taken

    def test_takes_tasks_with_their_epochs(self) -> None:
        """``take(count)`` returns at most ``count`` pairs of an epoch, an int from 0 on, and a ``Task``."""
        taken = self.taken()
        self.check(isinstance(taken, list), expected="a list", got=type(taken).__name__, remedy="Return a list.")
        self.check(
            0 < len(taken) <= self.take,
            expected=f"between 1 and {self.take} tasks",
            got=len(taken),
            remedy="Return no more than asked for; the suite needs data.",
        )
        for pair in taken:
            good = (
                isinstance(pair, tuple)
                and len(pair) == 2
                and isinstance(pair[0], int)
                and pair[0] >= 0
                and isinstance(pair[1], Task)
            )
            self.check(good, expected="a pair (epoch, Task)", got=pair, remedy="Return [(epoch, task), ...].")

    def test_tasks_can_be_played(self) -> None:
        """Every task has an id and at least one message."""
        for _, task in self.taken():
            self.check(
                isinstance(task.id, str) and task.id and task.messages,
                expected="an id and at least one message",
                got=task,
                remedy="Give rows without an id a hash of their place.",
            )

    def test_the_order_is_reproducible(self) -> None:
        """Two sources with the same options and seed give the same tasks in the same order."""
        self._check_same(self.taken(), self.taken(), "another source with the same seed")

    def test_taking_in_pieces_changes_nothing(self) -> None:
        """``take(1)`` n times gives what ``take(n)`` gives, and ``take(0)`` nothing."""
        source = self.make()
        pieces: Taken = []
        for size in [0, 1, 1, 3, 0, 7]:
            pieces += source.take(size)
        self._check_same(self.taken(12), pieces, "taking in pieces")

    def test_a_restored_source_goes_on_exactly(self) -> None:
        """From any position, a source that restores a state gives what the uninterrupted one gives."""
        whole = self.taken()
        for cut in sorted({0, 1, len(whole) // 3, len(whole) // 2, max(len(whole) - 1, 0)}):
            first = self.make()
            first.take(cut)
            resumed = self.make()
            resumed.restore(json.loads(json.dumps(first.state())))
            self._check_same(whole[cut:], resumed.take(len(whole) - cut), f"a source restored after {cut} tasks")

    def test_the_state_is_json(self) -> None:
        """``state()`` is JSON-like and survives a checkpoint unchanged."""
        source = self.make()
        source.take(5)
        try:
            text = json.dumps(source.state())
        except (TypeError, ValueError) as error:
            self.check(False, expected="JSON-like data", got=str(error), remedy="Use numbers, text, lists, mappings.")
            return
        self.check(
            json.loads(text) == source.state(),
            expected="the same state after JSON",
            got=text,
            remedy="Use lists for tuples and text for keys.",
        )

    def test_state_moves_nothing(self) -> None:
        """Asking for the state takes no task."""
        source = self.make()
        taken: Taken = []
        for _ in range(12):
            source.state()
            taken += source.take(1)
        self._check_same(self.taken(12), taken, "a source whose state is read in between")

    def test_epochs_count_passes(self) -> None:
        """A task that comes again comes in the next epoch: seeds of environments depend on (epoch, task)."""
        seen: dict[str, list[int]] = defaultdict(list)
        for epoch, task in self.taken():
            seen[task.id].append(epoch)
        for name, epochs in seen.items():
            self.check(
                epochs[0] == 0 and all(later == earlier + 1 for earlier, later in pairwise(epochs)),
                expected=f"task {name} in epochs 0, 1, 2, ...",
                got=epochs,
                remedy="Count the passes over the data, and give each row an id of its own.",
            )

    def test_metrics_are_finite_numbers(self) -> None:
        """``metrics()`` maps names to finite numbers."""
        source = self.make()
        source.take(5)
        for name, value in source.metrics().items():
            self.check(
                isinstance(name, str) and isinstance(value, int | float) and is_finite(value),
                expected="names with finite numbers",
                got={name: value},
                remedy="Report counters only.",
            )

    def test_a_state_of_other_data_is_refused(self) -> None:
        """``restore`` raises ``DataError`` for a state of other data, instead of going on somewhere."""
        if self.other_options is None:
            pytest.skip("the suite gives no `other_options`")
        other = self.make(**self.other_options)
        other.take(3)
        source = self.make()
        try:
            source.restore(json.loads(json.dumps(other.state())))
        except DataError:
            return
        self.check(False, expected="a DataError", got="a restored source", remedy="Keep a fingerprint in the state.")

    def _check_same(self, expected: Taken, got: Taken, how: str) -> None:
        one, other = ([(epoch, task.id, task) for epoch, task in taken] for taken in (expected, got))
        differing = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
        place = min(len(one), len(other)) if differing is None else differing
        self.check(
            one == other,
            expected=f"the same tasks from {how}: {[pair[:2] for pair in one[place : place + 3]]} at place {place}",
            got=str([pair[:2] for pair in other[place : place + 3]]),
            remedy="Let the order depend on the context's seed and the epoch alone, and the state hold the position.",
        )
