from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

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
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-kit\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "acme_kit_mod.py").write_text(MODULE)
    (folder / "acme_kit_loud.py").write_text("print('HELLO FROM PLUGIN')\ndef score(t):\n    return 1.0\n")
    (folder / "acme_kit_broken.py").write_text("import does_not_exist_xyz\n")
    return folder


@pytest.fixture
def miles(site):
    def miles(*argv, program=("-m", "miles_core.cli")):
        environment = {**os.environ, "PYTHONPATH": str(site)}
        environment.pop("MILES_TRACEBACK", None)
        command = [sys.executable, *program, *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=site)

    return miles


def test_list_is_one_aligned_row_per_plugin_with_warnings_on_stderr(miles):
    done = miles("plugins", "list")
    assert done.returncode == 0
    header, *rows = [line.split() for line in done.stdout.splitlines()]
    assert header == ["KIND", "NAME", "DISTRIBUTION", "VERSION", "STATE", "TARGET"]
    assert ["reward_models", "acme_broken", "acme-kit", "1.5", "discovered", "acme_kit_broken:score"] in rows
    assert ["hooks", "acme_hooks", "acme-kit", "1.5", "computed", "acme_kit_broken"] in rows
    assert any(row[:3] == ["environments", "lookup", "miles-hub"] for row in rows)
    assert "warning: reward_models 'exact_match' is offered more than once" in done.stderr
    assert "acme-kit/exact_match, miles-hub/exact_match" in done.stderr


def test_list_as_json_holds_the_same_and_nothing_else_is_on_stdout(miles):
    listing = json.loads(miles("plugins", "list", "--kind", "filters", "--json").stdout)
    names = {(row["name"], row["distribution"], row["state"]) for row in listing["plugins"]}
    assert ("acme_exact", "acme-kit", "discovered") in names
    assert {row["kind"] for row in listing["plugins"]} == {"filters"}
    assert any("exact_match" in problem for problem in listing["problems"])


def test_an_unknown_kind_is_an_error_with_a_suggestion(miles):
    done = miles("plugins", "list", "--kind", "filter")
    assert done.returncode == 1
    assert "Did you mean 'filters'?" in done.stderr


def test_list_imports_no_plugin_and_nothing_heavy(miles):
    script = (
        "import sys\nfrom miles_core.cli.main import main\n"
        "try:\n    main(['plugins', 'list'])\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = miles(program=("-c", script))
    assert done.returncode == 0
    assert "acme_exact" in done.stdout
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "miles_core.plugins.hub" in loaded
    heavy = {"torch", "transformers", "numpy", "pydantic", "rich", "anyio"}
    assert not loaded & {*heavy, "acme_kit_mod", "acme_kit_loud", "acme_kit_broken", "miles_plugins"}


def test_list_costs_little_more_than_the_libraries_it_stands_on(miles):
    def cpu_seconds(*program):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert miles(program=program).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def is_cheap():
        libraries = cpu_seconds("-c", "import cyclopts, pluggy, importlib.metadata")
        return cpu_seconds("-m", "miles_core.cli", "plugins", "list") < 1.8 * libraries

    # A ratio, and the best of several: other processes may keep the machine busy.
    assert any(is_cheap() for _ in range(10))


def test_show_describes_every_kind_that_has_the_name(miles):
    done = miles("plugins", "show", "acme_exact")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "acme_exact: filter\n"
        "  Keeps everything.\n"
        "  target        acme_kit_mod:keep\n"
        "  distribution  acme-kit 1.5\n"
        "  options       none\n"
        "\n"
        "acme_exact: reward model\n"
        "  Scores exact answers.\n"
        "  target        acme_kit_mod:Exact\n"
        "  distribution  acme-kit 1.5\n"
        "  options\n"
        "    strip  true or false  true  ignore outer spaces\n"
    )


def test_show_takes_a_kind_and_a_written_target(miles):
    assert miles("plugins", "show", "acme_exact", "--kind", "filters").stdout.count("acme_exact:") == 1
    done = miles("plugins", "show", "acme_kit_mod:keep", "--kind", "filters")
    assert "Keeps everything." in done.stdout
    assert "--kind" in miles("plugins", "show", "acme_kit_mod:keep").stderr


def test_show_keeps_a_plugin_s_prints_off_stdout(miles):
    done = miles("plugins", "show", "acme_loud")
    assert "HELLO" not in done.stdout
    assert "HELLO FROM PLUGIN" in done.stderr


def test_show_of_a_broken_plugin_quotes_the_cause_and_names_the_distribution(miles):
    done = miles("plugins", "show", "acme_broken")
    assert done.returncode == 1
    for part in ("acme_broken", "acme-kit 1.5", "ModuleNotFoundError", "does_not_exist_xyz"):
        assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in miles("plugins", "show", "acme_broken", "--traceback").stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("acme_exct", "Did you mean 'acme_exact'?"),
        ("exact_match", "acme-kit/exact_match, miles-hub/exact_match"),
    ],
)
def test_show_of_an_unknown_or_ambiguous_name_says_what_to_write(miles, name, words):
    done = miles("plugins", "show", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
