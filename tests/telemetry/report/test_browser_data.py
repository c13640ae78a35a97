"""The browser's data: a small list, bodies in chunks, and characters that mean nothing to HTML."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from miles_core.telemetry.episodes import StepEpisodes
from miles_core.telemetry.report.browser import CHUNK, LOGPROB_SCALE, collect, packed
from miles_core.types import ImagePart, Message, TextPart


def unpacked(block):
    return json.loads(gzip.decompress(b64decode(block)))


@given(st.text() | st.sampled_from(["</script>", "<!--", "\u2028", "\ud800"]))
def test_packed_text_comes_back_and_holds_nothing_that_html_reads(text):
    block = packed({"text": text})
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", block)
    assert unpacked(block) == {"text": text}


def test_the_list_has_a_row_per_episode_and_the_bodies_are_chunked(trajectory):
    made = [trajectory(f"e{index}", reward=index, task_id=f"t{index}") for index in range(CHUNK + 1)]
    made[1] = trajectory("e1", reward=None, environment="search")
    data = collect([StepEpisodes(7, 3, tuple(made), frozenset({"e0"}))], "keys")
    assert data.count == CHUNK + 1
    assert {len(column) for column in data.columns.values()} == {CHUNK + 1}
    assert {name: column[:2] for name, column in data.columns.items()} == {
        "step": [7, 7], "version": [3, 3], "id": ["e0", "e1"], "task": ["t0", "t0"], "environment": ["keys", "search"],
        "status": ["completed"] * 2, "stop": ["done"] * 2, "reward": [0, None], "kept": [1, 0], "length": [5, 5],
        "turns": [1, 1],
    }  # fmt: skip
    assert [len(unpacked(chunk)) for chunk in data.chunks] == [CHUNK, 1]


def test_a_body_holds_each_token_with_its_mask_logprob_and_version(trajectory):
    made = trajectory("x", "abcd")
    data = collect([StepEpisodes(1, 3, (made,), frozenset())], "keys")
    (body,) = unpacked(data.chunks[0])
    (sample,) = body["samples"]
    assert sample["tokens"] == made.samples[0].tokens.tolist()
    assert sample["trained"] == [[11, 15]]
    assert sample["logprobs"] == [round(-0.25 * LOGPROB_SCALE)] * 4
    assert sample["versions"] == [[3, 11, 13], [4, 13, 15]]
    assert data.token_ids == set(sample["tokens"])
    assert (body["components"], body["prompt"], body["label"]) == ({"exact_match": 1.0, "format": 0.5}, 1, "2")


def test_a_logprob_that_is_not_finite_and_a_message_of_parts_are_kept_as_what_they_are(trajectory):
    made = trajectory("x", "ab")
    made.samples[0].logprobs.setflags(write=True)
    made.samples[0].logprobs[-1] = -np.inf
    message = Message("user", (TextPart("look: "), ImagePart("cat.png")), tool_calls=({"name": "f"},))
    object.__setattr__(made, "messages", (message,))
    data = collect([StepEpisodes(1, 3, (made,), frozenset())], "keys")
    (body,) = unpacked(data.chunks[0])
    assert body["samples"][0]["logprobs"] == [-2500, None]
    assert body["messages"] == [
        {"role": "user", "text": "look: ", "tool_calls": [{"name": "f"}], "images": ["cat.png"]}
    ]
