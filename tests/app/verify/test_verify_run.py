"""A live run is verified tensor by tensor, and what differs is named."""

from __future__ import annotations

import pytest
import torch

from miles_core.app.verify import run as verification
from miles_core.app.verify import verify_run
from miles_core.app.weights_record import EngineRecord
from miles_core.errors import CheckpointError

from .conftest import VERSION, Engine, LiveRun, PlainSglang

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "RETRY_SECONDS", 0.0)


def records(urls: list[str], *, holds: bool = True) -> list[EngineRecord]:
    return [EngineRecord(f"engine-{i}", url, holds) for i, url in enumerate(urls)]


async def test_engines_that_hold_what_was_sent_are_verified_with_the_checkpoint_of_that_version(
    live: LiveRun, serve
) -> None:
    heard: dict[str, list[tuple[int, int]]] = {}

    def on_bytes(name: str):
        return lambda done, total: heard.setdefault(name, []).append((done, total))

    async with serve(Engine(live.tensors()), Engine(live.tensors())) as urls:
        live.write(*records(urls))
        report = await verify_run(live.folder, on_bytes=on_bytes)
    assert report.ok
    assert (report.version, report.transport) == (VERSION, "memory")
    assert [engine.state for engine in report.engines] == ["equal", "equal"]
    assert {engine.tensors for engine in report.engines} == {len(live.record.checksums)}
    assert report.checkpoint is not None
    assert (report.checkpoint.name, report.checkpoint.differences) == ("step-2", ())
    assert {name: said[-1][0] == said[-1][1] > 0 for name, said in heard.items()} == dict.fromkeys(
        ["engine-0", "engine-1", "step-2"], True
    )


async def test_one_flipped_byte_is_named_by_engine_and_tensor(live: LiveRun, serve) -> None:
    sound, spoilt = Engine(live.tensors()), Engine(live.tensors())
    name = sorted(spoilt.tensors)[3]
    async with serve(sound, spoilt) as urls:
        live.write(*records(urls))
        spoilt.tensors[name].view(-1).view(torch.uint8)[5] ^= 1
        report = await verify_run(live.folder)
    assert not report.ok
    assert [engine.state for engine in report.engines] == ["equal", "differs"]
    (difference,) = report.engines[1].differences
    assert difference.tensor == name
    assert difference.where == f"rank 0, {name}"
    assert difference.expected == report_sum(live, name) != difference.found


def report_sum(live: LiveRun, name: str) -> str:
    return next(value for key, value in live.record.checksums.items() if key.startswith(f"{name}:"))


async def test_a_checkpoint_that_is_not_what_was_sent_is_named(live: LiveRun, serve) -> None:
    key = next(iter(live.record.checksums))
    async with serve(Engine(live.tensors())) as urls:
        live.write(*records(urls), checksums={**live.record.checksums, key: "0" * 32})
        report = await verify_run(live.folder)
    assert not report.ok
    assert report.checkpoint is not None
    assert [one.tensor for one in report.checkpoint.differences] == [key.rpartition(":")[0]]
    assert [one.expected for one in report.engines[0].differences] == ["0" * 32]


async def test_another_version_than_the_checkpoints_is_compared_with_the_trainer_alone(live: LiveRun, serve) -> None:
    async with serve(Engine(live.tensors(), version=5)) as urls:
        live.write(*records(urls), version=5)
        report = await verify_run(live.folder)
        assert (report.ok, report.checkpoint) == (True, None)
        asked = await verify_run(live.folder, 2)
    assert asked.checkpoint is not None, "a step that is asked for is compared, whatever its version"


async def test_what_engines_loaded_by_themselves_is_compared_with_the_checkpoint(live: LiveRun, serve) -> None:
    spoilt = Engine(live.tensors())
    name = sorted(spoilt.tensors)[0]
    async with serve(Engine(live.tensors()), spoilt) as urls:
        spoilt.tensors[name].add_(1)
        live.write(*records(urls), checksums={})
        report = await verify_run(live.folder)
    assert [engine.state for engine in report.engines] == ["equal", "differs"]
    assert [one.tensor for one in report.engines[1].differences] == [name]


