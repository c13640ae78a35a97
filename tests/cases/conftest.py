"""A folder with hand-made distributions, and the ``miles`` command in a process that finds them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from miles_core.testing.site import Site

if TYPE_CHECKING:
    from pathlib import Path


class User(Site):
    """Installs packages and calls ``miles``, with the folder first on the path and others of its own behind."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = [str(folder)]

    def miles(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(self.path), **environment}
        return subprocess.run(
            [sys.executable, "-m", "miles_core.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.folder,
            env=variables,
        )

    def rows(self, distribution: str) -> list[dict[str, Any]]:
        """What ``miles plugins list --json`` says of a distribution."""
        listing = json.loads(self.miles("plugins", "list", "--json").stdout)
        return [row for row in listing["plugins"] if row["distribution"] == distribution]


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path / "site")
