"""Plugins learn of every engine that is lost, once."""

from __future__ import annotations

import pytest

from miles_core.app.outages import Outages

pytestmark = pytest.mark.anyio


class Engines:
    """Two engines, of which those in ``silent`` give no answer."""

    def __init__(self, monkeypatch) -> None:
        monkeypatch.setattr("miles_core.app.outages.NOTICE_SECONDS", 0.01)
        monkeypatch.setattr("miles_core.app.outages.PROBE_SECONDS", 0.001)
        self.silent: set[str] = set()
        self.lost: list[tuple[str, str]] = []
        self.outages = Outages(self, lambda: ("http://a", "http://b"), self.on_lost)

    async def check(self, url: str) -> None: ...

    async def answers(self, url: str) -> bool:
        return url not in self.silent

    async def on_lost(self, url: str, error: str) -> None:
        self.lost.append((url, error))


@pytest.fixture
def engines(monkeypatch) -> Engines:
    return Engines(monkeypatch)


async def test_an_engine_that_hangs_is_told_of_once_also_when_it_dies_later(engines: Engines) -> None:
    engines.silent = {"http://b"}
    for _ in range(3):
        assert await engines.outages.met_since(engines.outages.count)
    assert engines.lost == [("http://b", "it has given no answer for 0.01 s")]
    await engines.outages.lost("http://b", "the engine-1 process died")
    assert len(engines.lost) == 1


async def test_one_that_answers_again_and_hangs_again_is_told_of_again(engines: Engines) -> None:
    for silent in ({"http://b"}, {"http://a"}, {"http://b"}):
        engines.silent = silent
        await engines.outages.met_since(engines.outages.count)
    assert [url for url, _ in engines.lost] == ["http://b", "http://a", "http://b"]


async def test_where_all_answer_nobody_is_lost(engines: Engines) -> None:
    assert not await engines.outages.met_since(0)
    assert engines.lost == []