async def test_it_is_tried_again_while_an_update_goes_on(live: LiveRun, serve) -> None:
    engine = Engine(live.tensors())

    def commit() -> None:
        engine.receiver._version = VERSION + 1
        live.write(*live.record.engines, version=VERSION + 1)

    engine.before = [commit]
    async with serve(engine) as urls:
        live.write(*records(urls))
        report = await verify_run(live.folder)
    assert (report.ok, report.version) == (True, VERSION + 1)
    assert engine.asked == 2


async def test_what_sglang_holds_while_its_version_changes_is_not_compared(live: LiveRun, serve) -> None:
    one, other = PlainSglang({"a": "1"}), PlainSglang({"a": "2"})

    def commit() -> None:
        other.sums, other.version = {"a": "1"}, VERSION + 1
        one.version = VERSION + 1
        live.write(*live.record.engines, version=VERSION + 1)

    other.after = [commit]
    async with serve(one, other) as urls:
        live.write(*records(urls))
        report = await verify_run(live.folder)
    assert (report.ok, report.version) == (True, VERSION + 1)


async def test_an_engine_that_stays_torn_fails_after_some_tries(live: LiveRun, serve) -> None:
    engine = Engine(live.tensors())
    engine.receiver._torn = True
    async with serve(engine) as urls:
        live.write(*records(urls))
        report = await verify_run(live.folder)
    assert not report.ok
    assert "its weights are torn" in report.engines[0].reason
    assert engine.asked == verification.ATTEMPTS


async def test_an_engine_that_is_gone_fails_and_the_others_are_compared(live: LiveRun, serve) -> None:
    async with serve(Engine(live.tensors())) as urls:
        live.write(*records([*urls, "http://127.0.0.1:9"]))
        report = await verify_run(live.folder)
    assert [engine.state for engine in report.engines] == ["equal", "failed"]
    assert "http://127.0.0.1:9" in report.engines[1].reason
    assert not report.ok


async def test_an_engine_that_was_left_behind_is_not_asked(live: LiveRun, serve) -> None:
    behind = Engine(live.tensors())
    async with serve(Engine(live.tensors()), behind) as urls:
        one, other = records(urls)
        live.write(one, EngineRecord(other.name, other.url, holds=False))
        report = await verify_run(live.folder)
        live.write(EngineRecord(other.name, other.url, holds=False))
        alone = await verify_run(live.folder)
    assert [engine.state for engine in report.engines] == ["equal", "behind"]
    assert (report.ok, behind.asked) == (True, 0)
    assert not alone.ok, "nothing was verified"


async def test_sglang_without_a_receiver_is_compared_among_its_kind(live: LiveRun, serve) -> None:
    engines = [PlainSglang({"a": "1", "b": "2"}), PlainSglang({"a": "1", "b": "2"}), PlainSglang({"a": "1", "b": "3"})]
    async with serve(*engines) as urls:
        live.write(*records(urls))
        report = await verify_run(live.folder)
        engines[2].sums["b"] = "2"
        assert (await verify_run(live.folder)).ok
        engines[1].version = 9
        late = await verify_run(live.folder)
    assert [engine.state for engine in report.engines] == ["replica", "replica", "differs"]
    (difference,) = report.engines[2].differences
    assert (difference.tensor, difference.where) == ("b", "rank 0, against engine-0")
    assert late.engines[1].reason == "it serves version 9; the run has committed 2"


async def test_a_run_that_does_not_run_says_so(live: LiveRun) -> None:
    (live.folder / "run.lock").unlink()
    with pytest.raises(CheckpointError, match="is not running"):
        await verify_run(live.folder)


async def test_a_run_whose_engines_have_no_weights_yet_says_so(live: LiveRun) -> None:
    with pytest.raises(CheckpointError, match="no weights yet"):
        await verify_run(live.folder)
