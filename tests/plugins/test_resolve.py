from __future__ import annotations

import pytest

from miles_core.errors import PluginError, PluginNotFound

REWARDS = "reward_models"


@pytest.fixture
def hub(site):
    site.install("good", "1.0", {"miles.reward_models": {"exact": "good_mod:exact", "Fuzzy": "good_mod:fuzzy"}})
    site.install(
        "other", "2.0", {"miles.reward_models": {"exact": "other_mod:exact"}, "miles.filters": {"hard": "m:f"}}
    )
    site.install("a_b", "3.0", {"miles.model_bridges": {"Qwen3MoeForCausalLM": "bridges:Qwen"}})
    return site.hub()


def test_two_distributions_with_one_name_are_never_decided_by_order(hub):
    with pytest.raises(PluginNotFound) as caught:
        hub.resolve(REWARDS, "exact")
    text = str(caught.value)
    assert all(part in text for part in ("good/exact", "other/exact", "good_mod:exact", "other_mod:exact"))
    assert any("good/exact, other/exact" in problem for problem in hub.problems)


def test_the_qualified_name_decides(hub):
    assert hub.resolve(REWARDS, "other/exact").target == "other_mod:exact"
    assert hub.resolve("model_bridges", "A.B/Qwen3MoeForCausalLM").distribution == "a-b"


def test_architecture_names_are_plain_names(hub):
    ref = hub.resolve("model_bridges", "Qwen3MoeForCausalLM")
    assert (ref.target, ref.distribution, ref.version) == ("bridges:Qwen", "a-b", "3.0")


def test_names_are_matched_exactly_and_the_nearest_is_suggested(hub):
    with pytest.raises(PluginNotFound, match="installed: Fuzzy, exact") as caught:
        hub.resolve(REWARDS, "fuzzy")
    assert caught.value.remedy == "Did you mean 'Fuzzy'?"


def test_an_unknown_name_lists_what_exists(hub):
    with pytest.raises(PluginNotFound, match="no reward model is called 'my_reward'; installed: Fuzzy, exact"):
        hub.resolve(REWARDS, "my_reward")


def test_of_hundreds_of_names_the_nearest_is_suggested_and_the_first_are_listed(site):
    site.install("many", "1.0", {"miles.reward_models": {f"reward{number:03}": "m:f" for number in range(200)}})
    with pytest.raises(PluginNotFound, match="reward048, reward049, and 150 more\n") as caught:
        site.hub().resolve(REWARDS, "rewards199")
    assert caught.value.remedy == "Did you mean 'reward199'?"


def test_a_name_of_another_kind_is_pointed_out(hub):
    with pytest.raises(PluginNotFound, match="'hard' is a filter"):
        hub.resolve(REWARDS, "hard")


@pytest.mark.parametrize(("written", "target"), [("my.mod:fn", "my.mod:fn"), ("my.mod.fn", "my.mod:fn")])
def test_a_target_may_be_written_instead_of_a_name(hub, written, target):
    ref = hub.resolve(REWARDS, written)
    assert (ref.kind, ref.target, ref.distribution) == (REWARDS, target, None)


def test_a_blocked_plugin_is_not_listed_and_says_why(site, hub):
    blocking = site.hub(block=("Good",))
    assert {ref.distribution for ref in blocking.refs(REWARDS)} == {"other"}
    assert blocking.resolve(REWARDS, "exact").distribution == "other"
    with pytest.raises(PluginNotFound, match="installed but blocked") as caught:
        blocking.resolve(REWARDS, "Fuzzy")
    assert "'good'" in caught.value.remedy


def test_blocking_what_is_not_installed_is_an_error_with_a_suggestion(site, hub):
    with pytest.raises(PluginNotFound, match="'goood'") as caught:
        site.hub(block=("goood",))
    assert caught.value.remedy == "Did you mean 'good'?"


def test_an_unknown_kind_is_an_error_with_a_suggestion(hub):
    with pytest.raises(PluginError, match="no plugin kind 'reward_model'") as caught:
        hub.resolve("reward_model", "exact")
    assert caught.value.remedy == "Did you mean 'reward_models'?"
    with pytest.raises(PluginError, match="no plugin kind"):
        hub.refs("rewards")


def test_refs_come_in_one_order_whatever_the_directory_order(hub):
    assert [ref.qualified_name for ref in hub.refs(REWARDS)] == ["good/Fuzzy", "good/exact", "other/exact"]
    assert [ref.kind for ref in hub.refs()] == ["filters", "model_bridges", *[REWARDS] * 3]


def test_one_distribution_that_offers_a_name_twice_is_told_apart_by_targets(site):
    info = site.install("twice", "1.0", {})
    (info / "entry_points.txt").write_text("[miles.filters]\nsame = m:f\nsame = m:g\n")
    hub = site.hub()
    assert "filters 'same' is offered more than once, by twice 1.0. Write one of: m:f, m:g." in hub.problems[0]
    with pytest.raises(PluginNotFound, match="2 plugins answer to 'twice/same'") as caught:
        hub.resolve("filters", "twice/same")
    assert caught.value.remedy == "Write one of: m:f, m:g."


def test_a_name_that_a_left_out_module_may_add_is_pointed_out(site):
    site.install("acme", "1.0", {"miles": {"hooks": "acme_hooks"}})
    with pytest.raises(PluginNotFound, match="acme/hooks may add it, but is blocked"):
        site.hub(block=("acme",)).resolve(REWARDS, "computed")
