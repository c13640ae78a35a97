"""A whole run: what it learns from, what it leaves behind, and how it ends."""

from __future__ import annotations

import json
import tomllib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from miles_core.config.load import load_config

from .conftest import ROOT

EXPECTED = {
    "rollout/reward", "rollout/response_length_mean", "rollout/response_length_max", "rollout/turns",
    "rollout/repetition",
    "rollout/env_retries", "rollout/staleness_mean", "rollout/staleness_max", "train/loss", "train/pg_loss",
    "train/entropy", "train/clip_fraction", "train/grad_norm", "train/ess", "train/rollout_logprob_abs_diff",
    "train/rollout_kl", "replay/mismatch_fraction", "weights/sync_seconds", "weights/bytes", "weights/version",
    "perf/tokens_per_second", "perf/phase/rollout", "perf/phase/train", "perf/phase/sync",
}  # fmt: skip


def test_a_run_leaves_everything_that_it_takes_to_read_and_repeat_it(miles) -> None:
    run = miles.train()
    assert run.process.returncode == 0, run.output
    assert "format only" in run.output, "the warm-up is declared"
    assert [line.split(":")[0] for line in run.output.splitlines()[-3:]] == ["trained", "files", "next"]

    assert [row["step"] for row in run.metrics] == [1, 2, 3]
    trained = [row for row in run.metrics if "train/loss" in row]
    assert trained, "at least one step had something to learn"
    for row in trained:
        assert set(row) >= EXPECTED
        assert row["train/rollout_logprob_abs_diff_max"] < 1e-4
        assert row["rollout/staleness_max"] == 0
        assert row["weights/bytes"] == 4 * 235_776
    assert run.metrics[-1]["weights/version"] == len(trained)

    resolved = tomllib.loads((run.folder / "config.toml").read_text())
    assert resolved["rollout"]["groups_per_step"] == 4
    assert load_config(run.folder / "config.toml").resolve("model").is_dir()
    lock = json.loads((run.folder / "plugins.json").read_text())
    assert next(row["name"] for row in lock if row["kind"] == "environments") == "lookup"
    assert all(row["distribution"] == "miles-hub" for row in lock)
    assert "[tool]" in (run.folder / "samples" / "step-0.txt").read_text()

    before, after = (
        AutoModelForCausalLM.from_pretrained(run.folder / "checkpoints" / f"step-{step}") for step in (0, 3)
    )
    tokenizer = AutoTokenizer.from_pretrained(run.folder / "checkpoints" / "step-3")
    ids = tokenizer("get c", return_tensors="pt").input_ids
    with torch.no_grad():
        assert not torch.equal(before(ids).logits, after(ids).logits)


def test_asynchronous_training_stays_within_its_staleness_bound(miles) -> None:
    run = miles.train(rollout__max_staleness=1, run__steps=5)
    assert run.process.returncode == 0, run.output
    staleness = [row["rollout/staleness_max"] for row in run.metrics]
    assert max(staleness) <= 1
    assert 1 in staleness, "generation ran ahead"


def test_a_dense_model_trains_through_the_same_path_with_checkpointing(miles, tmp_path) -> None:
    model = tmp_path / "dense"
    model.mkdir()
    for file in (ROOT / "examples" / "quickstart" / "model").iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    config = json.loads((model / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True}
    (model / "config.json").write_text(json.dumps(config))
    run = miles.train(model__path=model, train__activation_checkpointing="true", run__steps=2)
    assert run.process.returncode == 0, run.output
    assert all("replay/mismatch_fraction" not in row for row in run.metrics)
    AutoModelForCausalLM.from_pretrained(run.folder / "checkpoints" / "step-2")


def test_a_solved_task_ends_the_run_well(miles, tmp_path) -> None:
    (tmp_path / "always.py").write_text("def one(trajectory):\n    return 1.0\n")
    run = miles.train(rewards='[{use = "always:one"}]', run__steps=50, run__max_empty_steps=2)
    assert run.process.returncode == 0, run.output
    assert "solved the task" in run.output
    assert [row["rollout/dropped/equal_rewards"] for row in run.metrics] == [4, 4]
    assert (run.folder / "checkpoints" / "step-2").is_dir()


def test_nothing_to_learn_from_ends_the_run_with_an_error_that_says_why(miles) -> None:
    run = miles.train(rewards__0__min_turns=9, run__steps=50, run__max_empty_steps=2)
    assert run.process.returncode == 1
    assert "2 steps in a row had no group to train on (8 equal_rewards)" in run.output
    assert "mean reward of 0.000" in run.output
    assert "Traceback" not in run.output
    ending = json.loads((run.folder / "ending.json").read_text())
    assert ending["detail"].startswith("2 steps in a row had no group to train on"), "what the report shows"


def test_the_same_seed_gives_the_same_first_rollout(miles) -> None:
    runs = [miles.train(run__steps=1) for _ in range(2)]
    first, second = ((run.folder / "samples" / "step-0.txt").read_text() for run in runs)
    assert first == second
