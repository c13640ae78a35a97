"""What ends a generation, and what the text keeps of it."""

from __future__ import annotations

import string
from typing import Any

import pytest

pytestmark = pytest.mark.anyio
CHARACTERS = ["<pad>", "<eos>", "<unk>", *string.ascii_lowercase, *string.digits, " "]
LETTERS = list(range(3, 29))
PROMPT = [3, 4, 5]
# letters that are in no special token, whose text is looked at as well
STOPS = sorted(set(string.ascii_lowercase) - set("padeosunk"))


def text_of(ids: list[int]) -> str:
    return "".join(CHARACTERS[token] for token in ids if token > 2)


async def test_a_stop_token_stays_in_the_ids_and_leaves_the_text(served: Any) -> None:
    for trim in (True, False):
        sampling = {"max_new_tokens": 200, "stop_token_ids": LETTERS, "no_stop_trim": not trim}
        reply = await served.generate(PROMPT, sampling)
        ids, reason = reply["output_ids"], reply["meta_info"]["finish_reason"]
        assert reason == {"type": "stop", "matched": ids[-1]}
        assert set(ids) & {1, *LETTERS} == {ids[-1]}
        assert reply["text"] == text_of(ids[:-1] if trim else ids)


async def test_a_stop_string_ends_it_in_the_token_that_completes_it(served: Any) -> None:
    for trim in (True, False):
        sampling = {"max_new_tokens": 500, "stop": STOPS, "ignore_eos": True}
        reply = await served.generate(PROMPT, {**sampling, "no_stop_trim": not trim})
        ids, reason = reply["output_ids"], reply["meta_info"]["finish_reason"]
        assert reason == {"type": "stop", "matched": CHARACTERS[ids[-1]]}
        assert not set(text_of(ids[:-1])) & set(STOPS)
        assert reply["text"] == text_of(ids[:-1] if trim else ids)


async def test_a_stop_string_may_need_several_tokens(served: Any) -> None:
    pairs = [first + second for first in "bcfg" for second in "hijlmqrt"]
    sampling = {"max_new_tokens": 1500, "stop": pairs, "ignore_eos": True, "temperature": 3.0}
    reply = await served.generate(PROMPT, sampling)
    reason = reply["meta_info"]["finish_reason"]
    assert reason["matched"] in pairs
    assert text_of(reply["output_ids"]).endswith(reason["matched"])
    assert reply["text"] + reason["matched"] == text_of(reply["output_ids"])


async def test_a_stop_may_be_one_string(served: Any) -> None:
    reply = await served.generate(PROMPT, {"max_new_tokens": 1500, "stop": "z", "ignore_eos": True, "temperature": 3.0})
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": "z"}


async def test_a_string_goes_before_a_token_and_a_token_before_the_length(served: Any) -> None:
    everything = list(range(len(CHARACTERS)))
    reply = await served.generate(PROMPT, {"max_new_tokens": 1, "stop_token_ids": everything})
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": reply["output_ids"][0]}
    both = {"stop": STOPS, "stop_token_ids": [CHARACTERS.index(letter) for letter in STOPS], "max_new_tokens": 500}
    for reply in await served.generate([PROMPT] * 4, both):
        matched = reply["meta_info"]["finish_reason"]["matched"]
        assert matched == 1 or matched in STOPS


async def test_ignore_eos_ignores_every_stop_token_but_no_string(served: Any) -> None:
    everything = list(range(len(CHARACTERS)))
    reply = await served.generate(PROMPT, {"max_new_tokens": 9, "stop_token_ids": everything, "ignore_eos": True})
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 9}


async def test_the_models_own_eos_ends_it(served: Any) -> None:
    prompts = [[3 + i] for i in range(8)]
    replies = await served.generate(prompts, {"max_new_tokens": 1500, "temperature": 2.0})
    for reply in replies:
        assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": 1}
        assert reply["output_ids"].index(1) == len(reply["output_ids"]) - 1


async def test_min_new_tokens_does_not_hold_a_stop_string_back(served: Any) -> None:
    sampling = {"max_new_tokens": 500, "min_new_tokens": 500, "stop": STOPS}
    reply = await served.generate(PROMPT, sampling)
    assert reply["meta_info"]["finish_reason"]["type"] == "stop"
    assert len(reply["output_ids"]) < 500


async def test_stop_tokens_that_the_model_does_not_have_never_match(served: Any) -> None:
    sampling = {"max_new_tokens": 4, "stop_token_ids": [40, -5, 1_000_000], "ignore_eos": False, "temperature": 0}
    reply = await served.generate([8, 9], sampling)
    assert reply["meta_info"]["finish_reason"]["type"] in ("length", "stop")
    assert reply["meta_info"]["finish_reason"].get("matched") in (None, 1)
