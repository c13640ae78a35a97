"""Tasks from CSV: quoting, blocks, line numbers, and files that are wrong."""

from __future__ import annotations

import csv
import io
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.errors import DataError
from miles_core.kinds.base import PluginContext
from miles_plugins.sources import csv_blocks
from miles_plugins.sources.csv import Csv, CsvConfig
from miles_plugins.sources.files import DataFile


def source(folder, text: str | bytes, **options) -> Csv:
    (folder / "d.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return Csv(CsvConfig(path="d.csv", **options), PluginContext(services={"base_dir": folder}))


def test_cells_become_tasks_and_empty_ones_no_value(tmp_path):
    text = 'prompt,label,metadata\r\n"say ""hi"",\r\nplease",007,"{""a"": 1}"\r\nx,,\r\n'
    first, second = (task for _, task in source(tmp_path, text, shuffle=False).take(2))
    assert first.messages[0].text == 'say "hi",\r\nplease'
    assert (first.label, first.metadata) == ("007", {"a": 1})
    assert (second.label, second.metadata) == (None, {})


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    assert source(tmp_path, '\ufeff"prompt",label\na,1\n').take(1)[0][1].label == "1"


def test_cells_may_be_long(tmp_path):
    before = csv.field_size_limit()
    [(_, task)] = source(tmp_path, f'prompt\n"{"x" * 300_000}"\n').take(1)
    assert len(task.messages[0].text) == 300_000
    assert csv.field_size_limit() == before


@settings(max_examples=100, deadline=None)
@given(
    cells=st.lists(st.text(st.sampled_from('a",\n\r '), max_size=8), min_size=1, max_size=40),
    rows=st.integers(1, 10),
    size=st.integers(1, 60),
)
def test_every_row_is_found_once_with_its_line_wherever_blocks_are_cut(tmp_path_factory, cells, rows, size):
    path = tmp_path_factory.mktemp("csv") / "d.csv"
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(["n", "text"])
    lines = []
    for number, cell in enumerate(cells):
        lines.append(text.getvalue().count("\n") + 1)
        writer.writerow([number, cell])
        text.write("\n" * (number % 3))
    path.write_text(text.getvalue(), newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_blocks, "BLOCK_ROWS", rows)
        patch.setattr(csv_blocks, "BLOCK_BYTES", size)
        file = csv_blocks.CsvFile(DataFile(path, "d.csv"), logging.getLogger())
        blocks = [file.load(number) for number in range(len(file.block_bytes))]
        places = [(block, index) for block in blocks for index in range(len(block))]
        assert [block.row(index) for block, index in places] == [
            {"n": str(number), "text": cell or None} for number, cell in enumerate(cells)
        ]
        assert [block.key(index) for block, index in places] == list(range(len(cells)))
        assert [file.where(key) for key in range(len(cells))] == [f"{path}:{line}" for line in lines]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt\nx\na,b\n", "d.csv:3: expected 1 cells as in the header, got 2"),
        ('prompt,label\n"a\nb",1\n,2\n', "d.csv:4: `prompt` must be text or a list of messages; got null"),
        ("question\nx\n", "d.csv:2: there is no `prompt` and no `messages`; available keys: question"),
        ('prompt\n"a"b\n', "d.csv:2: not CSV"),
        ('prompt\na\n"b\n\n', "d.csv:3: not CSV: unexpected end of data"),
        (b"prompt\nok\ncaf\xe9\n", "d.csv:3: not UTF-8 text"),
        ("prompt,prompt\nx,y\n", "d.csv:1: two columns are called 'prompt'"),
        ("prompt\n", "holds no task: there is no row below the header"),
        ("", "holds no task: it is empty"),
        ("\n\n\n", "holds no task: it is empty"),
        (b"PAR1\0\0", "d.csv is Parquet, not what `csv` reads"),
    ],
)
def test_what_is_wrong_names_file_and_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        source(tmp_path, text)
    assert caught.value.remedy


def test_a_malformed_row_can_be_skipped(tmp_path):
    data = source(tmp_path, 'prompt,label\na,1\n"b"x,2\nc,3\n', shuffle=False, on_bad_row="skip")
    assert [task.label for _, task in data.take(2)] == ["1", "3"]
    assert data.metrics() == {"skipped_rows": 1.0}


def test_a_resumed_source_goes_on_where_the_first_one_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_blocks, "BLOCK_ROWS", 3)
    text = "prompt,label\n" + "".join(f"q,{n}\n" for n in range(100))
    first = source(tmp_path, text)
    whole = first.take(250)
    again = source(tmp_path, text)
    again.take(137)
    resumed = source(tmp_path, text)
    resumed.restore(again.state())
    assert resumed.take(113) == whole[137:]
    assert sorted(int(task.label) for _, task in whole[:100]) == list(range(100))


def test_a_long_scan_tells_how_far_it_is(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(csv_blocks, "BLOCK_ROWS", 2)
    monkeypatch.setattr(csv_blocks, "LOG_SECONDS", -1.0)
    with caplog.at_level(logging.INFO):
        source(tmp_path, "prompt\n" + "x\n" * 8)
    assert "indexing" in caplog.text
    assert "%" in caplog.text
