"""A routing payload off the wire against the plain way: seconds and peak memory."""

from __future__ import annotations

import base64
import time
import tracemalloc
import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.report import Report
from benchmarks.timing import Timings
from miles_core.engine.routing_payload import decode_routing
from miles_core.errors import MilesError
from miles_core.types import RoutingSpec, RoutingTrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.report import Value

PLAIN, OURS = "plain, unchecked (yardstick)", "miles, checked"
GOAL_SPEED = 2.0
GOAL_MEMORY = 0.25


def run(*, rows: int = 32767, layers: int = 48, top_k: int = 8, experts: int = 128, repeats: int = 9) -> Report:
    """Decode a payload into one contiguous tensor per layer: miles against standard base64 and int32 copies.

    Miles also checks range and distinctness of all experts. No JSON is parsed on either side. The goals: twice as fast,
    at a quarter of the peak memory.

    Parameters
    ----------
    rows
        Fed tokens.
    layers
        Layers, all of them MoE.
    top_k
        Experts per token and layer.
    experts
        Experts per layer.
    repeats
        How often each side is timed, in turns.
    """
    spec = RoutingSpec(layers, tuple(range(layers)), experts, top_k)
    payload = _payload(rows, spec)
    text = payload.decode("ascii")  # as a JSON parser hands it over
    cases: dict[str, Callable[[], list[torch.Tensor]]] = {
        PLAIN: lambda: _plain(payload, rows, spec),
        OURS: lambda: _ours(text, rows, spec),
    }
    if any((ours.numpy() != plain.numpy()).any() for ours, plain in zip(cases[OURS](), cases[PLAIN](), strict=True)):
        raise MilesError("the two sides decoded different experts", remedy="This is a bug: please report it.")
    timings = Timings([PLAIN, OURS], PLAIN)
    for case in timings.rounds(repeats):
        started = time.perf_counter()
        cases[case]()
        timings.add(case, time.perf_counter() - started)
    memory = {case: _memory(action) for case, action in cases.items()}
    speed = timings.median(PLAIN) / timings.median(OURS)
    peak = memory[OURS]["peak_mb"] / memory[PLAIN]["peak_mb"]
    return Report(
        "routing",
        [_row(timings, case, memory) for case in cases],
        {
            "faster_median": speed,
            "faster_best": 1 / timings.slowdown(OURS),
            "peak_memory_ratio": peak,
            "kept_memory_ratio": memory[OURS]["kept_mb"] / memory[PLAIN]["kept_mb"],
            "within_goal": speed >= GOAL_SPEED and peak <= GOAL_MEMORY,
        },
        (
            f"{rows} rows x {layers} layers x top-{top_k} of {experts} experts, {len(payload) / 1e6:.0f} MB of base64.",
            f"{repeats} of each in turns. MB are 10^6 bytes beyond the payload, by tracemalloc in a run of its own.",
            f"Goals: {GOAL_SPEED:g} times as fast, {GOAL_MEMORY:g} of the peak memory.",
        ),
    )


def _payload(rows: int, spec: RoutingSpec) -> bytes:
    """Random distinct experts for each row and layer."""
    random = np.random.default_rng(0)
    choices = np.stack([random.permutation(spec.num_experts)[: spec.top_k] for _ in range(4096)]).astype(np.int32)
    picked = choices[random.integers(0, len(choices), (rows, spec.num_layers))]
    return base64.b64encode(picked.tobytes())


def _plain(payload: bytes, rows: int, spec: RoutingSpec) -> list[torch.Tensor]:
    routes = np.frombuffer(base64.b64decode(payload), dtype=np.int32).reshape(rows, spec.num_layers, spec.top_k)
    return [torch.from_numpy(routes[:, layer].copy()) for layer in range(spec.num_layers)]


def _ours(text: str, rows: int, spec: RoutingSpec) -> list[torch.Tensor]:
    decoded = decode_routing(text, spec, tokens=rows + 1, start=0, sent_from=0)
    trace = RoutingTrace.joined([decoded], spec)
    with warnings.catch_warnings():
        # a trace is read-only, and so must be what is made of its memory
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        layers = [torch.from_numpy(trace.experts[:, layer]) for layer in range(spec.num_layers)]
    if not all(layer.is_contiguous() for layer in layers):
        raise MilesError("a layer's rows do not lie together", remedy="This is a bug: please report it.")
    return layers


def _memory(action: Callable[[], object]) -> dict[str, float]:
    tracemalloc.start()
    try:
        held = action()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del held
    return {"peak_mb": peak / 1e6, "kept_mb": kept / 1e6}


def _row(timings: Timings, case: str, memory: dict[str, dict[str, float]]) -> dict[str, Value]:
    return {**timings.row(case), **memory[case]}
