"""The memory transport against a plain copy of the same bytes, with verification apart."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.report import Report, Value
from benchmarks.timing import Timings
from miles_core.kinds.base import PluginContext
from miles_core.lib.layout import build_layout, parameter_table
from miles_core.types import NameMapping, Opening
from miles_core.weights.live import LiveWeights
from miles_core.weights.plan import Receiver, make_plan
from miles_core.weights.source import WeightSource
from miles_plugins.transports.memory import Memory

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from miles_core.weights.plan import Plan

COPY, MOVE, VERIFIED, HASH = "memcpy", "transfer alone", "transfer with checksums", "hash of what the engine holds"
ROWS = 4096


def run(*, repeats: int = 9, mebibytes: int = 1024, bucket_mebibytes: int = 64) -> Report:
    """Bring bfloat16 weights from a trainer's process into the parameters of another, bucket by bucket.

    Parameters
    ----------
    repeats
        How often each is measured.
    mebibytes
        Size of the model.
    bucket_mebibytes
        Size of a bucket.
    """
    torch.set_num_threads(1)
    weights = _model(mebibytes)
    plan = _plan(weights, bucket_mebibytes << 20)
    live = LiveWeights(parameter_table(weights), weights)
    source = {name: tensor.clone() for name, tensor in weights.items()}
    timings = Timings([COPY, MOVE, VERIFIED, HASH], COPY)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    trainer = context.Process(target=_trainer, args=(theirs, mebibytes, bucket_mebibytes << 20))
    trainer.start()
    receiver = Memory(None, PluginContext())
    try:
        ours.recv()
        for verified in (False, True):  # from the second time on, the segments are there
            _update(ours, receiver, live, plan, verified=verified)
        for case in timings.rounds(repeats):
            begin = time.perf_counter()
            if case == COPY:
                for name, tensor in source.items():
                    weights[name].copy_(tensor)
            elif case == HASH:
                for bucket in plan.buckets:
                    live.checksums(bucket.placements)
            else:
                _update(ours, receiver, live, plan, verified=case == VERIFIED)
            timings.add(case, time.perf_counter() - begin)
        ours.send(None)
    finally:
        receiver.close()
        trainer.join(10)
        trainer.kill()
    gib = plan.nbytes / (1 << 30)
    rows = [timings.rate_row(case, gib, "GiB_per_s") for case in (COPY, MOVE, VERIFIED, HASH)]
    summary: dict[str, Value] = {"GiB": gib, "buckets": len(plan.buckets)}
    summary |= {
        "transfer_over_memcpy_best": rows[1]["ratio_best"],
        "transfer_over_memcpy_median": rows[1]["ratio_median"],
    }
    return Report(
        benchmark="weights",
        rows=rows,
        summary=summary,
        notes=(
            f"{repeats} of each in turns; ratios are speeds over one thread that copies the same tensors.",
            "The trainer packs a bucket while the engine writes the one before; both on this machine's cores.",
        ),
    )


def _model(mebibytes: int) -> dict[str, torch.Tensor]:
    columns = 1024
    count = max(1, (mebibytes << 20) // (ROWS * columns * 2))
    return {f"layer{i}.weight": torch.randn(ROWS, columns).to(torch.bfloat16) for i in range(count)}


def _plan(weights: dict[str, torch.Tensor], bucket_bytes: int) -> Plan:
    layout = build_layout(NameMapping(), parameter_table(weights), {})
    return make_plan(layout, {Receiver("engine"): layout}, bucket_bytes)


def _trainer(pipe: Connection[Any, Any], mebibytes: int, bucket_bytes: int) -> None:
    """Stage the buckets of an update whenever asked for, one ahead of what is asked."""
    torch.set_num_threads(1)
    weights = _model(mebibytes)
    plan = _plan(weights, bucket_bytes)
    layout = build_layout(NameMapping(), parameter_table(weights), {})
    sources = {
        verified: WeightSource(layout, lambda: weights, lambda _: Memory(None, PluginContext()), **digest)
        for verified, digest in ((False, {"digest": lambda _: ""}), (True, {}))
    }
    pipe.send("ready")
    while (verified := pipe.recv()) is not None:
        source = sources[verified]

        source.open("memory", Opening(1))
        staged = [source.stage(plan.buckets[0])]
        for bucket in (*plan.buckets[1:], None):
            pipe.send(staged[-1][0])
            if bucket is not None:
                staged.append(source.stage(bucket))
            pipe.recv()
            source.release(staged[-2 if bucket is not None else -1][0])
    for source in sources.values():
        source.close()


def _update(pipe: Connection[Any, Any], receiver: Memory, live: LiveWeights, plan: Plan, *, verified: bool) -> None:
    pipe.send(verified)
    for bucket in plan.buckets:
        data = receiver.receive(pipe.recv(), bucket, lambda: bytearray())
        live.write(bucket, data)
        pipe.send("written")
