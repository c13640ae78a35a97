"""The module of docs/hooks.md works, installed as its pyproject.toml says, and the page names every hook."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from miles_core.cli.main import app
from miles_core.cli.plugin_commands import with_plugin_commands
from miles_core.config.load import load_config
from miles_core.errors import PluginError
from miles_core.kinds.hooks import RunInfo, TrainerHandle
from miles_core.plugins.hub import Hub
from miles_core.plugins.lifecycle.hookspecs import ACTING
from miles_core.plugins.lifecycle.implementations import SPECS
from miles_core.train.changed_batch import checked_batch
from miles_core.types import StepBatch

from .conftest import ROOT, read

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio
PAGE = read("docs/hooks.md")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "acme_hooks.py").write_text(PAGE.files("python")["acme_hooks.py"])
    project = tomllib.loads(PAGE.files("toml")["pyproject.toml"])["project"]
    info = tmp_path / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    requires = "".join(f"Requires-Dist: {name}\n" for name in project["dependencies"])
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head + requires)
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("acme_hooks", None)


async def test_the_observers_of_the_page_watch_a_run(installed: Path) -> None:
    hooks = Hub.discover().hooks()
    run = RunInfo("r", installed)
    await hooks.observe("miles_run_started", run=run)
    for step in (1, 2):
        await hooks.observe("miles_step_finished", step=step, metrics={"rollout/reward": step / 2})
    await hooks.observe("miles_run_finished", run=run, error=None)
    rows = [json.loads(line) for line in (installed / "rewards.jsonl").read_text().splitlines()]
    assert rows == [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 1.0}]
    assert (installed / "verdict.txt").read_text() == "good"


def test_the_acting_hooks_of_the_page_act(installed: Path) -> None:
    hooks = Hub.discover().hooks()
    with pytest.raises(PluginError, match=r"hooks \(acme-hooks 1.0\) rejects the config: we run nothing without an"):
        hooks.act("miles_config_loaded", config=load_config(ROOT / "examples/quickstart/config.toml").config)
    model = torch.nn.ModuleDict({"embed_tokens": torch.nn.Linear(1, 1), "head": torch.nn.Linear(1, 1)})
    hooks.act("miles_trainer_built", trainer=TrainerHandle(SimpleNamespace(model=model)))
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, False, True, True]
    one = np.ones(1, np.float32)
    number = np.zeros(1, np.int64)
    batch = StepBatch(
        np.array([0, 1]), np.zeros(1, np.int32), np.ones(1, bool), one, one, np.array([9.0]), number, number, 1
    )
    changed = hooks.change("miles_batch_ready", "batch", checked_batch, step=0, batch=batch)
    assert changed.rewards.tolist() == [1.0]


def test_the_command_of_the_page_runs(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (installed / "verdict.txt").write_text("good")
    tokens = ["verdict", str(installed)]
    with with_plugin_commands(app, tokens):
        app(tokens, result_action="return_value", exit_on_error=False, print_error=False)
    assert capsys.readouterr().out == "good\n"
    assert "verdict" not in app


def test_the_table_of_the_page_has_every_hook_and_shows_which_act() -> None:
    table = "\n".join(line for line in PAGE.text.splitlines() if line.startswith("| "))
    assert set(re.findall(r"`(miles_\w+)`", table)) == SPECS.keys() - {"miles_register"}
    assert set(re.findall(r"\*\*`(miles_\w+)`\*\*", table)) == ACTING
