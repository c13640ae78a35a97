"""What a plugin leaves is told from what others use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from miles_core.testing import leftovers
from miles_core.testing.leftovers import Leftovers


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Leftovers]:
    monkeypatch.setattr(leftovers, "GONE_SECONDS", 0.2)
    own, shared = tmp_path / "own", tmp_path / "shared"
    own.mkdir()
    shared.mkdir()
    return own, shared, Leftovers(own, [str(shared)])


def test_files_anywhere_and_folders_in_shared_places_are_left(places) -> None:
    own, shared, look = places
    (own / "before").write_text("x")
    before = look.present()
    (own / "empty").mkdir()
    assert look.left(before) == []
    (own / "empty" / "file").write_text("x")
    (shared / "folder").mkdir()
    assert look.left(before) == [own / "empty" / "file", shared / "folder"]
    assert look.left(look.present()) == []


def test_so_many_may_stay(places) -> None:
    own, _, look = places
    (own / "one").write_text("x")
    assert look.left(set(), at_most=1) == [own / "one"]


def test_what_another_process_has_open_is_its_own(places) -> None:
    _, shared, look = places
    path = shared / "theirs"
    code = f"f = open({str(path)!r}, 'w'); print('open', flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "open\n"
        assert look.left(set()) == []
        process.communicate("\n")
    assert look.left(set()) == [path]


def test_what_goes_meanwhile_is_not_left(places, monkeypatch: pytest.MonkeyPatch) -> None:
    own, _, look = places
    path = own / "passing"
    path.write_text("x")
    monkeypatch.setattr(leftovers.time, "sleep", lambda seconds: path.unlink(missing_ok=True))
    assert look.left(set()) == []
