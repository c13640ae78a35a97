"""The trainer as an update uses it: what it does not answer costs one timeout, not one for each bucket."""

from __future__ import annotations

import anyio
import pytest

from miles_core.errors import WeightSyncError
from miles_core.types import Bucket
from miles_core.weights.sender import TrainerSender

pytestmark = pytest.mark.anyio


class Stub:
    """Stages anything; ``release`` answers the releases."""

    def __init__(self, release):
        self.released = []
        self._answer = release

    async def stage(self, bucket):
        return {"bucket": bucket.index}, ()

    async def release(self, delivery):
        self.released.append(delivery["bucket"])
        await self._answer()


async def closed(release, caplog, *, timeout):
    trainer = Stub(release)
    sender = TrainerSender(trainer, timeout)
    for index in range(4):
        await sender.stage(Bucket(index, (), 0))
    await sender.close()
    await sender.close()
    assert "trainer: releasing a delivery failed: " in caplog.text
    return trainer.released


async def test_a_trainer_that_gives_no_answer_is_asked_once_to_release_what_is_left(caplog):
    assert await closed(anyio.sleep_forever, caplog, timeout=0.05) == [0]


async def test_a_trainer_that_refuses_is_asked_to_release_all_that_is_left(caplog):
    async def refuse():
        raise WeightSyncError("this transport holds no such thing")

    assert await closed(refuse, caplog, timeout=5.0) == [0, 1, 2, 3]
