"""What the config, the environment and the command line may leave out or insist on."""

from __future__ import annotations

import sys

import pytest

from miles_core import __version__
from miles_core.config.schema import PluginsTable
from miles_core.errors import ConfigError, PluginError, PluginNotFound
from miles_core.plugins import Hub
from miles_core.plugins.installed.policy import PluginPolicy

FILTERS = "filters"


@pytest.fixture
def kits(site):
    """Three distributions: one declares that it fits, one declares nothing, one needs a later miles-hub."""
    site.install("fits", "1.4", {"miles.filters": {"hard": "fits:f", "only": "fits:g"}}, requires=["miles-hub>=0.1"])
    site.install("Says_Nothing", "2.0", {"miles.filters": {"hard": "says:f"}})
    site.install("newer", "3.0", {"miles.filters": {"late": "newer:f"}}, requires=["miles-hub>=99,<100"])
    return site


def _states(hub):
    return {(row.ref.distribution, row.ref.name): row.state for row in hub.listing}


def test_every_plugin_has_the_state_of_its_distribution(kits):
    assert _states(kits.hub()) == {
        ("fits", "hard"): "compatible",
        ("fits", "only"): "compatible",
        ("says-nothing", "hard"): "undeclared",
        ("newer", "late"): "incompatible",
    }


def test_an_incompatible_distribution_is_a_problem_and_says_so_when_asked_for(kits):
    hub = kits.hub()
    assert "late" not in {ref.name for ref in hub.refs()}
    assert any("newer 3.0 is not used: it needs miles-hub<100,>=99" in problem for problem in hub.problems)
    with pytest.raises(PluginNotFound, match="'late' is installed but incompatible, because it needs") as caught:
        hub.resolve(FILTERS, "late")
    assert f"this is miles-hub {__version__}" in caught.value.message
    assert "Install a version of newer" in caught.value.remedy


def test_a_written_target_is_the_user_s_own_choice(kits):
    assert kits.hub().resolve(FILTERS, "newer:f").distribution is None
    assert kits.hub(block=("newer",)).resolve(FILTERS, "newer:f").target == "newer:f"


def test_a_requirement_may_be_folded_into_two_lines(site):
    site.install("fold", "1.0", {"miles.filters": {"f": "fold:f"}}, requires=["miles-hub>=0.1,\n  <99"])
    assert (_states(site.hub()), site.hub().problems) == ({("fold", "f"): "compatible"}, ())


def test_a_malformed_requirement_is_a_problem_and_counts_as_undeclared(site):
    site.install("odd", "1.0", {"miles.filters": {"f": "odd:f"}}, requires=["miles-hub>=banana"])
    hub = site.hub()
    assert _states(hub) == {("odd", "f"): "undeclared"}
    assert "odd 1.0 declares 'miles-hub>=banana'" in hub.problems[0]


def test_a_blocked_incompatible_distribution_is_no_problem_any_more(kits):
    hub = kits.hub(block=("Newer",))
    assert _states(hub)["newer", "late"] == "blocked"
    assert not any("newer" in problem for problem in hub.problems)


def test_built_in_plugins_cannot_be_blocked(kits):
    with pytest.raises(ConfigError, match="block names miles-hub, whose plugins always take part"):
        kits.hub(block=("miles_hub",))


def test_without_autoload_only_what_is_required_takes_part(kits):
    hub = kits.hub(autoload=False, require=("FITS>=1",))
    assert {ref.distribution for ref in hub.refs()} == {"fits"}
    with pytest.raises(PluginNotFound, match="installed but off, because autoload is off") as caught:
        hub.resolve(FILTERS, "says-nothing/hard")
    assert "[plugins] require" in caught.value.remedy


def test_without_other_distributions_the_built_in_ones_remain(kits):
    policy = PluginPolicy(third_party=False)
    hub = Hub.discover(policy, path=[*sys.path])
    assert {ref.distribution for ref in hub.refs()} == {"miles-hub"}
    with pytest.raises(PluginNotFound, match="installed but off, because .*--no-plugins"):
        hub.resolve(FILTERS, "only")


def test_what_is_off_is_not_complained_about(site):
    site.install("broken", "1.0", {"miles.fliters": {"x": "m:f"}, "miles.filters": {"y": "m:f"}})
    (site.install("torn", "1.0", {}) / "entry_points.txt").write_bytes(b"\xff\xfe[miles.filters]")
    assert len(site.hub().problems) == 2
    assert site.hub(third_party=False).problems == ()


@pytest.mark.parametrize(
    ("require", "words", "remedy"),
    [
        ("acme-envs>=1.2", "acme-envs>=1.2 is not installed", "pip install 'acme-envs>=1.2'"),
        ("fitz", "fitz is not installed", "Did you mean 'fits'?"),
        ("fits>=2", "fits>=2 is needed, and fits 1.4 is installed", "pip install 'fits>=2'"),
        ("newer", "newer 3.0 is installed but incompatible", "Install a version of newer"),
        ("plain>1", "plain>1 is needed, and plain 1.0 is installed", "pip install 'plain>1'"),
    ],
)
def test_what_is_required_must_be_there_in_a_version_that_fits(kits, require, words, remedy):
    kits.install("plain", "1.0", {})
    with pytest.raises(PluginNotFound) as caught:
        kits.hub(require=(require,))
    assert words in caught.value.message
    assert "fits 1.4, newer 3.0, says-nothing 2.0" in caught.value.message
    assert remedy in caught.value.remedy


