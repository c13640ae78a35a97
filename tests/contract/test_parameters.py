"""Which requests are refused, and which strange ones are not."""

from __future__ import annotations

from typing import Any

import pytest

from miles_core.engine.http import server_message

pytestmark = pytest.mark.anyio

REFUSED_SAMPLING = [
    {"temprature": 1},
    {"temperature": "1"},
    {"temperature": -1},
    {"temperature": True},
    {"top_p": 0},
    {"top_p": 1.5},
    {"top_k": 0},
    {"top_k": -2},
    {"top_k": 2.0},
    {"min_p": 2},
    {"max_new_tokens": -1},
    {"max_new_tokens": 1.5},
    {"max_new_tokens": "3"},
    {"max_new_tokens": True},
    {"min_new_tokens": -1},
    {"min_new_tokens": 5, "max_new_tokens": 3},
    {"stop": 5},
    {"stop": ["a", 3]},
    {"stop": ["a"] * 33},
    {"stop_token_ids": 5},
    {"stop_token_ids": ["a"]},
    {"stop_token_ids": [1.0]},
    {"ignore_eos": "yes"},
    {"ignore_eos": 1},
    {"skip_special_tokens": "x"},
    {"sampling_seed": "a"},
    {"sampling_seed": 2**63},
    {"frequency_penalty": 3},
    {"repetition_penalty": 0},
]
ACCEPTED_SAMPLING = [
    dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "ignore_eos", "no_stop_trim", "stop", "stop_token_ids")),
    {"top_k": -1},
    {"top_k": 1 << 30},
    {"stop": []},
    {"stop_token_ids": []},
    {"sampling_seed": -(2**63)},
    {"sampling_seed": 2**63 - 1},
    {"n": 1},
    {"beam_width": 1},
    {"json_schema": None, "regex": None, "repetition_penalty": 1.0, "frequency_penalty": 0},
]
REFUSED_BODIES = [
    {"input_ids": []},
    {"input_ids": None},
    {"input_ids": "abc"},
    {"input_ids": [1.0]},
    {"input_ids": [True, False]},
    {"input_ids": [3, [4]]},
    {"input_ids": [3, None]},
    {"input_ids": None, "text": 5},
    {"input_ids": None, "text": [5]},
    {"sampling_params": "a"},
    {"input_ids": [[3], [4]], "sampling_params": [{"max_new_tokens": 1}, None]},
    {"input_ids": [[3], [4]], "sampling_params": [{"n": 2}, {"n": 1}]},
    {"rid": 5},
    {"input_ids": [[3], [4]], "rid": ["a"]},
    {"input_ids": [[3], [4]], "rid": ["a", "a"]},
    {"return_logprob": "yes"},
    {"return_logprob": 1},
    {"extra_key": 5},
    {"extra_key": ["a"]},
    {"input_ids": [[3], [4]], "extra_key": ["a"]},
    {"stream": "yes"},
    {"return_prompt_token_ids": "yes"},
]
ACCEPTED_BODIES = [
    {"a key of a later version": 1},
    {"sampling_params": None},
    {"return_logprob": None},
    {"rid": ""},
    {"rid": None},
    {"extra_key": ""},
    {"extra_key": None},
    {"priority": 3},
    {"custom_labels": {"a": "b"}},
    {"stream": False},
    {"logprob_start_len": -1, "top_logprobs_num": 0, "return_text_in_logprobs": False},
    {"image_data": None},
]


async def attempt(served: Any, change: Any, sampling: Any) -> tuple[int, Any]:
    body = {"input_ids": [3, 4, 5], "sampling_params": {"max_new_tokens": 1, **sampling}, **change}
    return await served.post("/generate", body)


@pytest.mark.parametrize("sampling", REFUSED_SAMPLING, ids=str)
async def test_a_bad_sampling_parameter_is_a_400_that_says_something(served: Any, sampling: Any) -> None:
    status, reply = await attempt(served, {}, sampling)
    assert status == 400
    assert len(server_message(str(reply).encode())) > 10


async def test_values_that_json_does_not_have_are_refused(served: Any) -> None:
    for value in ("NaN", "Infinity", "1e400"):
        data = b'{"input_ids": [3], "sampling_params": {"temperature": %s}}' % value.encode()
        assert (await served.post("/generate", data=data))[0] == 400


@pytest.mark.parametrize("sampling", ACCEPTED_SAMPLING, ids=str)
async def test_null_and_the_ends_of_ranges_are_accepted(served: Any, sampling: Any) -> None:
    status, reply = await attempt(served, {}, sampling)
    assert (status, len(reply["output_ids"])) == (200, 1)


@pytest.mark.parametrize("change", REFUSED_BODIES, ids=str)
async def test_a_bad_key_of_the_body_is_a_400(served: Any, change: Any) -> None:
    status, _ = await attempt(served, change, {})
    assert status == 400


@pytest.mark.parametrize("change", ACCEPTED_BODIES, ids=str)
async def test_unknown_keys_and_defaults_are_ignored(served: Any, change: Any) -> None:
    status, _ = await attempt(served, change, {})
    assert status == 200


@pytest.mark.parametrize("data", [b"", b"{x", b"[1]", b"null"])
async def test_what_is_no_json_object_is_a_400(served: Any, data: bytes) -> None:
    assert (await served.post("/generate", data=data))[0] == 400


async def test_other_paths_and_methods_are_404_and_405(served: Any) -> None:
    assert (await served.post("/no/such/path", {}))[0] == 404
    assert (await served.get("/generate"))[0] == 405
    assert (await served.get("/pause_generation"))[0] == 405


async def test_generate_takes_put_as_well(served: Any) -> None:
    body = {"input_ids": [3], "sampling_params": {"max_new_tokens": 1}}
    async with served.http.put(f"{served.url}/generate", json=body) as reply:
        assert reply.status == 200
