"""A predicted plan as text and as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from miles_core.weights.plan import Stream
    from miles_core.weights.planning.grid import TrainerGrid
    from miles_core.weights.planning.model import PlannedModel
    from miles_core.weights.planning.predict import EngineGroup, PredictedPlan
    from miles_core.weights.planning.traffic import Links, Traffic


def describe(
    model: PlannedModel,
    trainer: TrainerGrid,
    groups: Sequence[EngineGroup],
    found: PredictedPlan,
    moved: Traffic,
    rates: Links,
) -> str:
    """The model, both sides, what moves, how long it takes, and what cannot be planned, in this order."""
    held = [sum(box.nbytes for box in layout.placements) for layout in {id(one): one for one in found.sources}.values()]
    lines = [
        f"model      {_model(model)}",
        f"trainer    {_ranks(trainer.ranks)} hold {_spread(held)}",
        *(f"engines    {group.name}: {_ranks(group.grid.ranks * group.replicas)}" for group in groups),
        "",
        *_receivers(found.plan.streams),
        "",
        f"senders    {_ranks(len(moved.sent))} send {_spread(moved.sent.tolist())}",
        f"in all     {_size(int(moved.sent.sum()))}, of which {_size(int(moved.sent_near.sum()))} stay on a machine",
        f"predicted  {moved.seconds(rates):.3g} s at {_rates(rates)}",
    ]
    lines += [f"\ncannot be updated: {name}\n  {reason}" for name, reason in found.problems.items()]
    return "\n".join(lines) + "\n"


def as_dict(model: PlannedModel, found: PredictedPlan, moved: Traffic, rates: Links) -> dict[str, Any]:
    """The same for machines, with each sender and each bucket."""
    return {
        "architecture": model.architecture,
        "tensors": len(model.layout.placements),
        "parameters": _parameters(model),
        "predicted_seconds": moved.seconds(rates),
        "sent_bytes": moved.sent.tolist(),
        "sent_bytes_on_one_machine": moved.sent_near.tolist(),
        "streams": [
            {
                "receivers": [[receiver.engine, receiver.rank] for receiver in stream.receivers],
                "nbytes": stream.nbytes,
                "bucket_nbytes": [bucket.nbytes for bucket in stream.buckets],
            }
            for stream in found.plan.streams
        ],
        "problems": found.problems,
    }


def _model(model: PlannedModel) -> str:
    size = _size(sum(placement.nbytes for placement in model.layout.placements))
    tensors = len(model.layout.placements)
    return f"{model.architecture}: {tensors} tensors, {_count(_parameters(model))} parameters, {size}"


def _receivers(streams: Sequence[Stream]) -> Iterator[str]:
    """One row for receivers that differ only in which part they hold."""
    rows: dict[tuple[int, int, int], list[Stream]] = {}
    for stream in streams:
        rows.setdefault((len(stream.boxes), len(stream.buckets), stream.nbytes), []).append(stream)
    yield f"receivers  {'ranks':>5}  {'layouts':>7}  {'boxes':>6}  {'buckets':>7}  each gets"
    for (boxes, buckets, nbytes), alike in rows.items():
        ranks = sum(len(stream.receivers) for stream in alike)
        yield f"{'':9}  {ranks:5}  {len(alike):7}  {boxes:6}  {buckets:7}  {_size(nbytes)}"


def _rates(links: Links) -> str:
    each = f"{links.latency * 1e6:g} us for each bucket"
    return f"{links.rdma:g} GB/s between machines, {links.node:g} GB/s within, and {each}"


def _spread(values: Sequence[int]) -> str:
    low, mean, high = min(values), sum(values) / len(values), max(values)
    if low == high:
        return _size(low) if len(values) == 1 else f"{_size(low)} each"
    return f"{_size(low)} to {_size(high)}, {_size(round(mean))} on average"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _parameters(model: PlannedModel) -> int:
    return sum(math.prod(placement.tensor.shape) for placement in model.layout.placements)


def _size(nbytes: int) -> str:
    return _scaled(nbytes, ["B", "kB", "MB", "GB", "TB"])


def _count(number: int) -> str:
    return _scaled(number, ["", "thousand", "million", "billion", "trillion"]).strip()


def _scaled(number: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if number < 1000:
            return f"{number:.4g} {unit}"
        number /= 1000
    return f"{number:.4g} {units[-1]}"
