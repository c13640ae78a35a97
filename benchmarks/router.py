"""What the router costs: the same requests to the same trivial worker, direct and through it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import anyio

from benchmarks import serving
from benchmarks.load import client, wave
from benchmarks.report import Report, Value
from benchmarks.timing import Timings

DIRECT, ROUTED = "direct", "through the router"
CONCURRENCY = (1, 16, 256)
BODY = json.dumps(
    {
        "rid": "s0-g0-t0-0",
        "input_ids": list(range(17)),
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 6, "stop_token_ids": [2], "sampling_seed": 1},
        "return_logprob": True,
        "return_routed_experts": True,
        "routed_experts_start_len": 0,
    }
).encode()
# As long as a turn of the quickstart: six tokens with logprobs, versions and the routing of 22 rows.
_ANSWER = (84, 82, 97, 13, 80, 2)
_ROUTING = "AAAAAAEAAAA" * 43


def run(*, requests: int = 500, repeats: int = 7) -> Report:
    """Requests per second through the router against direct ones.

    The router runs the quickstart's middleware in front of a worker that answers at once, so that all of the
    difference is the router's. Client, router and worker share the machine's cores.

    Parameters
    ----------
    requests
        Requests of one wave.
    repeats
        Waves of each kind, in turns.
    """
    return anyio.run(_run, requests, repeats)


async def _run(requests: int, repeats: int) -> Report:
    with tempfile.TemporaryDirectory(prefix="miles-router-") as folder:
        logs = Path(folder)
        async with (
            serving.worker(_ANSWER, routed_experts=_ROUTING, log=logs / "worker.log") as worker,
            serving.router(worker, log=logs / "router.log") as router,
            client() as http,
        ):
            urls = {DIRECT: f"{worker}/generate", ROUTED: f"{router}/generate"}
            rows: list[dict[str, Value]] = []
            added: dict[str, Value] = {}
            for concurrency in CONCURRENCY:
                timings = Timings([DIRECT, ROUTED], DIRECT)
                for url in urls.values():
                    await wave(http, url, [BODY] * max(100, concurrency), concurrency)
                for case in timings.rounds(repeats):
                    timings.add(case, await wave(http, urls[case], [BODY] * requests, concurrency))
                rows += [
                    {"concurrency": concurrency, **timings.rate_row(case, requests, "requests_per_s")} for case in urls
                ]
                difference = timings.fastest(ROUTED) - timings.fastest(DIRECT)
                added[f"added_ms_per_request_at_{concurrency}"] = 1e3 * difference / requests
    return Report(
        "router",
        rows,
        added,
        (
            f"Waves of {requests} requests, {repeats} of each kind in turns. Yardstick: direct to the same worker.",
            "added ms per request: the difference of the fastest waves over their requests.",
        ),
    )
