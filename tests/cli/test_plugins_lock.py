from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def locked(miles, tmp_path):
    file = tmp_path / "lock.json"
    done = miles("plugins", "lock")
    assert (done.returncode, done.stderr) == (0, "")
    file.write_text(done.stdout)
    return file


def test_lock_holds_every_plugin_from_metadata_alone(locked):
    rows = {(row["kind"], row["use"]): row for row in json.loads(locked.read_text())}
    assert rows["reward_models", "acme-kit/acme_broken"]["version"] == "1.5"
    assert rows["losses", "miles-hub/sft"]["target"] == "miles_plugins.losses.sft:Sft"
    assert rows["hooks", "acme-kit/acme_hooks"]["target"] == "acme_kit_broken"


def test_lock_finds_the_same_again(miles, locked):
    done = miles("plugins", "lock", "--check", str(locked))
    assert (done.returncode, done.stdout) == (0, f"the same plugins as in {locked}\n")


def test_lock_says_what_differs(miles, locked):
    rows = json.loads(locked.read_text())
    for row in rows:
        if row["name"] == "acme_loud":
            row["version"] = "1.4"
    rows.append({"kind": "filters", "use": "gone/away", "name": "away", "target": "m:f", "distribution": "gone"})
    locked.write_text(json.dumps(rows))
    done = miles("plugins", "lock", "--check", str(locked))
    assert done.returncode == 1
    gone, loud = done.stdout.splitlines()
    assert gone == "plugin filters gone/away: gone (m:f) -> not used"
    assert "acme-kit 1.4 (acme_kit_loud:score) -> acme-kit 1.5 (acme_kit_loud:score)" in loud


@pytest.mark.parametrize("text", ["", "{}", "[3]"])
def test_what_is_no_lock_is_an_error(miles, tmp_path, text):
    file = tmp_path / "lock.json"
    file.write_text(text)
    done = miles("plugins", "lock", "--check", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert "`miles plugins lock`" in done.stderr


def test_the_lock_of_a_config_holds_what_its_run_would_use(miles, tmp_path):
    config = str(Path(__file__).parents[2] / "examples" / "quickstart" / "config.toml")
    file = tmp_path / "plugins.json"
    file.write_text(miles("plugins", "lock", "--config", config, "--no-plugins").stdout)
    uses = {row["kind"]: row["use"] for row in json.loads(file.read_text())}
    assert (uses["environments"], uses["model_bridges"]) == ("lookup", "Qwen3MoeForCausalLM")
    assert "weight_transports" not in uses  # auto chooses when the run has engines
    done = miles("plugins", "lock", "--check", str(file))
    assert done.stdout.splitlines() == [
        "plugin hooks acme-kit/acme_hooks: not used -> acme-kit 1.5 (acme_kit_broken)",  # it acts on every run
        "plugin reward_models exact_match: miles-hub 0.1.0 (rm_hub.exact_match:ExactMatch) -> not used",  # two offer it
    ]
    assert miles("plugins", "lock", "--config", config, "--no-plugins", "--check", str(file)).returncode == 0
