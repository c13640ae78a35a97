"""The mooncake transport against a bare ``batch_transfer_sync_write`` of the same bytes."""

from __future__ import annotations

import multiprocessing
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.report import Report, Value
from benchmarks.timing import Timings
from miles_core.errors import MilesError
from miles_core.kinds.base import PluginContext
from miles_core.types import Bucket, Opening, Placement, StreamTargets, TensorSpec
from miles_plugins.transports.mooncake import Mooncake
from miles_plugins.transports.transfer_engine.endpoint import BATCH
from miles_plugins.transports.transfer_engine.facade import transfer_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

BARE, OURS = "bare batch_transfer_sync_write", "miles"
BOUND = 0.9
HOST = "127.0.0.1"


def run(*, repeats: int = 81, megabytes: int = 64) -> Report:
    """Write buckets into the parameters of another process over loopback TCP, by the transport and without it.

    Both write the same chunks to the same addresses, in turns: a few large parameters, and many small ones. Payloads
    lie in two places in turns, so that the transport registers each anew.

    Parameters
    ----------
    repeats
        Rounds.
    megabytes
        Size of a bucket, in MiB.
    """
    rows: list[dict[str, Value]] = []
    summary: dict[str, Value] = {}
    for name, count in (("16 parameters a bucket", 16), ("2048 parameters a bucket", 2048)):
        timings, ratio = _measure(count, (megabytes << 20) // count, repeats)
        rows += [{"bucket": name, **timings.rate_row(case, (megabytes << 20) / 1e9, "gb_s")} for case in (BARE, OURS)]
        summary[f"of bare, {name}"] = ratio
        summary[f"at least {BOUND:g}, {name}"] = ratio >= BOUND
    notes = ("GB/s of payload. Of bare: the median over rounds of the rate over its neighbour's in time.",)
    return Report("weights_mooncake", rows, summary, notes)


def _measure(count: int, nbytes: int, repeats: int) -> tuple[Timings, float]:
    placements = tuple(_placement(f"p{number}", nbytes) for number in range(count))
    payloads = [torch.full([count * nbytes], value, dtype=torch.uint8) for value in (1, 2)]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    receiver = context.Process(target=_receive, args=(theirs, count, nbytes), daemon=True)
    receiver.start()
    transport = Mooncake(Mooncake.Config(protocol="tcp", host=HOST), PluginContext())
    try:
        offer = ours.recv()
        transport.open(Opening(1, (StreamTargets(placements, (offer,), (None,)),)))
        bucket = Bucket(0, placements, count * nbytes)
        cases = {BARE: _bare(offer, placements, payloads), OURS: _through(transport, bucket, payloads)}
        for case in cases.values():
            case(0)
        return _time(cases, repeats)
    finally:
        transport.close()
        receiver.kill()
        receiver.join()


def _time(cases: Mapping[str, Callable[[int], None]], repeats: int) -> tuple[Timings, float]:
    """The timings, and the median over rounds of the bare seconds over ours."""
    timings = Timings(tuple(cases), BARE)
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    for case in timings.rounds(repeats):
        started = time.perf_counter()
        cases[case](len(seconds[case]))
        seconds[case].append(time.perf_counter() - started)
        timings.add(case, seconds[case][-1])
    return timings, median(bare / ours for bare, ours in zip(seconds[BARE], seconds[OURS], strict=True))


def _through(transport: Mooncake, bucket: Bucket, payloads: list[torch.Tensor]) -> Callable[[int], None]:
    def case(number: int) -> None:
        delivery = transport.send(bucket, payloads[number % 2].numpy().data)
        transport.release(delivery)
        if "failed" in delivery:
            raise MilesError(f"a write failed: {delivery['failed']}")

    return case


def _bare(
    offer: Mapping[str, Any], placements: tuple[Placement, ...], payloads: list[torch.Tensor]
) -> Callable[[int], None]:
    engine = transfer_engine()
    engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "")
    for payload in payloads:
        engine.register_memory(payload.data_ptr(), payload.nbytes)
    targets = [offer["addresses"][placement.parameter] for placement in placements]
    lengths = [placement.nbytes for placement in placements]

    def case(number: int) -> None:
        first = payloads[number % 2].data_ptr()
        sources = [first + index * lengths[0] for index in range(len(lengths))]
        for start in range(0, len(lengths), BATCH):
            part = slice(start, start + BATCH)
            status = engine.batch_transfer_sync_write(offer["session"], sources[part], targets[part], lengths[part])
            if status != 0:
                raise MilesError(f"a bare write failed with status {status}")

    return case


def _receive(connection: Connection, count: int, nbytes: int) -> None:
    """The other process: parameters, until it is killed."""
    tensors = {f"p{number}": torch.zeros(nbytes, dtype=torch.uint8) for number in range(count)}
    end = Mooncake(Mooncake.Config(protocol="tcp", host=HOST), PluginContext())
    connection.send(dict(end.offer(tensors)))
    connection.recv()


def _placement(parameter: str, nbytes: int) -> Placement:
    spec = TensorSpec(parameter, "uint8", (nbytes,))
    return Placement(spec, spec.whole, parameter, 0)
