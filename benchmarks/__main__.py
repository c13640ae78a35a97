"""``python -m benchmarks``: list the benchmarks, or run one and print its report."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import cyclopts
from cyclopts import Parameter

from benchmarks.report import Report, as_json, as_text
from miles_core.errors import MilesError

if TYPE_CHECKING:
    from collections.abc import Sequence

BENCHMARKS = {
    "plugins": "`miles plugins list` among 200 distributions against a bare Python, and calls of a plugin.",
    "replay": "What routing replay costs in a training step.",
    "r3": "Routing replay: trainer against rollout logprobs with and without it.",
    "routing": "A routing payload off the wire against the plain way: seconds and peak memory.",
    "memory": "Peak memory of a training run, by process.",
    "quickstart": "Does the quickstart learn, on several seeds, and how fast?",
    "engine": "Tokens per second of the embedded engine against Hugging Face generate().",
    "router": "Requests per second through the router against direct ones.",
    "sessions": "Sessions: turns of a long conversation, memory of many, processor time of the server.",
    "trl": "Samples per second of whole training loops: miles against TRL's GRPOTrainer.",
    "data": "Start-up, speed and peak memory of a large JSONL file, shuffled.",
    "checkpoint": "Saving and loading checkpoints against raw safetensors of the same bytes.",
    "weights": "The memory transport against a plain copy of the same bytes, with verification apart.",
    "weights_delta": "What changed between two versions of weights: GB/s to code it, and how small it gets.",
    "weights_mooncake": "The mooncake transport against a bare batch_transfer_sync_write of the same bytes.",
    "weights_plan": "Planning an update of 10^12 parameters over 32 + 32 machines: seconds and memory.",
    "report_page": "The page of `miles report` of 10,000 episodes: seconds and size.",
}


def main(argv: Sequence[str]) -> int:
    """Run the command line ``argv``; returns the exit code."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # loading bars have no place in a report
    app = cyclopts.App(
        name="python -m benchmarks",
        help="Measure miles on this machine. `python -m benchmarks NAME --help` says what one measures and takes.",
        version_flags=[],
    )
    for name, summary in BENCHMARKS.items():
        # A given help spares the import: only the benchmark that was named is imported, and explains itself.
        app.command(f"benchmarks.{name}:run", name=name, help=None if name in argv else summary)

    @app.meta.default
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        json: Annotated[bool, Parameter(negative=())] = False,
    ) -> int:
        """List the benchmarks, or run one.

        Parameters
        ----------
        json
            Print one JSON object instead of a table.
        """
        report = app(tokens, result_action="return_value")
        if isinstance(report, Report):
            sys.stdout.write(as_json(report) if json else as_text(report))
        return 0

    try:
        code = app.meta(argv, result_action="return_value")
    except MilesError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
