"""Tasks from Python code."""

from __future__ import annotations

import json
import sys

import pytest
from pydantic import ValidationError

from miles_core.errors import DataError
from miles_core.kinds.base import PluginContext
from miles_plugins.sources.iterable import Iterable, IterableConfig

MODULE = """
from miles_core.api import Message, Task

calls = []
rows = [{"prompt": str(n), "label": n} for n in range(20)]
text = "rows"


def make(count=5):
    calls.append(count)
    for n in range(count):
        yield {"prompt": str(n), "label": n}


def listed(count):
    return rows[:count]


def tasks():
    yield Task("t", (Message("user", "x"),), "l")


def mixed():
    yield {"prompt": "a", "label": "1"}
    yield {"prompt": 5}
    yield "text"
    yield {"prompt": "b", "label": "2"}


def bad():
    yield {"text": "x"}


def empty():
    return iter(())


def number():
    return 5


def failing():
    yield {"prompt": "a"}
    raise RuntimeError("out of paper")
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    (tmp_path / "my_tasks_of_the_iterable_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    def source(attribute, *, seed=0, **options):
        config = IterableConfig(path=f"my_tasks_of_the_iterable_test:{attribute}", **options)
        return Iterable(config, PluginContext(seed=seed, services={"base_dir": tmp_path}))

    yield source
    sys.modules.pop("my_tasks_of_the_iterable_test", None)


def labels(taken):
    return [(epoch, task.label) for epoch, task in taken]


def test_a_function_is_called_anew_for_each_epoch_with_its_options(source):
    taken = source("make", options={"count": 3}).take(7)
    assert labels(taken) == [(0, "0"), (0, "1"), (0, "2"), (1, "0"), (1, "1"), (1, "2"), (2, "0")]
    assert sys.modules["my_tasks_of_the_iterable_test"].calls == [3, 3, 3]


def test_a_function_resumes_by_skipping_what_was_taken(source):
    first = source("make")
    first.take(8)
    resumed = source("make")
    resumed.restore(json.loads(json.dumps(first.state())))
    assert labels(resumed.take(3)) == [(1, "3"), (1, "4"), (2, "0")]


@pytest.mark.parametrize(("attribute", "options"), [("rows", {}), ("listed", {"count": 20})])
def test_a_sequence_is_shuffled_by_seed_and_epoch_and_resumes(source, attribute, options):
    whole = source(attribute, options=options, shuffle=True, seed=3).take(60)
    assert sorted(int(task.label) for _, task in whole[:20]) == list(range(20))
    assert [t.label for _, t in whole[:20]] != [t.label for _, t in whole[20:40]] != [str(n) for n in range(20)]
    first = source(attribute, options=options, shuffle=True, seed=3)
    first.take(33)
    resumed = source(attribute, options=options, shuffle=True, seed=3)
    resumed.restore(first.state())
    assert resumed.take(27) == whole[33:]


def test_tasks_pass_through_and_rows_get_an_id_of_their_place(source):
    assert [task.id for _, task in source("tasks").take(2)] == ["t", "t"]
    ids = [task.id for _, task in source("make").take(10)]
    assert ids[:5] == ids[5:]
    assert len(set(ids)) == 5


def test_bad_rows_are_named_or_skipped(source):
    with pytest.raises(DataError, match="my_tasks_of_the_iterable_test:mixed: row 2: `prompt` must be"):
        source("mixed").take(2)
    data = source("mixed", on_bad_row="skip")
    assert labels(data.take(4)) == [(0, "1"), (0, "2"), (1, "1"), (1, "2")]
    assert data.metrics() == {"skipped_rows": 4.0}


@pytest.mark.parametrize(
    ("attribute", "options", "message"),
    [
        ("empty", {}, "a whole epoch holds no task"),
        ("bad", {"on_bad_row": "skip"}, "a whole epoch holds no task"),
        ("number", {}, "must return an iterable of rows; it returned integer"),
        ("failing", {}, "failed: RuntimeError: out of paper"),
        ("make", {"options": {"n": 1}}, "failed: TypeError"),
        ("absent", {}, "cannot be imported: AttributeError"),
        ("text", {}, "is text, not a function and not a sequence"),
        ("rows", {"options": {"n": 1}}, "so it takes no options"),
        ("make", {"shuffle": True}, "has no length, so it cannot be shuffled"),
    ],
)
def test_code_that_yields_no_tasks_ends_the_run_with_the_reason(source, attribute, options, message):
    with pytest.raises(DataError, match=message) as caught:
        source(attribute, **options).take(3)
    assert caught.value.remedy


def test_a_position_of_other_options_is_refused(source):
    state = source("make", options={"count": 3}).state()
    with pytest.raises(DataError, match="options was {'count': 3}, is {'count': 4}"):
        source("make", options={"count": 4}).restore(state)


def test_a_path_is_module_and_attribute():
    with pytest.raises(ValidationError):
        IterableConfig(path="tasks.py")
