"""``sampling_params``: SGLang's names and defaults, and an error for everything else."""

from __future__ import annotations

from typing import Any

import pytest

from miles_core.engine.embedded.sampling_params import ALL_TOKENS, SamplingOptions, parse_sampling
from miles_core.errors import EngineRequestError
from miles_core.types import SamplingParams


def test_defaults_are_sglangs() -> None:
    options = parse_sampling({})
    assert options == SamplingOptions(max_new_tokens=128, temperature=1.0, top_p=1.0, top_k=ALL_TOKENS, min_p=0.0)
    assert options.skip_special_tokens
    assert not options.no_stop_trim


def test_what_our_own_client_sends_is_understood() -> None:
    wire = SamplingParams(temperature=0.7, max_new_tokens=3, stop_token_ids=(4,), sampling_seed=2**63 - 1).to_wire()
    options = parse_sampling(wire)
    assert options.sampling_seed == 2**63 - 1
    assert options.stop_token_ids == (4,)


@pytest.mark.parametrize("top_k", [-1, 1 << 30])
def test_top_k_of_minus_one_or_huge_means_all(top_k: int) -> None:
    assert parse_sampling({"top_k": top_k}).top_k == ALL_TOKENS


def test_null_and_default_values_of_unsupported_keys_are_accepted() -> None:
    parse_sampling({"n": 1, "regex": None, "repetition_penalty": 1.0, "logit_bias": None, "temperature": None})


def test_an_unknown_key_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(EngineRequestError, match=r"unknown sampling_params key 'temprature'(.|\n)*'temperature'"):
        parse_sampling({"temprature": 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [("beam_width", 2), ("regex", "a+"), ("frequency_penalty", 0.5), ("logit_bias", {"3": 1}), ("ebnf", "x")],
)
def test_a_known_but_unsupported_key_says_so(key: str, value: Any) -> None:
    with pytest.raises(EngineRequestError, match=f"does not support {key}"):
        parse_sampling({key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", 0),
        ("top_k", 1.5),
        ("min_p", -1),
        ("max_new_tokens", -1),
        ("n", 0),
        ("max_new_tokens", 1.0),
        ("min_new_tokens", -1),
        ("stop", [""]),
        ("stop", 3),
        ("stop", "a\ud800"),
        ("stop", ["a"] * 33),
        ("stop_token_ids", [1.0]),
        ("stop_token_ids", 5),
        ("ignore_eos", 1),
        ("sampling_seed", "x"),
        ("sampling_seed", 2**63),
    ],
)
def test_a_bad_value_is_refused_with_its_key_and_value(key: str, value: Any) -> None:
    with pytest.raises(EngineRequestError, match=f"{key} must be.*got"):
        parse_sampling({key: value})


def test_null_as_the_bound_on_new_tokens_means_none() -> None:
    assert parse_sampling({"max_new_tokens": None, "min_new_tokens": 500}).max_new_tokens is None


def test_min_new_tokens_above_the_maximum_is_refused() -> None:
    with pytest.raises(EngineRequestError, match="5 > 4"):
        parse_sampling({"min_new_tokens": 5, "max_new_tokens": 4})
