from __future__ import annotations

import pytest

from miles_core.errors import PluginError
from miles_core.kinds import KINDS
from miles_core.scaffold.names import kind_of, names_of

REWARDS = KINDS["reward_models"]


@pytest.mark.parametrize("plural", KINDS)
def test_a_kind_is_named_by_its_singular_or_plural_in_any_spelling(plural: str) -> None:
    singular = KINDS[plural].singular
    for text in (plural, singular, singular.replace(" ", "_"), singular.replace(" ", "-"), singular.upper()):
        assert kind_of(text) is KINDS[plural]


@pytest.mark.parametrize(("typo", "meant"), [("rewad_model", "reward_model"), ("model_bridgse", "model_bridge")])
def test_an_unknown_kind_is_an_error_with_the_nearest(typo: str, meant: str) -> None:
    with pytest.raises(PluginError, match=f"no plugin kind '{typo}'; kinds: environment, .*\n.*Did you mean '{meant}'"):
        kind_of(typo)


@pytest.mark.parametrize(
    ("plugin", "distribution", "module", "class_name"),
    [
        ("short", "miles-short", "short", "Short"),
        ("short_answer", "miles-short-answer", "short_answer", "ShortAnswer"),
        ("short-answer", "miles-short-answer", "short_answer", "ShortAnswer"),
        ("Qwen3MoeForCausalLM", "miles-qwen3-moe-for-causal-lm", "qwen3_moe_for_causal_lm", "Qwen3MoeForCausalLM"),
        ("HTTPLog2", "miles-http-log2", "http_log2", "HTTPLog2"),
        ("x", "miles-x", "x", "X"),
    ],
)
def test_the_names_follow_from_the_plugins(plugin: str, distribution: str, module: str, class_name: str) -> None:
    names = names_of(REWARDS, plugin)
    assert (names.distribution, names.module, names.class_name) == (distribution, module, class_name)
    assert names.package == distribution.replace("-", "_")
    assert all(name.isidentifier() for name in (names.package, names.module, names.class_name))


def test_a_distribution_of_ones_own_names_the_package() -> None:
    names = names_of(REWARDS, "short", "Acme.RL-Plugins")
    assert (names.distribution, names.package, names.module) == ("Acme.RL-Plugins", "acme_rl_plugins", "short")


@pytest.mark.parametrize(
    "plugin", ["", "1st", "_x", "x_", "x-", "a b", "a.b", "a/b", "a:b", "ü", "../x", "x\n", "x" * 41]
)
def test_a_malformed_plugin_name_is_refused(plugin: str) -> None:
    with pytest.raises(PluginError, match="a plugin's name has"):
        names_of(REWARDS, plugin)


@pytest.mark.parametrize("plugin", ["class", "lambda", "import"])
def test_a_plugin_whose_module_could_not_be_imported_is_refused(plugin: str) -> None:
    with pytest.raises(PluginError, match=f"'{plugin}', which is a keyword"):
        names_of(REWARDS, plugin)


@pytest.mark.parametrize("distribution", ["", "-x", "x-", "a b", "a/b", "../x", "ü", "x\n"])
def test_a_malformed_distribution_name_is_refused(distribution: str) -> None:
    with pytest.raises(PluginError, match="a distribution's name has ASCII"):
        names_of(REWARDS, "short", distribution)


@pytest.mark.parametrize("distribution", ["3d-envs", "class"])
def test_a_distribution_whose_package_could_not_be_imported_is_refused(distribution: str) -> None:
    with pytest.raises(PluginError, match="which Python cannot import"):
        names_of(REWARDS, "short", distribution)


@pytest.mark.parametrize(
    ("distribution", "taken"),
    [
        ("numpy", "a distribution called 'numpy'"),
        ("Miles_Hub", "a distribution called 'Miles_Hub'"),
        ("json", "a module called 'json'"),
        ("miles-core", "a module called 'miles_core'"),
    ],
)
def test_what_is_installed_already_is_never_hidden(distribution: str, taken: str) -> None:
    with pytest.raises(PluginError, match=f"{taken} is installed"):
        names_of(REWARDS, "short", distribution)
