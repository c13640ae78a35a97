"""One step with a new plugin of every kind, by config alone, in the clean environment."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from miles_core.kinds import KINDS
from miles_core.train.dump import read_train_dump

from .clean_environment import ROOT
from .conftest import NEW, Packages, distribution

QUICKSTART = ROOT / "examples" / "quickstart"
DENSE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "initializer_range", "tie_word_embeddings", "pad_token_id",
    "eos_token_id", "rope_parameters",
)  # fmt: skip
"""The keys of a model's config that a dense model has too."""


@pytest.fixture(scope="module")
def run(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the run; ``nice.txt`` in it tells what was started under ``nice``."""
    folder = tmp_path_factory.mktemp("training")
    shutil.copy(Path(__file__).with_name("config.toml"), folder)
    shutil.copy(QUICKSTART / "warmup.jsonl", folder)
    shutil.copytree(QUICKSTART / "model", folder / "model")
    model = json.loads((QUICKSTART / "model" / "config.json").read_text())
    dense = {"architectures": [NEW["model_bridges"]], "model_type": "qwen2", **{key: model[key] for key in DENSE}}
    (folder / "model" / "config.json").write_text(json.dumps(dense))
    command = ["miles", "train", "config.toml", "--dump", "1", "--set", "run.dir=.", "--set", "run.id=run"]
    noting = _noting_nice(folder / "bin", folder / "nice.txt")
    done = packages.environment.run(*command, cwd=folder, path=[noting])
    assert done.returncode == 0, done.stdout + done.stderr
    yield folder / "run"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def metrics(run: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((run / "metrics.jsonl").read_text())
    return found


def _noting_nice(folder: Path, notes: Path) -> Path:
    """A folder with a ``nice`` that notes what it is called with and then is the real one."""
    real = shutil.which("nice")
    assert real, "coreutils are missing"
    folder.mkdir()
    script = folder / "nice"
    script.write_text(f"""#!/bin/sh\nprintf '%s\\n' "$*" >> '{notes}'\nexec {real} "$@"\n""")
    script.chmod(0o755)
    return folder


def test_the_run_used_the_new_plugin_of_every_kind(run: Path) -> None:
    rows = json.loads((run / "plugins.json").read_text())
    used = {row["kind"]: (row["name"], row["distribution"]) for row in rows if row["distribution"] != "miles-hub"}
    assert used == {plural: (NEW[plural], distribution(plural)) for plural in KINDS}


def test_the_source_made_the_tasks(metrics: dict[str, float]) -> None:
    assert (metrics["data/sums"], metrics["data/sums_taken"]) == (16, 8)


def test_the_environment_answered_the_policy(run: Path) -> None:
    text = (run / "samples" / "step-0.txt").read_text()
    assert "Guess a number from 0 to 1." in text
    assert re.search("higher|lower|Write a number, nothing else", text)


def test_the_reward_scored_and_the_filter_judged_by_it(metrics: dict[str, float]) -> None:
    assert metrics["rollout/dropped/too_easy"] + metrics["rollout/groups_kept"] == 8
    assert 0 < metrics["rollout/reward_kept"] <= 0.65, "the bound of the config"
    assert metrics["rollout/reward"] > metrics["rollout/reward_kept"], "better groups were dropped"


def test_the_estimator_gave_the_advantages(run: Path) -> None:
    advantages = np.abs(read_train_dump(run / "dumps" / "step-1")["advantages"])
    assert advantages.max() == 0.125, "the bound of the config"


def test_the_loss_was_trained_on(metrics: dict[str, float]) -> None:
    assert "train/truncated_weights" in metrics
    assert metrics["train/grad_norm"] > 0


def test_the_backend_froze_what_it_was_told_and_the_bridge_built_and_named_the_rest(run: Path) -> None:
    before, after = (load_file(run / "checkpoints" / f"step-{n}" / "model.safetensors") for n in (0, 1))
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert "model.embed_tokens.weight" in before.keys() - changed
    assert {"lm_head.weight", "model.layers.0.self_attn.q_proj.bias"} <= changed


def test_the_weights_travelled_packed(run: Path, metrics: dict[str, float]) -> None:
    packed = re.findall(r"(\d+) bytes of weights packed into (\d+)", (run / "logs" / "trainer.log").read_text())
    assert sum(int(whole) for whole, _ in packed) == metrics["weights/bytes"]
    assert not list((run / "weights-packed").iterdir()), "every file was released"


def test_the_engine_was_started_by_the_plugins_command(run: Path) -> None:
    (noted,) = (run.parent / "nice.txt").read_text().splitlines()
    assert noted.startswith("-n 3 ")
    assert "serve engine" in noted


def test_the_requests_went_through_the_middleware(run: Path) -> None:
    assert re.search(r"/generate took \d", (run / "logs" / "router.log").read_text())


def test_the_tracker_noted_the_step(run: Path, metrics: dict[str, float]) -> None:
    best = json.loads((run / "best.json").read_text())
    assert best == {"step": 1, "metric": "rollout/turns", "value": metrics["rollout/turns"]}
