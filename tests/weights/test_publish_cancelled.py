"""An update that is cancelled at any moment: no engine serves a mixture, and the next update reaches all."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest
import torch

from miles_core.weights.publish import Publisher
from miles_plugins.transports.memory import Memory

from .publishing import IDS

pytestmark = pytest.mark.anyio

TRAINER_CALLS = ("layout", "open_update", "stage", "transport_path", "release")
EVERY = 4


class Moments:
    """Counts where calls of engines and trainer begin and end; cancels ``scope`` in number ``at``."""

    def __init__(self):
        self.count = 0
        self.at = None
        self.scope = None

    def pass_by(self):
        self.count += 1
        if self.count == self.at:
            self.scope.cancel()

    def around(self, call):
        async def watched(*arguments):
            self.pass_by()
            answer = await call(*arguments)
            self.pass_by()
            return answer

        return watched

    def around_app(self, app):
        watched = self.around(app)

        async def asgi(scope, receive, send):  # three arguments tell uvicorn what it is
            await watched(scope, receive, send)

        return asgi


@pytest.fixture
async def watched(toy_engine, memory, trainer, serve, http, fleet_of, choice_of, tiny, monkeypatch):
    """Two engines, a publisher, and the moments of its updates."""
    moments = Moments()
    for name in TRAINER_CALLS:
        monkeypatch.setattr(trainer, name, moments.around(getattr(trainer, name)))
    engines = [toy_engine.ToyEngine(tiny(seed=seed), memory) for seed in (2, 3)]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serve(moments.around_app(engine.app))) for engine in engines]
        settings = {"bucket_bytes": 14000, "timeout": 20.0, "pause_mode": "in_place"}
        publisher = Publisher(fleet_of(urls), trainer, http, choice=choice_of("memory", Memory), **settings)
        yield engines, publisher, moments


def serves(engine):
    return engine.paused is None and engine.out_of_service is None


async def test_engines_that_no_byte_reached_go_on_others_wait_and_the_next_update_reaches_all(watched, trained, memory):
    engines, publisher, moments = watched
    await publisher.publish(1)
    moments_of_one, seen = moments.count, set()
    for version, at in enumerate(range(1, moments_of_one + 1, EVERY), 1):
        with torch.no_grad():
            next(trained.parameters()).add_(1)
        before = engines[0].logits(IDS)
        moments.count, moments.at = 0, at
        with anyio.CancelScope() as moments.scope:
            await publisher.publish(2 * version)
        for engine in engines:
            assert serves(engine) != engine.receiver.status.torn
            if serves(engine) and engine.version < 2 * version:
                assert torch.equal(engine.logits(IDS), before)
        seen.add((serves(engines[0]), engines[0].version == 2 * version))
        assert not memory._sent

        moments.at = None
        assert not (await publisher.publish(2 * version + 1)).lost
        assert [(engine.version, serves(engine)) for engine in engines] == [(2 * version + 1, True)] * 2
        assert torch.equal(engines[0].logits(IDS), engines[1].logits(IDS))
    assert seen == {(True, False), (False, False), (True, True)}, "old weights, torn ones and new ones"
