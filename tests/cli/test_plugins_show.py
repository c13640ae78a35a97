from __future__ import annotations

import json

import pytest


def test_show_describes_every_kind_that_has_the_name(miles, site):
    done = miles("plugins", "show", "acme_exact")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout
        == f"""\
acme_exact: filter
  Keeps everything.
  target        acme_kit_mod:keep
  distribution  acme-kit 1.5, undeclared
  location      {site}
  about         Rewards and filters of Acme.
  url           https://acme.example
  named in      [[filters]]
  options       none
  a filter has
    stage = 'sample' or 'group' or 'buffer'
    def or async def keep(self, item)
    or is a plain function: def or async def fn(item)

acme_exact: reward model
  Scores exact answers.
  target        acme_kit_mod:Exact
  distribution  acme-kit 1.5, undeclared
  location      {site}
  about         Rewards and filters of Acme.
  url           https://acme.example
  named in      [[rewards]]
  options
    strip  true or false  true  ignore outer spaces
  a reward model has
    scope = 'sample' or 'group'
    def or async def score(self, items: Sequence[Trajectory])
    or is a plain function: def or async def fn(trajectory)
"""
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


def test_show_as_json_holds_the_same_and_nothing_else(miles, site):
    done = miles("plugins", "show", "acme_loud", "--json")
    (found,) = json.loads(done.stdout)["plugins"]
    assert (found["kind"], found["state"], found["location"]) == ("reward_models", "undeclared", str(site))
    assert [member["name"] for member in found["contract"]] == ["scope", "score"]
    (written,) = json.loads(miles("plugins", "show", "acme_kit_mod:keep", "--kind", "filters", "--json").stdout)[
        "plugins"
    ]
    assert (written["distribution"], written["state"], written["location"]) == (None, None, None)
    (strip,) = json.loads(miles("plugins", "show", "acme_exact", "--json").stdout)["plugins"][1]["options"]
    assert strip == {
        "name": "strip", "type": "true or false", "default": "true", "description": "ignore outer spaces",
    }  # fmt: skip


def test_show_of_what_is_left_out_says_why_and_what_to_do(miles):
    done = miles("plugins", "show", "acme_loud", "--no-plugins")
    assert done.returncode == 1
    assert "'acme_loud' is installed but off, because only miles-hub takes part" in done.stderr
    assert "Leave out --no-plugins" in done.stderr


def test_show_of_a_module_tells_its_hooks(run_miles, tmp_path):
    info = tmp_path / "watch-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: watch\nVersion: 1.0\nRequires-Dist: miles-hub\n")
    (info / "entry_points.txt").write_text("[miles]\nwatcher = watch_hooks\n")
    (tmp_path / "watch_hooks.py").write_text('"""Watches steps."""\ndef miles_step_finished(step): pass\n')
    done = run_miles(tmp_path, "plugins", "show", "watcher")
    assert done.stdout.startswith("watcher: plugin module\n  Watches steps.\n")
    assert "watch 1.0, compatible" in done.stdout
    assert "hooks         miles_step_finished" in done.stdout


def test_a_mistyped_qualified_name_suggests_the_nearest(miles):
    assert "Did you mean 'acme-kit/acme_loud'?" in miles("plugins", "show", "acme-kit/acme_lod").stderr
