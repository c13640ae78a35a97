"""Several sources as one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from miles_core.errors import DataError
from miles_core.kinds.base import PluginContext
from miles_core.types import Message, Task
from miles_plugins.sources.jsonl import Jsonl, JsonlConfig
from miles_plugins.sources.mixture import Mixture, MixtureConfig, most_behind, whole_weights


class Finite:
    """A source of ``count`` tasks."""

    def __init__(self, count: int) -> None:
        self.left = count

    def take(self, count: int) -> list[tuple[int, Task]]:
        given = min(count, self.left)
        self.left -= given
        return [(0, Task("finite", (Message("user", "x"),)))] * given

    def state(self) -> dict[str, Any]:
        return {"left": self.left}

    def restore(self, state: Any) -> None:
        self.left = state["left"]

    def metrics(self) -> dict[str, float]:
        return {"skipped_rows": 2.0}


@pytest.fixture
def mixture(tmp_path):
    for name, count in (("a", 3), ("b", 7)):
        rows = [{"prompt": "x", "label": f"{name}{n}"} for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def build(table: dict[str, Any]) -> Any:
        options = {key: value for key, value in table.items() if key != "use"}
        if table["use"] == "finite":
            return Finite(**options)
        return Jsonl(JsonlConfig(**options), PluginContext(services={"base_dir": tmp_path}))

    def mixture(*sources: dict[str, Any]) -> Mixture:
        return Mixture(MixtureConfig(sources=sources), PluginContext(services={"build_source": build}))

    return mixture


A = {"use": "jsonl", "path": "a.jsonl", "weight": 1}
B = {"use": "jsonl", "path": "b.jsonl", "weight": 3.0}


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_no_source_is_ever_a_whole_task_ahead_and_shares_are_exact_after_each_round(weights):
    total = sum(weights)
    taken = [0] * len(weights)
    for n in range(1, 2 * total + 1):
        taken[most_behind(weights, taken)] += 1
        assert all(count * total - weight * n < total for weight, count in zip(weights, taken, strict=True))
        if n % total == 0:
            assert taken == [weight * n // total for weight in weights]


def test_weights_are_read_as_they_are_written():
    assert whole_weights([0.1, 0.2, 0.7]) == [1, 2, 7]
    assert whole_weights([1.0, 1e-3]) == [1000, 1]


def test_proportions_are_exact_and_tasks_keep_the_epoch_of_their_source(mixture):
    taken = mixture(A, B).take(40)
    assert sum(task.label.startswith("a") for _, task in taken) == 10
    assert sum(task.label.startswith("a") for _, task in taken[:4]) == 1
    assert [epoch for epoch, task in taken if task.label.startswith("a")] == [0] * 3 + [1] * 3 + [2] * 3 + [3]
    assert [epoch for epoch, task in taken if task.label.startswith("b")] == [n // 7 for n in range(30)]


def test_a_mixture_resumes_exactly(mixture):
    whole = mixture(A, B).take(60)
    first = mixture(A, B)
    first.take(29)
    resumed = mixture(A, B)
    resumed.restore(json.loads(json.dumps(first.state())))
    assert resumed.take(31) == whole[29:]


def test_a_position_of_other_weights_or_other_data_is_refused(mixture):
    state = mixture(A, B).state()
    with pytest.raises(DataError, match=r"weights was \[1, 3\], is \[1, 1\]"):
        mixture(A, {**B, "weight": 1}).restore(state)
    with pytest.raises(DataError, match="a.jsonl: absent then") as caught:
        mixture(A, {**A, "weight": 3}).restore(state)
    assert caught.value.__notes__ == ["while restoring data.sources.1"]


def test_a_mixture_ends_with_the_first_source_that_ends(mixture):
    data = mixture({"use": "finite", "count": 2}, {**B, "weight": 1.0})
    assert len(data.take(10)) == 4
    assert data.take(1) == []


def test_counters_are_added(mixture):
    assert mixture(A, {"use": "finite", "count": 1}, {"use": "finite", "count": 1}).metrics() == {"skipped_rows": 4.0}


@pytest.mark.parametrize("sources", [[], [{"path": "x"}], [{"use": "jsonl", "weight": 0}]])
def test_wrong_tables_are_refused(sources):
    with pytest.raises(ValidationError):
        MixtureConfig(sources=sources)