def test_requirements_that_are_met_pass_whatever_the_spelling(kits):
    kits.install("plain", "1.0", {})
    kits.hub(require=("Says.Nothing~=2.0", "fits[gpu]>1,<2", "plain", "absent; python_version < '3'"))


def test_all_that_is_missing_is_one_error(kits):
    with pytest.raises(PluginNotFound, match="fits>=2 is needed.*; absent is not installed"):
        kits.hub(require=("fits>=2", "absent"))


def test_two_requirements_on_one_distribution_both_count(kits):
    with pytest.raises(PluginNotFound, match="fits"):
        kits.hub(require=("fits>=1", "fits<1.3"))


@pytest.mark.parametrize("require", [">=1", "fits >= x", "a b"])
def test_a_malformed_requirement_of_the_config_is_an_error(kits, require):
    with pytest.raises(ConfigError, match="is no valid requirement"):
        kits.hub(require=(require,))


@pytest.mark.parametrize(("policy", "state"), [({"block": ("fits",)}, "blocked"), ({"third_party": False}, "off")])
def test_what_is_required_may_not_be_left_out(kits, policy, state):
    with pytest.raises(PluginNotFound, match=f"fits 1.4 is installed but {state}"):
        kits.hub(require=("fits",), **policy)


def test_a_preference_decides_a_collision_and_ends_the_complaint(kits):
    assert any("'hard' is offered more than once" in problem for problem in kits.hub().problems)
    hub = kits.hub(prefer=("Says_Nothing/hard",))
    assert hub.resolve(FILTERS, "hard").distribution == "says-nothing"
    assert hub.resolve(FILTERS, "fits/hard").distribution == "fits"
    assert not any("more than once" in problem for problem in hub.problems)


def test_two_preferences_for_one_name_decide_nothing(kits):
    with pytest.raises(PluginNotFound, match="2 plugins answer to 'hard'"):
        kits.hub(prefer=("fits/hard", "says-nothing/hard")).resolve(FILTERS, "hard")


def test_a_preferred_plugin_that_is_left_out_is_not_silently_replaced(kits):
    hub = kits.hub(prefer=("fits/hard",), block=("fits",))
    with pytest.raises(PluginNotFound, match="'hard' is installed but blocked"):
        hub.resolve(FILTERS, "hard")


@pytest.mark.parametrize(
    ("prefer", "error", "words"),
    [
        ("hard", ConfigError, "'hard' is not distribution/name"),
        ("fits/", ConfigError, "is not distribution/name"),
        ("fits/hrd", PluginNotFound, "fits offers only hard, only\n  -> Did you mean 'fits/hard'?"),
        ("nobody/hard", PluginNotFound, "these offer plugins: fits, newer, says-nothing"),
    ],
)
def test_an_unknown_preference_is_an_error(kits, prefer, error, words):
    with pytest.raises(error) as caught:
        kits.hub(prefer=(prefer,))
    assert words in str(caught.value)


def test_a_preferred_plugin_may_be_one_that_a_module_adds(kits):
    kits.install("computing", "1.0", {"miles": {"hooks": "computing_hooks"}})
    kits.module("computing_hooks", "def miles_register(registry): registry.add('filters', 'hard', 'm:f')")
    assert kits.hub(prefer=("computing/hard",)).resolve(FILTERS, "hard").target == "m:f"
    hub = kits.hub(prefer=("computing/soft",))
    with pytest.raises(PluginNotFound, match="computing offers only hard"):
        hub.resolve(FILTERS, "hard")


def test_strictness_makes_one_error_of_everything_that_is_wrong(kits):
    kits.install("broken", "1.0", {"miles": {"hooks": "broken_hooks"}, "miles.fliters": {"x": "m:f"}})
    kits.module("broken_hooks", "import does_not_exist_xyz")
    with pytest.raises(PluginError, match="4 problems with plugins") as caught:
        kits.hub(strict=True)
    for part in ("newer 3.0", "'hard' is offered", "unknown group miles.fliters", "does_not_exist_xyz"):
        assert part in caught.value.message


def test_strictness_has_nothing_to_say_where_nothing_is_wrong(kits):
    kits.hub(strict=True, block=("newer",), prefer=("fits/hard",))


def test_the_policy_is_that_of_config_and_environment_together():
    table = PluginsTable(block=("a",), require=("b",), prefer=("b/c",))
    assert PluginPolicy.of(table, {}) == PluginPolicy(("a",), ("b",), ("b/c",))
    variables = {"MILES_PLUGIN_AUTOLOAD": "0", "MILES_PLUGINS": "none", "MILES_STRICT_PLUGINS": "1"}
    assert PluginPolicy.of(None, variables) == PluginPolicy(autoload=False, third_party=False, strict=True)
    assert PluginPolicy.of(None, {"MILES_PLUGIN_AUTOLOAD": "False", "MILES_STRICT_PLUGINS": "no"}) == PluginPolicy(
        autoload=False
    )
    strict = PluginsTable(autoload=False, strict=True)
    assert PluginPolicy.of(strict, {"MILES_STRICT_PLUGINS": "0"}) == PluginPolicy(autoload=False, strict=True)
    assert not PluginPolicy.of(strict, {}).lenient().strict
