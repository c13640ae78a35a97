"""Tasks from Parquet: row groups, types, columns, and files that are wrong."""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path

import pytest

from miles_core.errors import DataError
from miles_core.kinds.base import PluginContext
from miles_plugins.sources.parquet import Parquet, ParquetConfig
from miles_plugins.sources.task_rows import TaskRows

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def source(folder, table, *, group=4, **options) -> Parquet:
    pq.write_table(pa.table(table), folder / "d.parquet", row_group_size=group)
    return Parquet(ParquetConfig(path="d.parquet", **options), PluginContext(services={"base_dir": folder}))


def test_every_row_of_every_row_group_is_taken_once_an_epoch(tmp_path):
    data = source(tmp_path, {"prompt": [f"q{n}" for n in range(50)], "label": list(range(50))})
    first, second = data.take(50), data.take(50)
    assert sorted(int(task.label) for _, task in first) == list(range(50))
    assert [task.label for _, task in first] != [task.label for _, task in second]
    assert len({task.id for _, task in first}) == 50


def test_a_resumed_source_goes_on_where_the_first_one_stopped(tmp_path):
    columns = {"prompt": [f"q{n}" for n in range(90)], "label": list(range(90))}
    whole = source(tmp_path, columns, group=2).take(200)
    first = source(tmp_path, columns, group=2)
    first.take(123)
    resumed = source(tmp_path, columns, group=2)
    resumed.restore(first.state())
    assert resumed.take(77) == whole[123:]


def test_nested_columns_and_exact_numbers_arrive(tmp_path):
    columns = {
        "chat": [[{"role": "user", "content": "a", "name": None}], [{"role": "user", "content": "b", "name": "Bo"}]],
        "answer": pa.array([Decimal("123456789012345678901"), Decimal(5)], pa.decimal128(21, 0)),
        "level": pa.array([1, 2], pa.int8()),
        "noise": [b"\xff", b"\xfe"],
    }
    mapping = {"messages": "chat", "label": "answer", "metadata": ["level"]}
    first, second = (task for _, task in source(tmp_path, columns, columns=mapping, shuffle=False).take(2))
    assert (first.label, first.metadata) == ("123456789012345678901", {"level": 1})
    assert (first.messages[0].name, second.messages[0].name) == (None, "Bo")
    assert "name" not in first.messages[0].to_chat()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "d.parquet: row 1 .*: unknown key 'answer'; available keys: prompt, answer"),
        ({"columns": {"prompt": "question"}}, "row 1 .*there is no `question`; available keys: prompt, answer"),
        ({"columns": {"prompt": "prompt", "label": "lable"}}, "no column 'lable'; available keys: prompt, answer"),
    ],
)
def test_a_wrong_column_is_named_beside_those_that_exist(tmp_path, options, message):
    with pytest.raises(DataError, match=message):
        source(tmp_path, {"prompt": ["a"], "answer": ["b"]}, **options)


def test_an_arrow_scalar_is_a_label_too():
    rows = TaskRows(None)
    row = {"prompt": "x", "label": pa.scalar(2**62 + 1)}
    assert rows.task(row, folder=Path(), default_id="d").label == str(2**62 + 1)


def test_a_bad_row_is_named_with_its_number_and_row_group(tmp_path):
    with pytest.raises(DataError, match=r"d.parquet: row 6 \(row group 1\): `prompt` must be .*; got null"):
        source(tmp_path, {"prompt": ["a"] * 5 + [None]})


def test_files_that_are_no_parquet_are_refused(tmp_path):
    with pytest.raises(DataError, match="holds no task: it has no row"):
        source(tmp_path, {"prompt": pa.array([], pa.string())})
    data = ParquetConfig(path="d.parquet"), PluginContext(services={"base_dir": tmp_path})
    whole = (tmp_path / "d.parquet").read_bytes()
    (tmp_path / "d.parquet").write_bytes(whole[:20])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        Parquet(*data)
    (tmp_path / "d.parquet").write_text('{"prompt": "a"}')
    with pytest.raises(DataError, match="is no Parquet file"):
        Parquet(*data)


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    source(tmp_path, {"prompt": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match="needs the package pyarrow") as caught:
        source(tmp_path, {"prompt": ["a"]})
    assert caught.value.remedy == "Run `pip install 'miles-hub[data]'`."
