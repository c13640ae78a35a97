"""The reference pages say what the source says, and what plugins rely on changes only on purpose."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from miles_core import api
from miles_core.kinds import KINDS
from miles_core.plugins.lifecycle import hookspecs

if TYPE_CHECKING:
    from pathlib import Path

GENERATE, RECORD = "docs/reference/generate.py", "docs/reference/stable.py"


def script(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=root, capture_output=True, text=True, timeout=100, check=False
    )


def test_the_pages_are_what_the_source_says(root: Path) -> None:
    done = script(root, GENERATE, "--check")
    assert done.returncode == 0, f"run `python {GENERATE}`\n{done.stdout}{done.stderr}"


def test_a_page_that_differs_is_found(root: Path, tmp_path: Path) -> None:
    for path in (root / "docs/reference").iterdir():
        if path.is_file():
            (tmp_path / path.name).write_text(
                path.read_text("utf-8").replace("Release what the episode", "Drop what it")
            )
    done = script(root, str(tmp_path / "generate.py"), "--check")
    assert done.returncode == 1
    assert "-* **`close`**: Drop what it holds." in done.stdout
    assert "+* **`close`**: Release what the episode holds." in done.stdout


def test_the_pages_name_every_hook_kind_and_public_class(root: Path) -> None:
    pages = {path.stem: path.read_text("utf-8") for path in (root / "docs/reference").glob("*.md")}
    hooks = [name for name in vars(hookspecs) if name.startswith("miles_")]
    assert len(hooks) > 10
    assert [name for name in hooks if f"\n## {name}\n" not in pages["hooks"]] == []
    assert [name for name in KINDS if f"\n## {name}\n" not in pages["kinds"]] == []
    assert [
        name for name in api.__all__ if f"`{name}`" not in pages["api"] and f"\n## {name}\n" not in pages["api"]
    ] == []


def test_what_plugins_rely_on_is_what_was_recorded(root: Path) -> None:
    done = script(root / "docs/reference", "-c", "import stable; print(*stable.lines(), sep='\\n')")
    assert done.returncode == 0, done.stderr
    now = done.stdout.splitlines()
    before = (root / "tests/docs/stable.txt").read_text("utf-8").splitlines()
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    if gone:
        pytest.fail(
            f"plugins that rely on this break; do what docs/stability.md says, then run `python {RECORD}`:\n"
            + "\n".join(f"- {line}" for line in gone)
            + "".join(f"\n+ {line}" for line in new)
        )
    assert not new, f"new in what plugins may rely on; if it is meant to stay, run `python {RECORD}`"


@pytest.mark.parametrize(
    ("docstring", "page"),
    [
        ("One ``word`` and a :class:`Step`.", "One `word` and a `Step`."),
        ("Raises:\n    DataError: if a row\n        is bad.", "Raises:\n\n* `DataError`: if a row is bad."),
        ("Fields:\n\n* ``a``: one\n  more line\n* ``b``", "Fields:\n\n* `a`: one more line\n* `b`"),
        ("Drawn::\n\n    a\n    └── b\n\nEnd.", "Drawn:\n\n```\na\n└── b\n```\n\nEnd."),
        ("x " * 70 + "``two words``", " ".join("x" * 60) + "\n" + "x " * 10 + "`two words`"),
    ],
    ids=["roles", "raises", "list", "drawing", "code spans stay whole"],
)  # fmt: skip
def test_docstrings_become_markdown(docstring: str, page: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(root / "docs/reference")
    import prose

    try:
        assert prose.markdown(docstring) == page
    finally:
        sys.modules.pop("prose")
