"""Logprobs are those of the model that Hugging Face computes, at the temperature that was sampled with."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.anyio
PROMPT = [3, 4, 5, 6, 7]
TOLERANCE = 1e-4
"""Both engines and the reference compute in float32; the largest difference seen is 4e-6."""


def found(reply: Any) -> list[float]:
    return [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
async def test_they_are_of_the_logits_over_the_temperature(served: Any, temperature: float) -> None:
    sampling = {"temperature": temperature, "max_new_tokens": 24, "ignore_eos": True}
    reply = await served.generate(PROMPT, sampling, return_logprob=True)
    expected = served.reference.logprobs(PROMPT, reply["output_ids"], temperature)
    assert found(reply) == pytest.approx(expected, abs=TOLERANCE)


async def test_a_batch_has_the_temperature_of_each_request(served: Any) -> None:
    settings = [{"temperature": one, "max_new_tokens": 12, "ignore_eos": True} for one in (0.5, 0, 1.7)]
    replies = await served.generate([PROMPT] * 3, settings, return_logprob=True)
    for reply, temperature in zip(replies, (0.5, 1.0, 1.7), strict=True):
        expected = served.reference.logprobs(PROMPT, reply["output_ids"], temperature)
        assert found(reply) == pytest.approx(expected, abs=TOLERANCE)


async def test_greedy_ones_are_raw_and_of_the_likeliest_tokens(served: Any) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    first = await served.generate(PROMPT, sampling, return_logprob=True)
    again = await served.generate(PROMPT, sampling, return_logprob=True)
    assert first["output_ids"] == again["output_ids"]
    assert found(first) == pytest.approx(served.reference.logprobs(PROMPT, first["output_ids"]), abs=TOLERANCE)


async def test_a_batch_that_is_greedy_by_top_k_ignores_the_temperature(served: Any) -> None:
    greedy = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    reply = await served.generate(PROMPT, {**greedy, "temperature": 0.5, "top_k": 1}, return_logprob=True)
    assert reply["output_ids"] == (await served.generate(PROMPT, greedy))["output_ids"]
    assert found(reply) == pytest.approx(served.reference.logprobs(PROMPT, reply["output_ids"]), abs=TOLERANCE)


@pytest.mark.parametrize("filters", [{"top_p": 0.6}, {"top_k": 3}, {"min_p": 0.3}])
async def test_filters_are_not_in_them(served: Any, filters: Any) -> None:
    sampling = {"temperature": 0.7, "max_new_tokens": 24, "ignore_eos": True, **filters}
    reply = await served.generate(PROMPT, sampling, return_logprob=True)
    expected = served.reference.logprobs(PROMPT, reply["output_ids"], 0.7)
    assert found(reply) == pytest.approx(expected, abs=TOLERANCE)


async def test_a_cached_prefix_changes_none(served: Any) -> None:
    prompt = [*PROMPT, 9, 12, 30, 21]
    sampling = {"temperature": 1.0, "max_new_tokens": 8, "ignore_eos": True}
    for cached in (0, len(prompt) - 1):
        reply = await served.generate(prompt, sampling, return_logprob=True, extra_key="a salt of this test")
        assert reply["meta_info"]["cached_tokens"] == cached
        assert found(reply) == pytest.approx(served.reference.logprobs(prompt, reply["output_ids"]), abs=TOLERANCE)
