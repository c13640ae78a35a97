from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Document:
    path: Path
    text: str

    def blocks(self, language: str) -> list[str]:
        return [body for found, body in FENCE.findall(self.text) if found == language]

    def files(self, language: str) -> dict[str, str]:
        """Blocks that begin with a comment that names a file, by that name."""
        named = ((re.match(r"# (\S+\.\w+)\n", block), block) for block in self.blocks(language))
        return {match[1]: block for match, block in named if match}

    def commands(self) -> list[list[str]]:
        """Every ``miles`` command line of blocks without a language, in words, without what stands before it."""
        lines = "\n".join(self.blocks("")).replace("\\\n", " ").splitlines()
        words = [shlex.split(line, comments=True) for line in lines if re.match(r"(PYTHONPATH=\. )?miles ", line)]
        return [line[line.index("miles") + 1 :] for line in words]

    @staticmethod
    def overrides(words: list[str]) -> list[str]:
        """The ``--set`` values of a command line."""
        return [value for flag, value in itertools.pairwise(words) if flag == "--set"]

    def table_cells(self) -> list[str]:
        """Code spans in the first column of tables."""
        rows = [line for line in self.text.splitlines() if line.startswith("| ")]
        return [span for row in rows for span in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def read(name: str) -> Document:
    path = ROOT / name
    return Document(path, path.read_text("utf-8"))


DOCUMENTS = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("README.md")),
]


@pytest.fixture(params=DOCUMENTS)
def document(request: pytest.FixtureRequest) -> Document:
    """Each document of the repository in turn."""
    return read(request.param)


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture
def first_plugin() -> Document:
    return read("docs/first-plugin.md")


@pytest.fixture
def migrating() -> Document:
    return read("docs/migrating.md")


@pytest.fixture
def runs() -> Document:
    return read("docs/runs.md")


@pytest.fixture
def config() -> Document:
    return read("docs/config.md")


@pytest.fixture
def readme() -> Document:
    return read("README.md")
