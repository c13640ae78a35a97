"""Routed experts: a row for each token that was an input, equal to the router of the Hugging Face model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.anyio
PROMPT = [3, 4, 5, 6, 7]
SAMPLING = {"max_new_tokens": 12, "ignore_eos": True}
only_moe = pytest.mark.parametrize("model", ["moe"], indirect=True)


@only_moe
@pytest.mark.parametrize("start", [0, 2, 5])
async def test_rows_begin_where_asked_and_end_before_the_last_token(served: Any, start: int) -> None:
    reply = await served.generate(PROMPT, SAMPLING, return_routed_experts=True, routed_experts_start_len=start)
    expected = served.reference.routes([*PROMPT, *reply["output_ids"]])[start:-1]
    np.testing.assert_array_equal(served.rows(reply), expected)


@only_moe
async def test_a_batch_has_rows_of_its_own_each(served: Any) -> None:
    replies = await served.generate([[3], [4, 5, 6], PROMPT], SAMPLING, return_routed_experts=True)
    for prompt, reply in zip([[3], [4, 5, 6], PROMPT], replies, strict=True):
        expected = served.reference.routes([*prompt, *reply["output_ids"]])[:-1]
        np.testing.assert_array_equal(served.rows(reply), expected)


@only_moe
async def test_rows_of_a_cached_prefix_are_there(served: Any) -> None:
    prompt = [*PROMPT, 20, 14, 9]
    for cached in (0, len(prompt) - 1):
        reply = await served.generate(prompt, SAMPLING, return_routed_experts=True, extra_key="salt of routing")
        assert reply["meta_info"]["cached_tokens"] == cached
        expected = served.reference.routes([*prompt, *reply["output_ids"]])[:-1]
        np.testing.assert_array_equal(served.rows(reply), expected)


@only_moe
async def test_without_output_the_prompt_has_rows(served: Any) -> None:
    reply = await served.generate(PROMPT, {"max_new_tokens": 0}, return_routed_experts=True)
    np.testing.assert_array_equal(served.rows(reply), served.reference.routes(PROMPT)[:-1])


@only_moe
@pytest.mark.parametrize("start", [-1, 6])
async def test_a_start_outside_of_the_prompt_is_refused(served: Any, start: int) -> None:
    body = {"input_ids": PROMPT, "return_routed_experts": True, "routed_experts_start_len": start}
    status, reply = await served.post("/generate", body)
    assert status == 400
    assert "routed_experts_start_len" in str(reply)
    assert (await served.post("/generate", {**body, "return_routed_experts": False}))[0] == 200


@only_moe
async def test_one_short_prompt_refuses_the_start_of_its_batch(served: Any) -> None:
    body = {"input_ids": [[3], PROMPT], "return_routed_experts": True, "routed_experts_start_len": 2}
    assert (await served.post("/generate", body))[0] == 400


@only_moe
@pytest.mark.parametrize(
    "change",
    [
        {"return_routed_experts": None},
        {"return_routed_experts": [True]},
        {"routed_experts_start_len": "1"},
        {"routed_experts_start_len": None},
        {"routed_experts_start_len": 1.5},
    ],
)
async def test_the_types_of_both_keys_are_strict(served: Any, change: Any) -> None:
    body = {"input_ids": PROMPT, "return_routed_experts": True, "routed_experts_start_len": 1, **change}
    assert (await served.post("/generate", body))[0] == 400


@pytest.mark.parametrize("model", ["dense"], indirect=True)
async def test_a_dense_model_never_answers_with_rows(served: Any) -> None:
    """SGLang leaves them out silently; the embedded engine says so. The client takes neither for routing."""
    status, reply = await served.post("/generate", {"input_ids": PROMPT, "return_routed_experts": True})
    assert status == 400 or "routed_experts" not in reply["meta_info"]
