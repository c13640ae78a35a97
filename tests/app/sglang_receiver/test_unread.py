"""Tokens of a step that SGLang has not read yet belong to the version that sampled them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from miles_core.app.sglang_receiver.unread import record_weight_version_change


class Event(NamedTuple):
    old_version: str
    num_output_tokens: int


@pytest.fixture
def serving(monkeypatch) -> SimpleNamespace:
    """SGLang's context, as far as versions need it."""
    serving = SimpleNamespace(weight_version="3")
    context, versions = ModuleType("context"), ModuleType("versions")
    context.__dict__["get_serving"] = lambda: serving
    versions.__dict__["WeightVersionEvent"] = Event
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    monkeypatch.setitem(sys.modules, "sglang.srt.utils.weight_versions", versions)
    return serving


def request(outputs: int, *, chunks: int = 0, finished: bool = False, retracted: bool = False) -> Any:
    return SimpleNamespace(
        output_ids=[0] * outputs,
        inflight_middle_chunks=chunks,
        is_retracted=retracted,
        finished=lambda: finished,
        weight_version_events=[],
    )


def rename(serving: SimpleNamespace, scheduler: Any, version: str | None) -> None:
    def original(scheduler: Any, new_version: str | None) -> None:
        """As SGLang does: requests without output are not noted."""
        if new_version in (None, serving.weight_version):
            return
        for one in scheduler.reqs:
            if one.output_ids:
                one.weight_version_events.append(Event(serving.weight_version, len(one.output_ids)))
        serving.weight_version = new_version

    record_weight_version_change(original, scheduler, version)


def scheduler(reqs: list[Any], *, accepted: list[int] | None = None, unread: bool = True) -> Any:
    waits: list[str] = []
    result = SimpleNamespace(
        accept_lens=None if accepted is None else torch.tensor(accepted),
        copy_done=SimpleNamespace(synchronize=lambda: waits.append("copied")),
    )
    return SimpleNamespace(reqs=reqs, result_queue=[(SimpleNamespace(reqs=reqs), result)] if unread else [])


def events(reqs: list[Any]) -> list[list[Event]]:
    return [one.weight_version_events for one in reqs]


def test_a_running_request_and_one_whose_prompt_was_just_fed_get_their_unread_token(serving) -> None:
    reqs = [request(7), request(0)]
    rename(serving, scheduler(reqs), "4")
    assert events(reqs) == [[("3", 8)], [("3", 1)]]


def test_a_step_that_speculates_has_several(serving) -> None:
    reqs = [request(7), request(2)]
    rename(serving, scheduler(reqs, accepted=[3, 1]), "4")
    assert events(reqs) == [[("3", 10)], [("3", 3)]]


def test_a_prompt_that_is_half_fed_and_requests_that_get_no_more_are_left_alone(serving) -> None:
    reqs = [request(0, chunks=1), request(5, finished=True), request(5, retracted=True)]
    rename(serving, scheduler(reqs), "4")
    assert events(reqs) == [[], [("3", 5)], [("3", 5)]]


def test_each_of_several_versions_of_one_pause_is_noted_at_the_same_token(serving) -> None:
    reqs = [request(7)]
    at = scheduler(reqs)
    for version in ("4", "5"):
        rename(serving, at, version)
    assert events(reqs) == [[("3", 8), ("4", 8)]]


@pytest.mark.parametrize("version", [None, "3"])
def test_no_new_version_notes_nothing(serving, version: str | None) -> None:
    reqs = [request(7)]
    rename(serving, scheduler(reqs), version)
    assert events(reqs) == [[]]


def test_without_overlap_what_sglang_noted_stays(serving) -> None:
    reqs = [request(7)]
    rename(serving, scheduler(reqs, unread=False), "4")
    at = scheduler(reqs)
    del at.result_queue
    rename(serving, at, "5")
    assert events(reqs) == [[("3", 7), ("4", 7)]]
