"""The body of ``/generate``: what is refused, and with which words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from miles_core.engine.embedded.parsing import Limits, parse_generate
from miles_core.errors import EngineRequestError

LIMITS = Limits(vocab_size=40, context_length=128, routed_experts=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling_params": {"temprature": 1}}, "unknown sampling_params key 'temprature'"),
        ({"sampling_params": {"regex": "a"}}, "does not support regex"),
        ({"sampling_params": {"n": 0}}, "n must be an integer of at least 1"),
        ({"sampling_params": []}, "sampling_params must be an object"),
        ({"stream": "yes"}, "stream must be true or false"),
        ({"image_data": ["x"]}, "does not support image_data"),
        ({"logprob_start_len": 0}, "does not support logprob_start_len"),
        ({"input_ids": [3, 40]}, r"token ids must be in [0, 40); got 40"),
        ({"input_ids": [-1, 3]}, r"token ids must be in [0, 40); got -1"),
        ({"input_ids": [2**70]}, f"got {2**70}"),
        ({"input_ids": [3.0]}, "list of integers"),
        ({"input_ids": [True]}, "list of integers"),
        ({"input_ids": []}, "non-empty"),
        ({"input_ids": [[]]}, "non-empty"),
        ({"input_ids": "abc"}, "list of integers"),
        ({"input_ids": None}, "either text or input_ids"),
        ({"text": "abc"}, "either text or input_ids"),
        ({"input_ids": [3] * 122}, "a prompt of 122 tokens leaves no room for output in a context of 128"),
        ({"sampling_params": {"max_new_tokens": 126}}, "a prompt of 3 tokens and max_new_tokens = 126 are more than"),
        ({"routed_experts_start_len": 4, "return_routed_experts": True}, "must be in [0, 3], within the prompt; got 4"),
        ({"sampling_params": {"max_new_tokens": 2**71}}, "more than the context has: 128"),
        ({"input_ids": [[3], [4]], "sampling_params": [{"n": 2}, {}]}, "n must be the same for all prompts of a batch"),
        ({"input_ids": None, "text": "\ud800"}, "text cannot be encoded"),
        ({"rid": 5}, "rid must be a string"),
        ({"return_logprob": "yes"}, "return_logprob must be true or false"),
        ({"extra_key": 7}, "extra_key must be a string"),
        ({"return_routed_experts": None}, "return_routed_experts must be true or false"),
        ({"routed_experts_start_len": None}, "routed_experts_start_len must be an integer"),
        ({"input_ids": [[3], [4]], "rid": ["x"]}, "one entry per prompt, 2; got 1"),
    ],
)
def test_an_invalid_body_is_refused_naming_key_and_value(change: Any, message: str, tokenizer: Any) -> None:
    with pytest.raises(EngineRequestError, match=re.escape(message)):
        parse_generate({"input_ids": [3, 4, 5], **change}, tokenizer, LIMITS)


def test_unknown_top_level_keys_and_defaults_of_unsupported_ones_are_ignored(tokenizer: Any) -> None:
    body = {"input_ids": [3], "stream": False, "logprob_start_len": -1, "image_data": None, "priority": 3, "new": {}}
    parsed = parse_generate(body, tokenizer, LIMITS)
    assert parsed.specs[0].prompt.tolist() == [3]
    assert not parsed.batched
    assert not parsed.stream


def test_requests_without_a_rid_get_different_ones(tokenizer: Any) -> None:
    parsed = parse_generate({"input_ids": [[3], [4]]}, tokenizer, LIMITS)
    assert parsed.batched
    assert len({spec.rid for spec in parsed.specs}) == 2


def test_a_batch_brings_a_value_for_each_prompt_or_one_for_all(tokenizer: Any) -> None:
    body = {"input_ids": [[3], [4]], "rid": "x", "extra_key": ["a", ""], "return_logprob": [True, False]}
    first, second = parse_generate(body, tokenizer, LIMITS).specs
    assert (first.rid, first.extra_key, first.return_logprob) == ("x_0", "a", True)
    assert (second.rid, second.extra_key, second.return_logprob) == ("x_1", None, False)


def test_several_samples_of_a_prompt_follow_each_other_and_have_rids_of_their_own(tokenizer: Any) -> None:
    body = {"input_ids": [[3], [4]], "rid": ["x", "y"], "sampling_params": {"n": 2}}
    parsed = parse_generate(body, tokenizer, LIMITS)
    assert [spec.prompt.tolist() for spec in parsed.specs] == [[3], [3], [4], [4]]
    assert len({spec.rid for spec in parsed.specs} | {"x", "y"}) == 6
    assert parse_generate({"input_ids": [3], "sampling_params": {"n": 2}}, tokenizer, LIMITS).batched


def test_stop_tokens_that_the_model_does_not_have_are_left_out(tokenizer: Any) -> None:
    body = {"input_ids": [3], "sampling_params": {"stop_token_ids": [7, 40, -1, 2**80]}}
    assert parse_generate(body, tokenizer, LIMITS).specs[0].sampling.stop_token_ids == (7,)


def test_a_start_of_routing_that_nobody_asked_for_is_not_held_against_the_prompt(tokenizer: Any) -> None:
    assert parse_generate({"input_ids": [3], "routed_experts_start_len": 9}, tokenizer, LIMITS).specs


def test_the_longest_prompt_that_leaves_one_token_is_accepted(tokenizer: Any) -> None:
    assert len(parse_generate({"input_ids": [3] * 121}, tokenizer, LIMITS).specs[0].prompt) == 121
