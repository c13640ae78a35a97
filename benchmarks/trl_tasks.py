"""The two tasks that miles and TRL are compared on: the same model, prompts, lengths and updates for both."""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tomli_w

from benchmarks.training import CONFIG

if TYPE_CHECKING:
    from pathlib import Path

SINGLE_TURN, MULTI_TURN = "single turn", "look-up, multi turn"
LEARNING_RATE = 1e-5  # too small to change within a run what the policy does, and so the work
TOOL_TOKENS = 16


@dataclass(frozen=True)
class Work:
    """What both sides do; ``steps`` are rollouts, each followed by ``epochs * mini_batches`` optimizer steps."""

    groups: int
    group_size: int
    steps: int
    epochs: int
    mini_batches: int
    threads: int
    old_logprobs: str
    engines: int = 1

    @property
    def samples(self) -> int:
        """Samples of one step."""
        return self.groups * self.group_size


@dataclass(frozen=True)
class Task:
    """One of the two tasks on a model directory, which holds the weights that both sides start from."""

    name: str
    model: Path
    max_new_tokens: int

    @property
    def multi_turn(self) -> bool:
        """Whether the policy answers twice."""
        return self.name == MULTI_TURN

    def miles_config(self, work: Work, max_staleness: int) -> str:
        """The config of a run of miles, as TOML."""
        config = tomllib.loads(CONFIG.read_text("utf-8"))
        for table in ("warmup", "filters"):  # TRL has no such stage, and trains on every group
            del config[table]
        tokens = (2 if self.multi_turn else 1) * self.max_new_tokens
        config["run"] |= {"steps": work.steps, "samples_every": 1_000_000}
        config["model"] |= {"path": str(self.model), "init": "pretrained"}
        config["data"]["path"] = str(CONFIG.parent / config["data"]["path"])
        config["rollout"] |= {
            "groups_per_step": work.groups,
            "group_size": work.group_size,
            "max_turns": 2 if self.multi_turn else 1,
            "max_context_tokens": 64 + tokens,
            "max_response_tokens": tokens,
            "max_staleness": max_staleness,
        }
        config["sampling"]["max_new_tokens"] = self.max_new_tokens
        if not self.multi_turn:
            config["rewards"] = [{"use": "benchmarks.letters:Letters"}]
        config["objective"] = {
            "epochs": work.epochs,
            "mini_batches": work.mini_batches,
            "old_logprobs": work.old_logprobs,
        }
        config["optimizer"] |= {"learning_rate": LEARNING_RATE, "warmup_steps": 0, "decay": "constant"}
        config["checkpoint"] = {"every": 0}
        config["engine"]["threads"] = config["train"]["threads"] = work.threads
        config["engine"]["count"] = work.engines
        config["trackers"] = [{"use": "jsonl"}, {"use": "benchmarks.step_clock:StepClock"}]
        return tomli_w.dumps(config)

    def trl_settings(self, work: Work, folder: Path) -> dict[str, Any]:
        """What ``trl_side/train.py`` reads."""
        tasks = [json.loads(line) for line in (CONFIG.parent / "tasks.jsonl").read_text("utf-8").splitlines()]
        rows = [{"prompt": [{"role": "user", "content": task["prompt"]}], "label": task["label"]} for task in tasks]
        whole = 2 * self.max_new_tokens + TOOL_TOKENS if self.multi_turn else self.max_new_tokens
        return {
            "folder": str(folder),
            "model": str(self.model),
            "tasks": rows,
            "multi_turn": self.multi_turn,
            "groups": work.groups,
            "group_size": work.group_size,
            "steps": work.steps,
            "epochs": work.epochs,
            "mini_batches": work.mini_batches,
            "threads": work.threads,
            "max_new_tokens": self.max_new_tokens,
            "max_completion": whole,
            "learning_rate": LEARNING_RATE,
        }


def without_stop_token(model: Path, target: Path) -> Path:
    """A copy of a model directory in which no token ends a turn, so that every turn has its full length."""
    shutil.copytree(model, target)
    (target / "generation_config.json").unlink(missing_ok=True)
    for name, key in (("config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):
        file = target / name
        content = json.loads(file.read_text("utf-8"))
        content[key] = None
        file.write_text(json.dumps(content), "utf-8")
    return target
