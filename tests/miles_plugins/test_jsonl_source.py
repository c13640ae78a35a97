"""Tasks from JSON Lines: order, epochs, positions, and rows and files that are wrong."""

from __future__ import annotations

import gzip
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.errors import DataError
from miles_core.kinds.base import PluginContext
from miles_plugins.sources import jsonl_blocks
from miles_plugins.sources.files import DataFile
from miles_plugins.sources.jsonl import Jsonl, JsonlConfig

ROWS = [{"prompt": str(i), "label": i} for i in range(10)]


def open_source(folder: Path, path="d.jsonl", *, seed: int = 0, **options) -> Jsonl:
    context = PluginContext(seed=seed, services={"base_dir": folder})
    return Jsonl(JsonlConfig(path=path, **options), context)


def source(folder: Path, rows, **options) -> Jsonl:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    (folder / "d.jsonl").write_text(text)
    return open_source(folder, **options)


def labels(taken) -> list[str]:
    return [task.label for _, task in taken]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 32 bytes, so that a few rows fill several windows."""
    monkeypatch.setattr(jsonl_blocks, "BLOCK_BYTES", 32)


def test_every_epoch_yields_every_task_once_in_an_order_of_its_own(tmp_path):
    data = source(tmp_path, ROWS)
    epochs = [data.take(10) for _ in range(3)]
    for number, taken in enumerate(epochs):
        assert sorted(labels(taken)) == [str(i) for i in range(10)]
        assert {epoch for epoch, _ in taken} == {number}
    assert labels(epochs[0]) != labels(epochs[1])


def test_the_order_depends_on_seed_and_epoch_only_not_on_how_it_is_taken(tmp_path):
    whole = labels(source(tmp_path, ROWS).take(30))
    pieces = source(tmp_path, ROWS)
    assert labels([pair for size in (3, 7, 1, 19) for pair in pieces.take(size)]) == whole
    assert labels(source(tmp_path, ROWS, seed=1).take(30)) != whole


def test_without_shuffle_the_file_order_is_kept(tmp_path):
    assert labels(source(tmp_path, ROWS, shuffle=False).take(12)) == [*map(str, range(10)), "0", "1"]


def test_after_two_batches_of_three_a_resumed_source_goes_on_with_row_six(tmp_path):
    first = source(tmp_path, ROWS, shuffle=False)
    first.take(3)
    first.take(3)
    resumed = open_source(tmp_path, shuffle=False)
    resumed.restore(json.loads(json.dumps(first.state())))
    assert labels(resumed.take(3)) == ["6", "7", "8"]


def test_a_position_counts_what_was_taken_not_what_was_trained(tmp_path):
    first = source(tmp_path, ROWS, shuffle=False)
    first.take(5)  # of which a step of two groups trains two, buffers one and drops two
    resumed = open_source(tmp_path, shuffle=False)
    resumed.restore(first.state())
    assert labels(resumed.take(1)) == ["5"]


def test_a_source_resumed_in_a_later_epoch_has_that_epochs_order(tmp_path, small_blocks):
    rows = [{"prompt": str(i), "label": i} for i in range(100)]
    whole = labels(source(tmp_path, rows, seed=42).take(400))
    first = open_source(tmp_path, seed=42)
    first.take(204)
    resumed = open_source(tmp_path, seed=42)
    resumed.restore(json.loads(json.dumps(first.state())))
    rest = labels(resumed.take(196))
    assert rest == whole[204:]
    assert rest[:96] != whole[4:100]


def test_a_state_stays_what_it_was_while_the_source_goes_on(tmp_path):
    data = source(tmp_path, ROWS)
    state = data.state()
    ahead = labels(data.take(4))
    data.restore(state)
    assert labels(data.take(4)) == ahead


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"shuffle": False}, "shuffle was True, is False"),
        ({"seed": 1}, "seed was 0, is 1"),
        ({"columns": {"prompt": "prompt"}}, r"columns was nothing, is \{'prompt': 'prompt'\}"),
        ({"path": ["d.jsonl", "more.jsonl"]}, "more.jsonl: absent then, size 15 now"),
    ],
)
def test_a_position_in_other_data_is_refused_with_what_differs(tmp_path, options, difference):
    state = source(tmp_path, ROWS).state()
    (tmp_path / "more.jsonl").write_text('{"prompt": "x"}')
    with pytest.raises(DataError, match=f"belongs to other data: .*{difference}"):
        open_source(tmp_path, **options).restore(state)


def test_a_file_that_grew_is_other_data(tmp_path):
    state = source(tmp_path, ROWS[:3]).state()
    with pytest.raises(DataError, match="d.jsonl: size 83 then, size 111 now"):
        source(tmp_path, ROWS[:4]).restore(state)


def test_files_in_another_order_are_other_data(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(ROWS[0]))
    state = open_source(tmp_path, ["a.jsonl", "b.jsonl"]).state()
    with pytest.raises(DataError, match="the files stand in another order"):
        open_source(tmp_path, ["b.jsonl", "a.jsonl"]).restore(state)


def test_a_state_of_something_else_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no fingerprint"):
        source(tmp_path, ROWS).restore({"position": 3})


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    source(tmp_path, ROWS)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    with pytest.raises(DataError, match="d.jsonl cannot be read"):
        open_source(tmp_path)


def test_data_may_move_to_another_folder(tmp_path):
    state = source(tmp_path, ROWS).state()
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "d.jsonl").rename(other / "d.jsonl")
    open_source(tmp_path, "other/d.jsonl").restore(state)


def test_globs_and_lists_are_read_in_order(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": name, "label": name}))
    assert labels(open_source(tmp_path, "*.jsonl", shuffle=False).take(3)) == ["a", "b", "c"]
    assert labels(open_source(tmp_path, ["c.jsonl", "[ab].jsonl"], shuffle=False).take(3)) == ["c", "a", "b"]


def test_a_home_directory_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    source(tmp_path, ROWS)
    assert len(open_source(Path("/"), "~/d.jsonl").take(3)) == 3


def test_a_missing_id_is_stable_and_distinct_across_files(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    ids = [[task.id for _, task in open_source(tmp_path, "*.jsonl", seed=seed).take(20)] for seed in (0, 1)]
    assert len(set(ids[0])) == 20
    assert set(ids[0]) == set(ids[1])


def test_two_rows_of_one_id_are_two_tasks(tmp_path):
    rows = [{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}]
    taken = source(tmp_path, rows, shuffle=False).take(2)
    assert [(task.id, task.messages[0].text) for _, task in taken] == [("a", "x"), ("a", "y")]


@settings(max_examples=150, deadline=None)
@given(
    lines=st.lists(st.integers(0, 40), max_size=30),
    ending=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    block=st.integers(1, 64),
)
def test_blocks_own_every_line_once_wherever_they_are_cut(tmp_path_factory, lines, ending, last, block):
    texts = ["" if size < 2 else json.dumps({"n": n, "pad": "x" * size}) for n, size in enumerate(lines)]
    path = tmp_path_factory.mktemp("blocks") / "d.jsonl"
    path.write_bytes((ending.join(texts) + (ending if last else "")).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl_blocks, "BLOCK_BYTES", block)
        file = jsonl_blocks.JsonlFile(DataFile(path, "d.jsonl"))
        blocks = [file.load(number) for number in range(len(file.block_bytes))]
        found = [(b.row(i)["n"], file.where(b.key(i))) for b in blocks for i in range(len(b))]
    assert found == [(n, f"{path}:{n + 1}") for n, text in enumerate(texts) if text]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"prompt": "b", "label":', "d.jsonl:2: not JSON"),
        ("[1]", "d.jsonl:2: expected a JSON object, got list"),
        ('"text"', "d.jsonl:2: expected a JSON object, got text"),
        ('{"a":' * 100_000, "d.jsonl:2: not JSON"),
        ('{"label": ' + "1" * 5000 + "}", "d.jsonl:2: not JSON: Exceeds the limit"),
        ('{"prompt": "a\0b"}', "d.jsonl:2: not JSON: Invalid control character"),
        ({"question": "x"}, "d.jsonl:2: there is no `prompt` and no `messages`; available keys: question"),
        ({}, "available keys: none"),
    ],
)
def test_a_broken_line_names_file_and_line_before_the_run_starts(tmp_path, row, message):
    with pytest.raises(DataError, match=message) as caught:
        source(tmp_path, [ROWS[0], row])
    assert caught.value.remedy


def test_a_bad_row_far_into_the_data_is_named_when_it_is_reached(tmp_path, monkeypatch):
    monkeypatch.setattr("miles_plugins.sources.start_check.CHECKED_ROWS", 5)
    data = source(tmp_path, [*ROWS, "{", *ROWS], shuffle=False)
    assert len(data.take(10)) == 10
    with pytest.raises(DataError, match="d.jsonl:11: not JSON"):
        data.take(1)


def test_skipped_rows_are_counted_logged_and_part_of_the_state(tmp_path, caplog):
    rows = ['{"prompt":"a","label":"1"}', '{"prompt":"b","label":', '{"prompt":"c","label":"3"}']
    with caplog.at_level(logging.WARNING):
        data = source(tmp_path, rows, shuffle=False, on_bad_row="skip")
        assert labels(data.take(2)) == ["1", "3"]
    assert data.metrics() == {"skipped_rows": 1.0}
    assert "d.jsonl:2: not JSON" in caplog.text
    resumed = open_source(tmp_path, shuffle=False, on_bad_row="skip")
    resumed.restore(data.state())
    assert resumed.metrics() == {"skipped_rows": 1.0}
    assert labels(resumed.take(2)) == ["1", "3"]
    assert resumed.metrics() == {"skipped_rows": 2.0}


def test_only_the_first_skipped_rows_are_logged(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        source(tmp_path, ["{"] * 50 + [ROWS[0]], shuffle=False, on_bad_row="skip").take(1)
    assert len(caplog.records) == 10
    assert caplog.records[-1].message.endswith("more are counted, not logged")


def test_a_file_of_bad_rows_only_is_an_error_even_when_they_are_skipped(tmp_path):
    (tmp_path / "good.jsonl").write_text(json.dumps(ROWS[0]))
    (tmp_path / "wrong.jsonl").write_text('{"text": "x"}\n' * 3)
    with pytest.raises(DataError, match="wrong.jsonl: not one row is a task"):
        open_source(tmp_path, "*.jsonl", on_bad_row="skip")


def test_a_file_that_goes_bad_under_a_run_ends_it(tmp_path):
    data = source(tmp_path, ROWS, on_bad_row="skip")
    (tmp_path / "d.jsonl").write_text("x" * 300)
    with pytest.raises(DataError, match="not one row is a task"):
        data.take(1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n', "d.jsonl:2: not UTF-8 text"),
        (b"", "holds no task"),
        (b"\xef\xbb\xbf\r\n \n", "holds no task"),
        (b" " * 200_000, "holds no task"),
        (b"PAR1\x15\x04\x15", "d.jsonl is Parquet, not what `jsonl` reads"),
        (gzip.compress(b'{"prompt": "a"}'), "d.jsonl is gzip"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "d.jsonl is Zstandard"),
        ('{"prompt": "a"}'.encode("utf-16"), "d.jsonl is UTF-16 text"),
        (b"ARROW1\0\0", "d.jsonl is Arrow"),
        (b"[[1], 2]", "d.jsonl: element 1: expected a JSON object, got list"),
        (b'[{"prompt": "a"},\n {"prompt": }]', "read as one JSON array, but line 2 is not JSON"),
        (b"[" * 100_000, "read as one JSON array, but it is not JSON"),
        (b"[]", "its array is empty"),
    ],
)
def test_a_file_of_another_kind_is_named_with_a_remedy(tmp_path, content, message):
    (tmp_path / "d.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        open_source(tmp_path)
    assert caught.value.remedy


def test_missing_files_folders_and_globs_name_the_remedy(tmp_path):
    (tmp_path / "d.jsonl").write_text("{}")
    for path, message in {
        "none.jsonl": "no data file .*none.jsonl",
        "*.txt": "no file matches",
        ".": "is a folder",
    }.items():
        with pytest.raises(DataError, match=message):
            open_source(tmp_path, path)
    with pytest.raises(DataError, match="names .*d.jsonl twice"):
        open_source(tmp_path, ["d.jsonl", "*.jsonl"])
    with pytest.raises(DataError) as caught:
        open_source(tmp_path, "none.jsonl")
    assert "data.path" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('{"prompt":"a\u2028b"}\n{"prompt":"c\x85d"}\n', ["a\u2028b", "c\x85d"]),
        ('\ufeff{"prompt":"a"}', ["a"]),
        ('{"prompt":"a"}\r\n\r\n{"prompt":"b"}\r\n', ["a", "b"]),
        ('{"prompt":"a\\u0000b"}', ["a\0b"]),
        ('{"prompt":"first","prompt":"last"}', ["last"]),
        ('{"prompt":"Explain the HTML tag <image>","images":null}', ["Explain the HTML tag <image>"]),
        ('  \n[{"prompt":"a"},\n{"prompt":"b"}]', ["a", "b"]),
    ],
)
def test_unusual_but_valid_files_are_read_as_they_are(tmp_path, content, texts):
    (tmp_path / "d.jsonl").write_bytes(content.encode())
    data = open_source(tmp_path, shuffle=False)
    assert [task.messages[0].text for _, task in data.take(len(texts))] == texts
    assert data.take(1)[0][0] == 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_row_of_50_mib_costs_less_than_400_mib(tmp_path):
    with (tmp_path / "d.jsonl").open("w") as file:
        file.write('{"prompt": "x", "metadata": {"image": "')
        file.writelines("A" * (1 << 20) for _ in range(50))
        file.write('"}}\n{"prompt": "y"}\n')
    script = (
        "import re, sys; from pathlib import Path\n"
        "from miles_core.kinds.base import PluginContext\n"
        "from miles_plugins.sources.jsonl import Jsonl, JsonlConfig\n"
        # not ru_maxrss, which a child inherits from its parent
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) // 1024\n"
        "before = peak()\n"
        "source = Jsonl(JsonlConfig(path='d.jsonl'), PluginContext(services={'base_dir': Path(sys.argv[1])}))\n"
        "tasks = source.take(2)\n"
        "assert {len(str(t.metadata.get('image', ''))) for _, t in tasks} == {0, 50 << 20}\n"
        "print(peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert 50 <= int(done.stdout) < 400
