"""Routes that differ from the rollout's are counted apart from the replay that is measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from miles_core.errors import RoutingError
from miles_core.train.route_count import RouteCount
from miles_core.types import RoutingTrace, Sample

from .conftest import make_sample

LENGTHS = (9, 6)


def points(backend):
    return backend._source.bridge.replay_points(backend.model)


def own_routes(backend, samples: list[Sample]) -> list[Sample]:
    """The samples with the routes that the model chooses by itself."""
    routed = []
    for sample in samples:
        with RouteCount(points(backend)) as count:
            backend.forward([sample], replay=False)
            experts = np.stack([layer.numpy() for layer in count._own], 1).astype(np.uint8)
        routed.append(replace(sample, routing=RoutingTrace(experts, (0, 1))))
    return routed


@pytest.fixture
def samples() -> list[Sample]:
    return [make_sample(length) for length in LENGTHS]


def counted(backend, samples: list[Sample], *, replay: bool) -> RouteCount:
    with RouteCount(points(backend)) as count:
        backend.forward(samples, replay=replay)
        count.add(samples)
    return count


@pytest.mark.parametrize("replay", [False, True])
def test_a_model_s_own_routes_do_not_differ(make_backend, samples, replay: bool) -> None:
    backend = make_backend()
    count = counted(backend, own_routes(backend, samples), replay=replay)
    assert (count.own_fraction, count.used_fraction, count.compared) == (0, 0, sum(LENGTHS) - len(LENGTHS))


def test_one_permuted_row_is_counted_where_it_stands(make_backend, samples) -> None:
    backend = make_backend()
    routed = own_routes(backend, samples)
    experts = routed[1].routing.experts.copy()
    other = next(expert for expert in range(8) if expert not in experts[2, 1])
    experts[2, 1, 0] = other
    routed[1] = replace(routed[1], routing=RoutingTrace(experts, (0, 1)))
    free = counted(backend, routed, replay=False)
    assert (free.own.tolist(), free.used.tolist()) == ([0, 1], [0, 1])
    replayed = counted(backend, routed, replay=True)
    assert (replayed.own.tolist(), replayed.used.tolist()) == ([0, 1], [0, 0])


def test_after_the_block_the_model_is_watched_no_more(make_backend, samples) -> None:
    backend = make_backend()
    count = counted(backend, own_routes(backend, samples), replay=False)
    before = [layer.clone() for layer in count._own]
    backend.forward([make_sample(5, seed=7)], replay=False)
    assert all(layer.equal(kept) for layer, kept in zip(count._own, before, strict=True))


def test_a_sample_without_a_trace_is_refused(make_backend) -> None:
    with pytest.raises(RoutingError, match="has no routing trace"):
        counted(make_backend(), [make_sample(6, routed=False)], replay=False)
