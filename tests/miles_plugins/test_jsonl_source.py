"""Tasks from JSON Lines: order, epochs, and rows that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from miles_core.errors import DataError
from miles_core.kinds.base import PluginContext
from miles_plugins.sources.jsonl import Jsonl, JsonlConfig


def source(tmp_path: Path, rows, *, seed: int = 0, **options) -> Jsonl:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    (tmp_path / "d.jsonl").write_text(text)
    context = PluginContext(seed=seed, services={"base_dir": tmp_path})
    return Jsonl(JsonlConfig(path="d.jsonl", **options), context)


ROWS = [{"prompt": str(i), "label": i} for i in range(10)]


def labels(taken) -> list[str]:
    return [task.label for _, task in taken]


def test_every_epoch_yields_every_task_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    data = source(tmp_path, ROWS)
    epochs = [data.take(10) for _ in range(3)]
    for number, taken in enumerate(epochs):
        assert sorted(labels(taken)) == [str(i) for i in range(10)]
        assert {epoch for epoch, _ in taken} == {number}
    assert labels(epochs[0]) != labels(epochs[1])


def test_the_order_depends_on_seed_and_epoch_only_not_on_how_it_is_taken(tmp_path: Path) -> None:
    whole = labels(source(tmp_path, ROWS).take(30))
    pieces = source(tmp_path, ROWS)
    assert labels([pair for size in (3, 7, 1, 19) for pair in pieces.take(size)]) == whole
    assert labels(source(tmp_path, ROWS, seed=1).take(30)) != whole


def test_without_shuffle_the_file_order_is_kept(tmp_path: Path) -> None:
    assert labels(source(tmp_path, ROWS, shuffle=False).take(12)) == [*map(str, range(10)), "0", "1"]


def test_a_missing_id_is_stable_and_distinct(tmp_path: Path) -> None:
    ids = [task.id for _, task in source(tmp_path, ROWS, shuffle=False).take(10)]
    again = [task.id for _, task in source(tmp_path, ROWS, shuffle=False).take(10)]
    assert ids == again
    assert len(set(ids)) == 10


def test_all_known_keys_arrive(tmp_path: Path) -> None:
    row = {
        "id": 7,
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "label": "l",
        "images": [],
        "tools": [],
        "environment": "chess",
        "metadata": {"big": 123456789012345678901},
    }
    [(_, task)] = source(tmp_path, [row]).take(1)
    assert (task.id, task.label, task.environment) == ("7", "l", "chess")
    assert [m.role for m in task.messages] == ["system", "user"]
    assert task.metadata["big"] == 123456789012345678901


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{broken", "d.jsonl:2: not JSON"),
        ("[1]", "d.jsonl:2: expected a JSON object, got list"),
        ({"promt": "x"}, "d.jsonl:2: unknown key 'promt'"),
        ({"prompt": "x", "messages": []}, "d.jsonl:2: expected exactly one of"),
        ({"label": "x"}, "d.jsonl:2: expected exactly one of"),
        ({"messages": []}, "d.jsonl:2: `messages` is empty"),
        ({"messages": [{"content": "x"}]}, "d.jsonl:2: a message needs"),
        ({"prompt": 5}, "d.jsonl:2: message content must be"),
        ({"prompt": "x", "label": {"a": 1}}, "d.jsonl:2: `label` must be text or a number"),
        ({"prompt": "x", "label": True}, "d.jsonl:2: `label` must be text or a number"),
        ({"prompt": "x", "id": True}, "d.jsonl:2: `id` must be"),
        ('{"prompt": "a \\ud800 b"}', "d.jsonl:2: a message holds a lone surrogate"),
        ("[" * 100_000, "d.jsonl:2: not JSON"),
        ({"messages": {"role": "user"}}, "d.jsonl:2: `messages` must be an array of messages; got {"),
        ({"prompt": "x", "images": "abc.png"}, 'd.jsonl:2: `images` must be an array; got "abc.png"'),
        ({"prompt": "x", "tools": 5}, "d.jsonl:2: `tools` must be an array; got 5"),
        ({"prompt": "x", "metadata": [1]}, "d.jsonl:2: `metadata` must be an object; got .1"),
        ({"prompt": "x", "environment": 5}, "d.jsonl:2: `environment` must be text; got 5"),
        ({"prompt": "x", "id": [7]}, "d.jsonl:2: `id` must be text or an integer; got .7"),
        ({"prompt": "x", "images": ["a.png"]}, "d.jsonl:2: `images` is not empty, but this version passes no images"),
        (
            {"prompt": "x", "tools": [{"type": "f"}]},
            "d.jsonl:2: `tools` is not empty, but this version passes no tools",
        ),
    ],
)
def test_a_wrong_row_names_file_and_line(tmp_path: Path, row, message: str) -> None:
    with pytest.raises(DataError, match=message):
        source(tmp_path, [ROWS[0], row])


def test_an_id_that_comes_twice_names_both_lines(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"d.jsonl:4: the id '7' is that of line 2 too") as caught:
        source(tmp_path, [ROWS[0], {"id": 7, "prompt": "a"}, "", {"id": "7", "prompt": "b"}])
    assert caught.value.remedy


def test_a_line_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n')
    with pytest.raises(DataError, match="d.jsonl:2: not UTF-8 text") as caught:
        Jsonl(JsonlConfig(path="d.jsonl"), PluginContext(services={"base_dir": tmp_path}))
    assert caught.value.remedy == "Save the file as UTF-8."


def test_line_separators_inside_a_text_do_not_end_a_line(tmp_path: Path) -> None:
    [(_, task)] = source(tmp_path, ['{"prompt": "a\u2028b"}']).take(1)
    assert task.messages[0].text == "a\u2028b"


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    assert labels(source(tmp_path, ["\ufeff" + json.dumps(ROWS[3])]).take(1)) == ["3"]


def test_missing_and_empty_files_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no task"):
        source(tmp_path, ["", " "])
    with pytest.raises(DataError, match="no data file") as caught:
        Jsonl(JsonlConfig(path="none.jsonl"), PluginContext(services={"base_dir": tmp_path}))
    assert "data.path" in (caught.value.remedy or "")
