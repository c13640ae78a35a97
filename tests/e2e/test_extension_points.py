"""A run with every function of docs/extending.md: generate, match, pick, correction and reduction together."""

from __future__ import annotations

import re

from .conftest import ROOT

FENCE = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)


def test_a_run_uses_the_functions_that_its_config_names(miles) -> None:
    for text, name in FENCE.findall((ROOT / "docs/extending.md").read_text("utf-8")):
        (miles.folder / name).write_text(text, "utf-8")
    run = miles.train(
        run__steps=2,
        rollout__max_turns=3,
        rollout__generate__use="my_generate:best_of_two",
        session__match="my_match:ignore_spaces",
        session__pick="my_pick:last_call",
        correction__use="my_correction:reject_far",
        correction__limit=1.5,
        objective__reduction="my_reduction:fixed_length",
    )
    assert run.process.returncode == 0, run.output
    trained = [row for row in run.metrics if "train/loss" in row]
    assert trained, "at least one step had something to learn"
    for row in trained:
        assert row["train/correction_rejected"] == 0
        assert row["train/correction_weight"] == 1
        assert row["train/correction/gap_max"] < 1e-4
        assert row["rollout/turns"] <= 2, "of three turns at most two are one conversation"
