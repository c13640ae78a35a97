from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.config.describe import toml_value
from miles_core.config.load import load_config
from miles_core.config.overrides import apply_overrides
from miles_core.errors import ConfigError


def _set(document, *overrides):
    apply_overrides(document, overrides)
    return document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("-0.5", -0.5),
        ("1e-3", 1e-3),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"7"', "7"),
        ('{ env = "KEY" }', {"env": "KEY"}),
        ("plain text", "plain text"),
        ("Qwen/Qwen3-30B", "Qwen/Qwen3-30B"),
        ("a=b", "a=b"),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_a_value_is_toml_where_possible_and_text_otherwise(text, value):
    assert _set({}, f"a.b={text}") == {"a": {"b": value}}


def test_paths_reach_into_arrays_of_tables_and_the_next_index_appends():
    document = {"rewards": [{"use": "a"}]}
    _set(document, "rewards.0.weight=2", "rewards.1.use=b", "rewards.1.weight=3")
    assert document == {"rewards": [{"use": "a", "weight": 2}, {"use": "b", "weight": 3}]}


@pytest.mark.parametrize("key", ["²", "9" * 5000, "-1"])
def test_what_only_looks_like_an_index_is_a_clear_error(key):
    with pytest.raises(ConfigError, match="expected an index"):
        _set({"rewards": [{"use": "a"}]}, f"rewards.{key}.weight=1")


def test_the_last_of_several_wins_and_whole_values_can_be_replaced():
    assert _set({"a": {"b": [1, 2]}}, "a.b.0=5", "a.b.2=7", "a.b.0=6") == {"a": {"b": [6, 2, 7]}}
    assert _set({"a": {"b": 1}}, "a={ c = 2 }") == {"a": {"c": 2}}


def test_a_table_that_the_file_leaves_out_starts_from_its_default(write_config):
    config = load_config(write_config(), ["advantage.eps=0.1", "losses.0.clip_low=0.3", "trackers.1.use=wandb"]).config
    assert (config.advantage.use, config.advantage.options) == ("grpo", {"eps": 0.1})
    assert (config.losses[0].use, config.losses[0].options) == ("ppo_clip", {"clip_low": 0.3})
    assert [tracker.use for tracker in config.trackers] == ["jsonl", "wandb"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps", "expected a dotted key, '=' and a value"),
        ("a..b=1", "expected a dotted key"),
        ("=1", "expected a dotted key"),
        ("run.steps.more=1", "run.steps is 3, which has no keys"),
        ("rewards.5.weight=1", "expected an index from 0 to 2 .*; got '5'"),
        ("rewards.first.weight=1", "expected an index from 0 to 2 .*; got 'first'"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_and_quoted(write_config, override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(write_config(), [override])
    assert f"--set {override}" in caught.value.message


def test_a_mistyped_override_is_an_unknown_key_of_that_table(write_config):
    with pytest.raises(ConfigError, match=r"--set run\.stps=5.*\n.*run\.stps: unknown key; did you mean 'steps'"):
        load_config(write_config(), ["run.stps=5"])


SCALARS = st.one_of(st.integers(-(2**60), 2**60), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))


@settings(max_examples=50, deadline=None)
@given(st.recursive(SCALARS | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=6))
def test_a_value_written_as_toml_is_read_back_unchanged(value):
    assert _set({}, f"key={toml_value(value)}") == {"key": value}
