"""Streams add up to the reply without one, however their bytes and tokens were cut."""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.engine.parsing import parse_generation
from miles_core.engine.streaming import EventSplitter, StreamedReply
from miles_core.errors import EngineError, EngineRequestError
from miles_core.types import GenerateRequest, SamplingParams

VOCAB = 50
REQUEST = GenerateRequest([3, 4], SamplingParams(), "r")
TRAP = '"output_ids": [1], "completion_tokens": 9, "finish_reason": null'
"""As text, it says nothing about the event."""


def event(ids: list[int], completed: int, *, finish: Any = None, first: int = 0, **meta: Any) -> dict[str, Any]:
    """``ids`` are those from ``first`` on; their logprobs are functions of their places."""
    full = {
        "id": TRAP,
        "finish_reason": finish,
        "weight_version": "2",
        "output_token_logprobs": [[-(first + n) / 8, token, None] for n, token in enumerate(ids)],
        "completion_tokens": completed,
    }
    return {"text": TRAP, "output_ids": ids, "meta_info": {**full, **meta}}


def events_of(ids: list[int], ends: list[int], *, incremental: bool) -> list[dict[str, Any]]:
    events, start = [], 0
    for end in ends:
        first = start if incremental else 0
        finish = {"type": "stop", "matched": ids[-1]} if end == len(ids) else None
        events.append(event(ids[first:end], end, finish=finish, first=first))
        start = end
    return events


def added_up(events: list[Any]) -> tuple[list[list[int]], Any]:
    """What ``on_tokens`` got, and the generation."""
    got: list[list[int]] = []
    streamed = StreamedReply("r", VOCAB, lambda ids: got.append(list(ids)))
    for each in events:
        streamed.add(json.dumps(each).encode())
    streamed.add(b"[DONE]")
    generation = parse_generation(streamed.whole(), REQUEST, None)
    streamed.finish(generation)
    return got, generation


@given(
    ids=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    cuts=st.sets(st.integers(1, 29)),
    incremental=st.booleans(),
)
def test_events_of_either_kind_add_up_to_the_whole_reply(ids: list[int], cuts: set[int], incremental: bool) -> None:
    ends = [*sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    got, generation = added_up(events_of(ids, ends, incremental=incremental))
    whole = parse_generation(events_of(ids, [len(ids)], incremental=False)[0], REQUEST, None)
    assert [len(part) for part in got] == [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert list(chain(*got)) == generation.output_ids.tolist() == ids
    assert generation.logprobs.tolist() == whole.logprobs.tolist()
    assert (generation.finish_reason, generation.versions) == (whole.finish_reason, whole.versions)


LINES = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1).map(str.strip)


@given(
    texts=st.lists(LINES, max_size=5),
    sizes=st.lists(st.integers(1, 9), min_size=1),
    newline=st.sampled_from(["\n", "\r\n"]),
)
def test_events_are_found_however_the_bytes_are_cut(texts: list[str], sizes: list[int], newline: str) -> None:
    raw = "".join(f": comment{newline}data: {text}{newline}{newline}" for text in texts).encode()
    splitter, found = EventSplitter(), []
    while raw:
        for size in sizes:
            found += splitter.feed(raw[:size])
            raw = raw[size:]
    assert [each.decode() for each in found] == [text.encode().strip().decode() for text in texts]


def test_logprobs_of_growing_events_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    loads = json.loads
    monkeypatch.setattr("miles_core.engine.streaming.json.loads", lambda data: parsed.append(1) or loads(data))
    ids = list(range(40))
    got, _ = added_up(events_of(ids, list(range(1, 41)), incremental=False))
    assert list(chain(*got)) == ids
    assert len(parsed) == 2, "the first and the last"


@pytest.mark.parametrize("incremental", [False, True])
def test_a_request_aborted_in_the_queue_keeps_what_the_same_reply_keeps(incremental: bool) -> None:
    """After a retraction; an incremental server repeats the last id, with the logprobs of all."""
    events = events_of([5, 6, 7, 8], [1, 3, 4], incremental=incremental)[:2]
    end = event([5, 6, 7], 3, finish={"type": "abort", "message": "Abort in waiting queue"})
    if incremental:
        end["output_ids"] = [7]
    got, generation = added_up([*events, end])
    assert got == [[5], [6, 7]]
    assert generation.output_ids.tolist() == [5, 6, 7]
    assert generation.finish_reason.type == "abort"
    got, generation = added_up([*events, event([], 0, finish={"type": "abort"})])
    assert got == [[5], [6, 7]]
    assert generation.output_ids.tolist() == []


@pytest.mark.parametrize("incremental", [False, True])
def test_what_comes_with_an_abort_is_passed_on_and_kept(incremental: bool) -> None:
    events = events_of([5, 6, 7, 8], [2, 4], incremental=incremental)
    events[-1]["meta_info"]["finish_reason"] = {"type": "abort", "message": "Aborted", "status_code": None}
    got, generation = added_up(events)
    assert got == [[5, 6], [7, 8]]
    assert generation.output_ids.tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("events", "kind", "message"),
    [
        ([], EngineError, "after 0 tokens without a finish reason"),
        ([event([5], 1), event([5, 6], 2)], EngineError, "after 2 tokens without a finish reason"),
        ([{"error": {"message": "bad", "code": 400}}], EngineRequestError, "after 0 tokens: bad"),
        ([{"error": {"message": "full", "code": 429}}], EngineError, "after 0 tokens: full"),
        ([{"error": {"message": "died", "code": 500}}], EngineError, "after 0 tokens: died"),
        ([{"error": "odd"}], EngineError, "after 0 tokens: odd"),
        ([event([5], 1), {"error": {"message": "bad", "code": 400}}], EngineError, "after 1 tokens: bad"),
        (
            [event([], 0, finish={"type": "abort", "message": "no grammar", "status_code": 400})],
            EngineRequestError,
            "after 0 tokens: no grammar",
        ),
        ([event([], 0, finish={"type": "abort", "message": "full", "status_code": 503})], EngineError, "tokens: full"),
        ([event([5], 1), event([5, 50], 2)], EngineError, "sampled token 50 for r"),
        ([event([-1], 1)], EngineError, "sampled token -1 for r"),
        (
            [event([5, 6], 2), event([7], 3, finish={"type": "stop"}, output_token_logprobs=[])],
            EngineError,
            "got 2 logprobs for 3 ids",
        ),
        ([event([5, 6], 2), event([7], 1, finish={"type": "stop"})], EngineError, "it showed 2"),
        ([event([5, 6], 2), event([5, 7, 8], 3, finish={"type": "stop"})], EngineError, "others"),
        ([event([5, 6], 2), event([5], 9)], EngineError, "malformed event"),
        ([event(["x"], 1)], EngineError, "malformed event"),  # type: ignore[list-item]
        ([event([5], 1, finish="stop")], EngineError, "malformed event"),
        ([{"output_ids": [5]}], EngineError, "malformed event"),
        ([[1]], EngineError, "malformed event"),
        ([7], EngineError, "malformed event"),
    ],
)
def test_a_stream_that_cannot_be_trusted_is_an_error(events: list[Any], kind: type[EngineError], message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        added_up(events)
    assert type(caught.value) is kind


@pytest.mark.parametrize("data", [b"<html>", b"[" * 100_000])
def test_what_is_no_json_is_an_error_that_shows_it(data: bytes) -> None:
    with pytest.raises(EngineError, match=rf"malformed event for r.*{re.escape(data[:6].decode())}"):
        StreamedReply("r", VOCAB, print).add(data)
