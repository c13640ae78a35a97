"""Data sources that break one rule each."""

from __future__ import annotations

import random

from miles_core.api import DataError, Message, Task
from miles_core.testing import DataSourceSuite

ROWS = 20


class Right:
    """Twenty numbers, in another order each epoch."""

    def __init__(self, config, context):
        self.seed = context.seed
        self.at = 0

    def take(self, count):
        taken = [self.pair(place) for place in range(self.at, self.at + count)]
        self.at += count
        return taken

    def pair(self, place):
        epoch, row = divmod(place, ROWS)
        order = random.Random(f"{self.seed}-{epoch}").sample(range(ROWS), ROWS)
        return epoch, self.task(order[row])

    def task(self, number):
        return Task(f"task-{number}", (Message("user", str(number)),))

    def state(self):
        return {"at": self.at}

    def restore(self, state):
        if "at" not in state:
            raise DataError("the state is of another source")
        self.at = state["at"]

    def metrics(self):
        return {"taken": float(self.at)}


class GivesLists(Right):
    """Pairs as lists."""

    def take(self, count):
        return [list(pair) for pair in super().take(count)]


class Mute(Right):
    """Tasks without a word."""

    def task(self, number):
        return Task(f"task-{number}", ())


class Unseeded(Right):
    """In an order of its own."""

    def __init__(self, config, context):
        super().__init__(config, context)
        self.seed = random.random()


class Eager(Right):
    """Takes one even if none is asked for."""

    def take(self, count):
        taken = super().take(max(count, 1))
        return taken[:count]


class Forgetful(Right):
    """Remembers the place, but not the epoch."""

    def state(self):
        return {"at": self.at % ROWS}


class Tupled(Right):
    """Keeps its state in a tuple."""

    def state(self):
        return {"at": self.at, "rows": (ROWS, "rows")}


class Moving(Right):
    """Peeks at the next task to tell its state."""

    def state(self):
        state = super().state()
        self.take(1)
        return state


class Endless(Right):
    """Never leaves epoch 0."""

    def pair(self, place):
        return 0, super().pair(place)[1]


class NotANumber(Right):
    """Divides by nothing."""

    def metrics(self):
        return {"share": float("nan")}


class Trusting(Right):
    """Takes any state."""

    def restore(self, state):
        self.at = state.get("at", 0)


class TestRight(DataSourceSuite):
    plugin = Right
    breaks = ()


class TestGivesLists(DataSourceSuite):
    plugin = GivesLists
    breaks = ("takes_tasks_with_their_epochs",)


class TestMute(DataSourceSuite):
    plugin = Mute
    breaks = ("tasks_can_be_played",)


class TestUnseeded(DataSourceSuite):
    plugin = Unseeded
    # an order that no seed governs cannot be gone on with either
    breaks = (
        "the_order_is_reproducible",
        "taking_in_pieces_changes_nothing",
        "a_restored_source_goes_on_exactly",
        "state_moves_nothing",
    )


class TestEager(DataSourceSuite):
    plugin = Eager
    breaks = ("taking_in_pieces_changes_nothing", "a_restored_source_goes_on_exactly")


class TestForgetful(DataSourceSuite):
    plugin = Forgetful
    breaks = ("a_restored_source_goes_on_exactly",)


class TestTupled(DataSourceSuite):
    plugin = Tupled
    breaks = ("the_state_is_json",)


class TestMoving(DataSourceSuite):
    plugin = Moving
    breaks = ("state_moves_nothing", "the_state_is_json")


class TestEndless(DataSourceSuite):
    plugin = Endless
    breaks = ("epochs_count_passes",)


class TestNotANumber(DataSourceSuite):
    plugin = NotANumber
    breaks = ("metrics_are_finite_numbers",)


class TestTrusting(DataSourceSuite):
    plugin = Trusting
    other_options = {}  # noqa: RUF012 - a setting
    breaks = ("a_state_of_other_data_is_refused",)
