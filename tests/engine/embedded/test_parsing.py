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
        ({"sampling_params": {"n": 2}}, "does not support n"),
        ({"sampling_params": []}, "sampling_params must be an object"),
        ({"stream": True}, "does not support stream"),
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
        ({"input_ids": [3] * 128}, "a prompt of 128 tokens leaves no room for output in a context of 128"),
        ({"routed_experts_start_len": 4, "return_routed_experts": True}, "must be in [0, 3], within the prompt; got 4"),
        ({"sampling_params": {"stop_token_ids": [40]}}, "stop_token_ids must be in [0, 40); got 40"),
        ({"sampling_params": {"stop_token_ids": [2**80]}}, "stop_token_ids must be in [0, 40)"),
        ({"sampling_params": {"min_new_tokens": 2**70, "max_new_tokens": 2**71}}, "the context has 128 tokens"),
        ({"input_ids": None, "text": "\ud800"}, "text cannot be encoded"),
        ({"rid": 5}, "rid must be a string"),
        ({"return_logprob": "yes"}, "return_logprob must be true or false"),
        ({"extra_key": 7}, "extra_key must be a string"),
        ({"input_ids": [[3], [4]], "rid": "x"}, "rid of a batch must be a list of 2"),
        ({"input_ids": [[3], [4]], "rid": ["x"]}, "one entry per prompt, 2; got 1"),
    ],
)
def test_an_invalid_body_is_refused_naming_key_and_value(change: Any, message: str, tokenizer: Any) -> None:
    with pytest.raises(EngineRequestError, match=re.escape(message)):
        parse_generate({"input_ids": [3, 4, 5], **change}, tokenizer, LIMITS)


def test_unknown_top_level_keys_and_defaults_of_unsupported_ones_are_ignored(tokenizer: Any) -> None:
    body = {"input_ids": [3], "stream": False, "logprob_start_len": -1, "image_data": None, "priority": 3, "new": {}}
    [spec], batched = parse_generate(body, tokenizer, LIMITS)
    assert spec.prompt.tolist() == [3]
    assert not batched


def test_requests_without_a_rid_get_different_ones(tokenizer: Any) -> None:
    specs, batched = parse_generate({"input_ids": [[3], [4]]}, tokenizer, LIMITS)
    assert batched
    assert len({spec.rid for spec in specs}) == 2


def test_the_longest_prompt_that_leaves_one_token_is_accepted(tokenizer: Any) -> None:
    [spec], _ = parse_generate({"input_ids": [3] * 127}, tokenizer, LIMITS)
    assert len(spec.prompt) == 127
