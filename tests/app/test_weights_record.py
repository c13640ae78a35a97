"""The file that says what the engines of a run serve now."""

from __future__ import annotations

from pathlib import Path

import pytest

from miles_core.app.weights_record import EngineRecord, WeightsRecord, read_record, write_record
from miles_core.errors import CheckpointError
from miles_core.types import Manifest
from miles_core.weights.publish import PublishResult

ENGINES = (EngineRecord("engine-0", "http://127.0.0.1:1", True), EngineRecord("engine-1", "http://127.0.0.1:2", False))


def published(version: int, **checksums: str) -> PublishResult:
    return PublishResult(Manifest(version, 2, 8, checksums), {"transfer": 0.5}, {}, "memory", "shared memory")


def test_a_record_is_read_as_it_was_written_and_replaced_whole(tmp_path: Path) -> None:
    for version in (1, 2):
        record = WeightsRecord(0, ENGINES).updated(published(version, **{"w[0:2]:bfloat16": "ab" * 16}))
        write_record(tmp_path, record)
        assert read_record(tmp_path) == record
    assert record.version == 2
    assert record.transport == "memory"
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["manifest.json"]


def test_engines_that_come_up_later_add_their_boxes_to_those_of_the_version() -> None:
    first = WeightsRecord(0, ENGINES).updated(published(1, a="1", b="2"))
    again = first.updated(published(1, b="2", c="3"))
    assert again.checksums == {"a": "1", "b": "2", "c": "3"}
    assert again.updated(published(2, a="4")).checksums == {"a": "4"}


def test_a_run_without_a_record_says_what_to_wait_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="its engines have no weights yet"):
        read_record(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"engines": [], "version": 1, "what": 2}', '{"engines": [3]}'])
def test_a_damaged_record_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_record(tmp_path)
