"""Folders for a short while: those of other runs come and go in the same place."""

from __future__ import annotations

import pytest

from miles_plugins.transports import scratch
from miles_plugins.transports.scratch import Scratch


def test_a_folder_of_another_run_may_go_while_dead_ones_are_looked_for(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Scratch(tmp_path)

    class Going:
        """Says yes to a name that is gone by then."""

        def fullmatch(self, stem: str) -> bool:
            assert stem == other.path.name
            other.close()
            return True

    monkeypatch.setattr(scratch, "_NAME", Going())
    mine = Scratch(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {mine.path.name}
    mine.close()
    assert not list(tmp_path.iterdir())
