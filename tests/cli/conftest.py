"""The ``miles`` command in a process of its own, beside a distribution whose plugins are good, loud and broken."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

METADATA = """\
Metadata-Version: 2.1
Name: acme-kit
Version: 1.5
Summary: Rewards and filters of Acme.
Project-URL: Homepage, https://acme.example
"""
ENTRY_POINTS = """
[miles.reward_models]
acme_exact = acme_kit_mod:Exact
acme_loud = acme_kit_loud:score
acme_broken = acme_kit_broken:score
exact_match = acme_kit_mod:Exact

[miles.filters]
acme_exact = acme_kit_mod:keep

[miles]
acme_hooks = acme_kit_broken
"""
MODULE = '''
from pydantic import BaseModel, Field


class Exact:
    """Scores exact answers.

    And more that a summary leaves out.
    """

    class Config(BaseModel, extra="forbid"):
        strip: bool = Field(True, description="ignore outer spaces")

    scope = "sample"

    def __init__(self, config, context): ...

    async def score(self, items): ...


def keep(group):
    """Keeps everything."""
    return True
'''


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("site")
    info = folder / "acme_kit-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "acme_kit_mod.py").write_text(MODULE)
    (folder / "acme_kit_loud.py").write_text("print('HELLO FROM PLUGIN')\ndef score(t):\n    return 1.0\n")
    (folder / "acme_kit_broken.py").write_text("import does_not_exist_xyz\n")
    return folder


def _run_miles(site, *argv, program=("-m", "miles_core.cli"), **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILES_")}
    command = [sys.executable, *program, *argv]
    environment = {**kept, **variables, "PYTHONPATH": str(site)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=site)


@pytest.fixture
def miles(site):
    return partial(_run_miles, site)


@pytest.fixture
def run_miles():
    """The same with another folder on the path."""
    return _run_miles
