"""What a person sees of a running job: one bar on a terminal, one line per step elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

LINE_SECONDS = 2.0
WAITING_SECONDS = 10.0


class TrainingProgress:
    """Step, reward, tokens/s and phase."""

    def __init__(self, steps: int | None, title: str = "training", console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr, highlight=False)
        self._steps = steps
        self._last_line = 0.0
        self._said_waiting = 0.0
        self._reward = self._speed = "-"
        columns = (
            TextColumn(f"[bold]{title}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("reward {task.fields[reward]}"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TextColumn("{task.fields[phase]}", style="cyan"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task(title, total=steps, reward="-", speed="-", phase="starting")

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)

    def phase(self, name: str) -> None:
        """Show what the run is doing."""
        self._said_waiting = time.monotonic()
        self._bar.update(self._task, phase=name)

    def waiting(self, text: str) -> None:
        """Show what a phase that takes its time is at; off a terminal a line every ten seconds of the phase."""
        self._bar.update(self._task, phase=text)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said_waiting >= WAITING_SECONDS:
            self._said_waiting = now
            self.say(text)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a finished step; off a terminal at most one line every two seconds, and the last step's."""
        reward, speed = metrics.get("rollout/reward"), metrics.get("perf/tokens_per_second")
        self._reward = "-" if reward is None else f"{reward:.3f}"
        self._speed = "-" if speed is None else f"{speed:,.0f}"
        self._bar.update(self._task, completed=step, reward=self._reward, speed=self._speed)
        now = time.monotonic()
        if not self._console.is_terminal and (now - self._last_line >= LINE_SECONDS or step == self._steps):
            self._last_line = now
            total = "" if self._steps is None else f"/{self._steps}"
            self.say(f"step {step}{total}  reward {self._reward}  {self._speed} tokens/s")
