"""What is asked and what comes back: prompts, batches, samples, lengths."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.anyio
GREEDY = {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}
CONTEXT = 2048


async def test_a_reply_has_the_fields_that_clients_read(served: Any) -> None:
    reply = await served.generate([3, 4, 5], GREEDY, rid="mine", return_logprob=True)
    assert set(reply) == {"text", "output_ids", "meta_info"}
    meta = reply["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert (meta["prompt_tokens"], meta["completion_tokens"], len(reply["output_ids"])) == (3, 5, 5)
    assert meta["cached_tokens"] in (0, 2)
    assert meta["num_retractions"] == 0
    assert meta["weight_version"] == "0"
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": 5}]
    assert meta["output_token_logprobs_length"] == 5
    assert [entry[1:] for entry in meta["output_token_logprobs"]] == [[token, None] for token in reply["output_ids"]]
    assert meta["input_token_logprobs"] == []


async def test_what_is_not_asked_for_does_not_come(served: Any) -> None:
    meta = (await served.generate([3], GREEDY))["meta_info"]
    assert not {"output_token_logprobs", "input_token_logprobs", "routed_experts"} & set(meta)
    assert len(meta["id"]) == 32


async def test_a_text_is_its_token_ids(served: Any) -> None:
    by_ids = await served.generate([3, 4, 5], GREEDY, return_prompt_token_ids=True)
    by_text = await served.generate("abc", GREEDY, return_prompt_token_ids=True)
    assert by_text["output_ids"] == by_ids["output_ids"]
    assert by_text["text"] == by_ids["text"]
    assert by_text["prompt_token_ids"] == by_ids["prompt_token_ids"] == [3, 4, 5]


async def test_special_tokens_are_in_the_text_only_when_they_are_wanted(served: Any) -> None:
    wanted = {"max_new_tokens": 60, "ignore_eos": True, "skip_special_tokens": False}
    reply = await served.generate([3], wanted)
    characters = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz0123456789 "]
    assert reply["text"] == "".join(characters[token] for token in reply["output_ids"])
    plain = await served.generate([3], {"max_new_tokens": 60, "ignore_eos": True})
    assert plain["text"] == "".join(characters[token] for token in plain["output_ids"] if token > 2)


async def test_a_batch_answers_in_order_with_its_own_settings(served: Any) -> None:
    prompts = [[3, 4, 5], [6, 7], [8]]
    settings = [{**GREEDY, "max_new_tokens": tokens} for tokens in (4, 2, 3)]
    singles = [await served.generate(*pair) for pair in zip(prompts, settings, strict=True)]
    batch = await served.generate(prompts, settings, rid=["x", "y", "z"])
    assert [reply["output_ids"] for reply in batch] == [reply["output_ids"] for reply in singles]
    assert [reply["meta_info"]["id"] for reply in batch] == ["x", "y", "z"]
    texts = await served.generate(["abc", "de", "f"], GREEDY)
    assert [reply["meta_info"]["prompt_tokens"] for reply in texts] == [3, 2, 1]


async def test_what_a_batch_shares_may_be_one_value_or_a_list(served: Any) -> None:
    one, two = await served.generate(
        [[3], [4]], GREEDY, rid="shared", return_logprob=[True, False], extra_key=["a", "b"]
    )
    assert [one["meta_info"]["id"], two["meta_info"]["id"]] == ["shared_0", "shared_1"]
    assert "output_token_logprobs" in one["meta_info"]
    assert "output_token_logprobs" not in two["meta_info"]


async def test_a_batch_of_one_is_still_a_list(served: Any) -> None:
    assert len(await served.generate([[3]], GREEDY)) == 1


async def test_several_samples_of_a_prompt_follow_each_other_under_new_rids(served: Any) -> None:
    replies = await served.generate([[3], [4, 5]], {**GREEDY, "n": 2}, rid=["x", "y"])
    assert [reply["meta_info"]["prompt_tokens"] for reply in replies] == [1, 1, 2, 2]
    assert len({reply["meta_info"]["id"] for reply in replies} | {"x", "y"}) == 6
    assert replies[0]["output_ids"] == replies[1]["output_ids"]
    single = await served.generate([3], {**GREEDY, "n": 3, "temperature": 1.0}, return_logprob=True)
    assert [len(reply["output_ids"]) for reply in single] == [5, 5, 5]


async def test_the_defaults_are_128_tokens_at_temperature_one(served: Any) -> None:
    reply = await served.generate([3, 4], {"ignore_eos": True}, return_logprob=True)
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 128}
    found = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
    assert found == pytest.approx(served.reference.logprobs([3, 4], reply["output_ids"]), abs=1e-4)


async def test_a_request_for_no_token_is_only_prefilled(served: Any) -> None:
    reply = await served.generate([3, 4, 5], {"max_new_tokens": 0}, return_logprob=True)
    assert (reply["output_ids"], reply["text"]) == ([], "")
    meta = reply["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert meta["output_token_logprobs"] == []
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": 0}]


@pytest.mark.parametrize("asked", [None, 11])
async def test_two_tokens_of_the_context_are_never_given(served: Any, asked: int | None) -> None:
    reply = await served.generate([3] * (CONTEXT - 11), {"max_new_tokens": asked, "ignore_eos": True})
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 9}
    assert len(reply["output_ids"]) == 9


async def test_the_longest_prompt_leaves_seven_tokens(served: Any) -> None:
    reply = await served.generate([3] * (CONTEXT - 7), {"max_new_tokens": 1})
    assert reply["meta_info"]["prompt_tokens"] == CONTEXT - 7


@pytest.mark.parametrize(("prompt", "asked"), [(CONTEXT - 6, 1), (CONTEXT, 1), (CONTEXT - 11, 12), (3, CONTEXT)])
async def test_what_does_not_fit_the_context_is_refused(served: Any, prompt: int, asked: int) -> None:
    body = {"input_ids": [3] * prompt, "sampling_params": {"max_new_tokens": asked}}
    status, reply = await served.post("/generate", body)
    assert status == 400
    assert str(CONTEXT - 6 if prompt == CONTEXT - 6 else CONTEXT) in str(reply)


async def test_min_new_tokens_keeps_every_stop_token_away(served: Any) -> None:
    stops = list(range(2, 12))
    sampling = {"max_new_tokens": 60, "min_new_tokens": 20, "stop_token_ids": stops}
    replies = await served.generate([[3]] * 4, sampling, return_logprob=True)
    for reply in replies:
        output = reply["output_ids"]
        assert len(output) >= 20
        early = output[:20]
        assert not set(early) & {1, *stops}
        found = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]][:20]
        assert found == pytest.approx(served.reference.logprobs([3], early, never=[1, *stops]), abs=1e-4)


async def test_min_new_tokens_holds_with_ignore_eos_too(served: Any) -> None:
    sampling = {"max_new_tokens": 60, "min_new_tokens": 60, "ignore_eos": True, "stop_token_ids": list(range(2, 12))}
    reply = await served.generate([3], sampling)
    assert not set(reply["output_ids"]) & {1, *range(2, 12)}
