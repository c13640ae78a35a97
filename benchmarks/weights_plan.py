"""Planning an update of a trillion parameters over 32 + 32 machines: seconds and peak memory of the planner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Report
from miles_core.errors import MilesError

if TYPE_CHECKING:
    from benchmarks.report import Value

BOUND_SECONDS, BOUND_GB = 60.0, 4.0
# The sizes of Kimi K2, with the attention of Qwen3-MoE.
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_experts": 384,
    "num_experts_per_tok": 8,
    "mlp_only_layers": [0],
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
TRAINER = "tp=8,pp=8,ep=32,dp=4"
ENGINES = ("32xtp=8,ep=8", "4xtp=64,ep=64")


def run(*, trainer: str = TRAINER, engines: tuple[str, ...] = ENGINES) -> Report:
    """Run ``miles weights plan`` on a config of 1.03 trillion parameters, in a process of its own for each engine side.

    Parameters
    ----------
    trainer
        Sizes of the trainer.
    engines
        Numbers and sizes of engines, one case each.
    """
    rows = [_measure(trainer, one) for one in engines]
    seconds = max(float(row["seconds"] or 0) for row in rows)
    memory = max(float(row["peak_gb"] or 0) for row in rows)
    return Report(
        "weights_plan",
        rows,
        {"seconds": seconds, "peak_gb": memory, "within_bounds": seconds < BOUND_SECONDS and memory < BOUND_GB},
        (
            f"The whole command; trainer {trainer}; {len(os.sched_getaffinity(0))} cores.",
            f"Bounds: {BOUND_SECONDS:g} s and {BOUND_GB:g} GB (10^9 bytes, resident).",
            "busiest: bytes of the sender with most over the mean. cpu_seconds do not grow on a busy machine.",
        ),
    )


def _measure(trainer: str, engines: str) -> dict[str, Value]:
    with tempfile.TemporaryDirectory(prefix="miles-plan-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        file = Path(folder) / "plan.json"
        argv = [sys.executable, "-m", "miles_core.cli", "weights", "plan", folder, "--json", str(file)]
        with (Path(folder) / "errors").open("w+") as errors:
            begin = time.perf_counter()
            process = subprocess.Popen(
                [*argv, "--trainer", trainer, "--engines", engines], stdout=subprocess.DEVNULL, stderr=errors
            )
            _, status, usage = os.wait4(process.pid, 0)  # of this child alone
            seconds = time.perf_counter() - begin
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise MilesError(f"miles weights plan failed: {Path(errors.name).read_text().strip()}")
        plan = json.loads(file.read_text())
    sent = plan["sent_bytes"]
    return {
        "engines": engines,
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_gb": usage.ru_maxrss * 1024 / 1e9,
        "parameters": float(plan["parameters"]),
        "sent_tb": sum(sent) / 1e12,
        "busiest": max(sent) * len(sent) / sum(sent),
        "predicted_s": plan["predicted_seconds"],
    }
