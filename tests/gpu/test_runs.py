"""Whole runs with the trainer on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from miles_core.app.r3_report import report_step

from .conftest import SECONDS


def finished(run: Any) -> list[dict[str, float]]:
    """The metrics of the steps that trained, once the run has ended well."""
    output, _ = run.process.communicate(timeout=SECONDS - 60)
    assert run.process.returncode == 0, output
    assert [row["step"] for row in run.metrics] == [1, 2, 3]
    trained = [row for row in run.metrics if "train/loss" in row]
    assert trained, "at least one step had something to learn"
    assert run.metrics[-1]["weights/version"] == len(trained)
    return trained


def test_the_quickstart_runs_with_its_engine_on_the_cpu(miles: Any) -> None:
    run = miles.start(train__device="cuda", arguments=["--dump", "all"])
    trained = finished(run)
    for row in trained:
        assert row["train/rollout_logprob_abs_diff_max"] < 1e-3, "float32 on both sides, also after updates"
    report = report_step(run.folder, int(trained[0]["step"]), perturb=0.2)
    assert max(report.without.used) > 0
    assert max(report.replayed.used) == 0


@pytest.mark.parametrize("placement", ["disaggregated", "colocated"])
def test_the_quickstart_runs_on_sglang_with_routed_experts(
    miles: Any, large_model: Path, sglang_python: str, placement: str
) -> None:
    """Replay proves its routes in each pass, or the run fails; colocated, each step releases and resumes memory."""
    run = miles.start(
        model__path=large_model,
        train__device="cuda",
        engine__use="sglang",
        engine__python=sglang_python,
        engine__device="cuda",
        engine__dtype="bfloat16",
        engine__mem_fraction_static=0.3,
        engine__max_total_tokens=1 << 16,
        run__placement=placement,
    )
    for row in finished(run):
        assert "replay/mismatch_fraction" in row
        assert row["train/rollout_logprob_abs_diff"] < 0.1, "bfloat16 against float32"
