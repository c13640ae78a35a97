"""A toy engine, its receiver, and a trainer that sends to it without HTTP."""

from __future__ import annotations

import pytest

from miles_core.types import Layout, Opening
from miles_core.weights.plan import Receiver, make_plan


@pytest.fixture
def engine(tiny, memory, toy_engine):
    return toy_engine.ToyEngine(tiny(seed=2), memory, version=3)


@pytest.fixture
def receiver(engine):
    return engine.receiver


@pytest.fixture
def source(trained, memory, source_of):
    source = source_of(trained, memory)
    source.open("memory", Opening(4))
    return source


@pytest.fixture
def layout(engine, layout_of) -> Layout:
    return layout_of(engine.model)


@pytest.fixture
def plan(source, layout):
    plan = make_plan(source.layout, {Receiver("http://e"): layout}, 4000)
    assert len(plan.buckets) > 3
    return plan


@pytest.fixture
def send(source, receiver):
    """Brings buckets to the engine; returns their checksums."""

    def send(buckets, version=4, **more):
        checksums = {}
        for bucket in buckets:
            delivery, checksums[bucket.index] = source.stage(bucket)
            try:
                receiver.receive(version, bucket, {**delivery, **more})
            finally:
                source.release(delivery)
        return checksums

    return send
