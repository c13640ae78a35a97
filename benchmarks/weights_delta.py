"""Weight deltas: how fast changed bytes are coded, and how small, against a plain copy of the same bytes."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.report import Report
from benchmarks.timing import Timings
from miles_core.api import Bucket, Opening, Placement, PluginContext, StreamTargets, TensorSpec
from miles_core.errors import ConfigError
from miles_plugins.transports.delta_codec import decode, encode
from miles_plugins.transports.disk_delta import DiskDelta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from benchmarks.report import Value

    Bytes = NDArray[np.uint8]

COPY, WIDTH = "memcpy", 2
SCALE = 0.02  # standard deviation of the weights, as models are initialised and about as they end up
RATES = (1e-6, 1e-5, 1e-4)


def run(*, mib: int = 64, share: float = 0.01, repeats: int = 7, level: int = 1, folder: Path | None = None) -> Report:
    """Code and decode the changes of a bfloat16 tensor, alone and by the whole transport, in turns with a copy of it.

    Parameters
    ----------
    mib
        Size of the tensor.
    share
        Share of elements that differ, in the cases that fix it; the others are what an AdamW step changes.
    repeats
        How often each is measured.
    level
        zstd's level.
    folder
        Where the transport writes; default: what the transport itself chooses.
    """
    if mib < 1 or not 0 < share <= 1 or repeats < 1:
        raise ConfigError(f"mib and repeats must be at least 1, share in (0, 1]; got {mib}, {repeats}, {share}")
    elements = mib * (1 << 20) // WIDTH
    rows: list[dict[str, Value]] = []
    for change, old, new in _changes(elements, share):
        timings = Timings([COPY, *_CASES], COPY)
        case = _Case(old, new, level, folder)
        for name in timings.rounds(repeats):
            timings.add(name, case.seconds(name))
        part = float(np.mean(old.view(np.uint16) != new.view(np.uint16)))
        for name in (COPY, *_CASES):
            shown = timings.rate_row(name, new.nbytes / 1e9, "GB_per_s")
            rows.append({"change": change, "changed": part, **shown, "times_smaller": case.smaller.get(name)})
        case.close()
    return Report(
        benchmark="weights_delta",
        rows=rows,
        summary=_summary(rows),
        notes=(
            f"{repeats} of each in turns, {mib} MiB of bfloat16, {len(os.sched_getaffinity(0))} cores; GB/s of tensor.",
            "Ratios are speeds over memcpy. send: changes, checksums, the file and the copy for next time.",
            "receive: a copy of what is held, the file, changes and checksums.",
            "AdamW: a step in float32 after 20 others, with gradients whose noise is as large as their mean.",
        ),
    )


class _Case:
    """All that is measured of one pair of old and new bytes."""

    def __init__(self, old: Bytes, new: Bytes, level: int, folder: Path | None) -> None:
        self._old, self._new = old, new
        self._copy = np.copy(old)
        self._level = level
        self.smaller: dict[str, float] = {}
        spec = TensorSpec("w", "bfloat16", (new.size // WIDTH,))
        placement = Placement(spec, spec.whole, "w", 0)
        self._bucket = Bucket(0, (placement,), new.nbytes)
        config = DiskDelta.Config(dir=None if folder is None else str(folder), level=level)
        self._transport = DiskDelta(config, PluginContext())
        self._version = 0
        self._sent = self._receive_whole()

    def seconds(self, case: str) -> float:
        """Of one run of the case; what comes out is compared with the new bytes."""
        return _CASES[case](self) if case in _CASES else _seconds(lambda: np.copyto(self._copy, self._old))

    def code(self, *, xor: bool) -> float:
        """Encode."""
        body: list[bytes] = []
        options = {"width": WIDTH, "xor": xor, "level": self._level}
        spent = _seconds(lambda: body.extend(encode(self._old, self._new, **options)))
        self._note("xor" if xor else "overwrite", sum(map(len, body)))
        return spent

    def decode(self, *, xor: bool) -> float:
        """Decode, in place."""
        body = b"".join(encode(self._old, self._new, width=WIDTH, xor=xor, level=self._level))
        data = np.copy(self._old)
        spent = _seconds(lambda: decode(memoryview(body), data, width=WIDTH, xor=xor))
        assert np.array_equal(data, self._new)
        return spent

    def transport(self, *, receive: bool) -> float:
        """Send the change, or receive it; every second time it is the change back."""
        held, data = self._sent, self._new if self._sent is self._old else self._old
        self._open(self._version)
        begin = time.perf_counter()
        delivery = self._transport.send(self._bucket, data.data)
        sent = time.perf_counter() - begin
        assert delivery.get("base") == self._version - 1 or self.smaller["xor"] <= 1
        begin = time.perf_counter()
        arrived = self._transport.receive(delivery, self._bucket, lambda: bytearray(held))
        received = time.perf_counter() - begin
        assert arrived == data.data
        self._transport.release(delivery)
        self._sent = data
        return received if receive else sent

    def close(self) -> None:
        """Remove what is left."""
        self._transport.close()

    def _receive_whole(self) -> Bytes:
        self._open(None)
        self._transport.release(self._transport.send(self._bucket, self._old.data))
        return self._old

    def _open(self, base: int | None) -> None:
        targets = StreamTargets(self._bucket.placements, ({},), (base,))
        self._version += 1
        self._transport.open(Opening(self._version, (targets,)))

    def _note(self, case: str, size: int) -> None:
        self.smaller[case] = self._new.nbytes / size if size else math.inf


_CASES: Mapping[str, Callable[[_Case], float]] = {
    "xor": lambda case: case.code(xor=True),
    "overwrite": lambda case: case.code(xor=False),
    "xor, decode": lambda case: case.decode(xor=True),
    "overwrite, decode": lambda case: case.decode(xor=False),
    "send": lambda case: case.transport(receive=False),
    "receive": lambda case: case.transport(receive=True),
}


def _changes(elements: int, share: float) -> Iterator[tuple[str, Bytes, Bytes]]:
    """Names, and old and new bytes of bfloat16 tensors."""
    rng = np.random.default_rng(0)
    weights = torch.from_numpy(rng.standard_normal(elements, np.float32) * SCALE)
    old = _bfloat16(weights)
    chosen = rng.random(elements, np.float32) < share
    for name, mask in (
        ("other values", rng.integers(1, 1 << 16, elements, np.uint16)),
        ("neighbours", np.ones(elements, np.uint16)),
    ):
        yield name, old, (old.view(np.uint16) ^ (mask * chosen)).view(np.uint8)
    for rate in RATES:
        yield f"AdamW, {rate:g}", *_step(weights, rate)


def _step(weights: torch.Tensor, rate: float) -> tuple[Bytes, Bytes]:
    parameter = torch.nn.Parameter(weights.clone())
    optimizer = torch.optim.AdamW([parameter], lr=rate)
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(weights.shape, generator=generator)
    for _ in range(20):
        parameter.grad = torch.randn(weights.shape, generator=generator).add_(mean)
        optimizer.step()
    old = _bfloat16(parameter)
    parameter.grad.normal_(generator=generator).add_(mean)
    optimizer.step()
    return old, _bfloat16(parameter)


def _bfloat16(weights: torch.Tensor) -> Bytes:
    return weights.detach().to(torch.bfloat16).view(torch.uint8).numpy()


def _summary(rows: list[dict[str, Value]]) -> dict[str, Value]:
    """What the 1 %-changed tensor is judged by."""
    first = {row["case"]: row for row in rows if row["change"] == rows[0]["change"]}
    return {
        "encode_GB_per_s": first["xor"]["best_GB_per_s"],
        "encode_over_memcpy": first["xor"]["ratio_best"],
        "times_smaller": first["xor"]["times_smaller"],
    }


def _seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin
