from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

NO_METADATA = """
import importlib.metadata
importlib.metadata.distributions = lambda **arguments: []
from miles_core.cli.main import main
main(["plugins", "list"])
"""


def test_list_is_one_aligned_row_per_plugin_with_warnings_on_stderr(miles):
    done = miles("plugins", "list")
    assert done.returncode == 0
    header, *rows = [line.split() for line in done.stdout.splitlines()]
    assert header == ["KIND", "NAME", "DISTRIBUTION", "VERSION", "STATE", "TARGET"]
    assert ["reward_models", "acme_broken", "acme-kit", "1.5", "undeclared", "acme_kit_broken:score"] in rows
    assert ["hooks", "acme_hooks", "acme-kit", "1.5", "computed", "acme_kit_broken"] in rows
    assert any(row[:3] == ["environments", "lookup", "miles-hub"] for row in rows)
    assert "warning: reward_models 'exact_match' is offered more than once" in done.stderr
    assert "acme-kit/exact_match, miles-hub/exact_match" in done.stderr
    assert done.stderr.endswith("run `miles plugins doctor` for all of it\n")


def test_list_as_json_holds_the_same_and_nothing_else_is_on_stdout(miles):
    listing = json.loads(miles("plugins", "list", "--kind", "filters", "--json").stdout)
    names = {(row["name"], row["distribution"], row["state"]) for row in listing["plugins"]}
    assert ("acme_exact", "acme-kit", "undeclared") in names
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


def test_list_ends_with_what_there_is_and_what_to_do_next(miles):
    assert (
        "plugins, from miles-hub and 1 other distribution; `miles plugins show NAME`" in miles("plugins", "list").stdout
    )
    bare = miles("plugins", "list", "--no-plugins")
    assert "plugins, all from miles-hub" not in bare.stdout
    assert "left out: 6 off, because only miles-hub takes part (--no-plugins)" in bare.stdout
    assert bare.stderr == ""
    hooks = miles("plugins", "list", "--kind", "hooks", "--json")
    assert [row["state"] for row in json.loads(hooks.stdout)["plugins"]] == ["computed"]


def test_the_environment_may_switch_autoload_off(miles):
    listing = json.loads(miles("plugins", "list", "--json", MILES_PLUGIN_AUTOLOAD="0").stdout)
    (reason,) = {row["reason"] for row in listing["plugins"] if row["distribution"] == "acme-kit"}
    assert "autoload is off" in reason


def test_list_shows_everything_and_fails_where_strictness_is_asked_for(miles):
    done = miles("--strict-plugins", "plugins", "list")
    assert done.returncode == 1
    assert "acme_exact" in done.stdout
    assert "exact_match" in done.stderr
    assert miles("plugins", "list", "--no-plugins", "--strict-plugins").returncode == 0


def test_list_of_a_hundred_plugins_with_a_hundred_problems_is_short_on_words(run_miles, tmp_path):
    info = tmp_path / "many-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: many\nVersion: 1.0\n")
    lines = "".join(f"plugin_{number} = m:f\nplugin_{number} = m:g\n" for number in range(100))
    (info / "entry_points.txt").write_text(f"[miles.filters]\n{lines}\x1b[31mred = m:f\n")
    done = run_miles(tmp_path, "plugins", "list")
    assert "--kind KIND lists fewer" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr.count("warning:") == 5
    assert "... and 95 more" in done.stderr


def test_list_without_any_plugin_says_how_to_get_one(miles):
    done = miles(program=("-c", NO_METADATA))
    assert done.stdout.startswith("no plugins; install a distribution that offers one")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (('plugins.require=["acme-kit>=2"]',), "acme-kit>=2 is needed, and acme-kit 1.5 is installed"),
        (('plugins.require=["acme-kit"]', "--no-plugins"), "acme-kit 1.5 is installed but off"),
        (('plugins.block=["acme-kti"]',), "Did you mean 'acme-kit'?"),
        (("plugins.strict=true",), "'exact_match' is offered more than once"),
    ],
)
def test_a_run_does_not_start_where_its_plugins_are_not_as_asked_for(miles, tmp_path, flags, words):
    config = str(Path(__file__).parents[2] / "examples" / "quickstart" / "config.toml")
    done = miles("train", config, "--set", f"run.dir={tmp_path}", "--set", *flags)
    assert done.returncode == 1
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_the_terminal_cannot_show_is_escaped(run_miles, tmp_path):
    info = tmp_path / "acme-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[miles.filters]\nüber = m:f\n", "utf-8")
    done = run_miles(tmp_path, "plugins", "list", "--kind", "filters", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xfcber" in done.stdout
