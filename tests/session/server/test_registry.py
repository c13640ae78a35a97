"""Sessions are found by their id for as long as somebody uses them."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from miles_core.errors import SessionError
from miles_core.session.registry import RegistryFull, SessionRegistry

TTL = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def served() -> Any:
    return cast("Any", object())


def make(max_sessions: int = 3) -> tuple[SessionRegistry, Clock]:
    clock = Clock()
    return SessionRegistry(ttl=TTL, max_sessions=max_sessions, clock=clock), clock


def test_ids_are_long_and_unlike() -> None:
    registry, _ = make(max_sessions=100)
    ids = {registry.add(served()) for _ in range(100)}
    assert len(ids) == 100
    assert min(map(len, ids)) >= 24


def test_a_session_that_nobody_used_expires() -> None:
    registry, clock = make()
    first, second = registry.add(served()), registry.add(served())
    clock.now += TTL - 1
    registry.opened(second)
    clock.now += 2
    with pytest.raises(SessionError, match="expired or was closed"):
        registry.opened(first)
    assert registry.opened(second)
    assert len(registry) == 1


def test_a_kept_session_does_not_expire() -> None:
    registry, clock = make()
    kept = registry.add(served(), kept=True)
    clock.now += 1000 * TTL
    assert registry.opened(kept)
    registry.remove(kept)
    with pytest.raises(SessionError):
        registry.opened(kept)


def test_no_more_than_the_most_are_open() -> None:
    registry, clock = make(max_sessions=2)
    registry.add(served())
    registry.add(served())
    with pytest.raises(RegistryFull, match="no more than 2"):
        registry.add(served())
    clock.now += TTL
    registry.add(served())
    assert len(registry) == 1


@pytest.mark.anyio
async def test_a_request_in_flight_keeps_its_session_and_closing_cancels_it() -> None:
    registry, clock = make()
    session_id = registry.add(served())
    opened = registry.opened(session_id)
    with registry.using(opened) as use:
        clock.now += 5 * TTL
        assert registry.opened(session_id) is opened
        registry.remove(session_id)
        await anyio.sleep_forever()
    assert use.cancelled_caught
    assert len(registry) == 0


@pytest.mark.anyio
async def test_a_session_rests_from_the_end_of_its_last_request() -> None:
    registry, clock = make()
    session_id = registry.add(served())
    with registry.using(registry.opened(session_id)):
        clock.now += 5 * TTL
    clock.now += TTL - 1
    assert len(registry) == 1
    clock.now += 2
    assert len(registry) == 0


class Lives(RuleBasedStateMachine):
    """Against a plain table of when each session was used last."""

    def __init__(self) -> None:
        super().__init__()
        self.registry, self.clock = make(max_sessions=4)
        self.used: dict[str, float] = {}
        self.kept: set[str] = set()

    def living(self) -> set[str]:
        return {one for one, used in self.used.items() if one in self.kept or self.clock.now - used < TTL}

    @rule(kept=st.booleans())
    def add(self, kept: bool) -> None:
        if len(self.living()) >= 4:
            with pytest.raises(RegistryFull):
                self.registry.add(served(), kept=kept)
            return
        made = self.registry.add(served(), kept=kept)
        self.used[made] = self.clock.now
        if kept:
            self.kept.add(made)

    @rule(seconds=st.sampled_from([0.0, 1.0, TTL / 2, TTL]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(place=st.integers(0, 5), remove=st.booleans())
    def use(self, place: int, remove: bool) -> None:
        if place >= len(self.used):
            return
        one = list(self.used)[place]
        if one not in self.living():
            with pytest.raises(SessionError):
                self.registry.opened(one)
            return
        if remove:
            self.registry.remove(one)
            del self.used[one]
        else:
            self.registry.opened(one)
            self.used[one] = self.clock.now

    @invariant()
    def counts_the_living(self) -> None:
        assert len(self.registry) == len(self.living())


TestLives = Lives.TestCase
