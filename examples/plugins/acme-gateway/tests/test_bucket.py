"""The token bucket against times worked out by hand."""

from __future__ import annotations

import pytest
from acme_gateway.bucket import Bucket


def test_a_burst_passes_and_the_next_request_waits_for_its_token() -> None:
    bucket = Bucket(rate=2.0, burst=2, tokens=2, filled=0.0)
    assert [bucket.take(0.0) for _ in range(3)] == [0.0, 0.0, 0.5]
    assert bucket.take(0.25) == pytest.approx(0.25)
    assert bucket.take(0.5) == 0.0
    assert bucket.refused == 2


def test_an_idle_client_saves_no_more_than_its_burst() -> None:
    bucket = Bucket(rate=2.0, burst=2, tokens=0, filled=0.0)
    assert [bucket.take(100.0) > 0 for _ in range(3)] == [False, False, True]
