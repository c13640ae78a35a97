"""A run's folder with real trajectories, and a headless browser to open its report in."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from miles_core.telemetry.episodes import write_episodes
from miles_core.types import (
    Message,
    Reward,
    Sample,
    SamplingParams,
    Status,
    Task,
    Trajectory,
    TurnRecord,
    VersionSpan,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

HOSTILE = (
    "<script>document.title = 'owned'</script>",
    "</script><script>document.title = 'owned'</script>",
    "<!-- <img src=x onerror=\"document.title='owned'\">",
    "line\u2028and\u2029line \u202eturned",
    "<!--{config}-->",
)

CONFIG = """
[run]
name = "toy"
steps = 6

[model]
path = "models/toy"

[[environments]]
use = "lookup"
name = "keys"
"""


def make_trajectory(
    name: str,
    text: str = "get c",
    *,
    reward: float | None = 1.0,
    status: Status = Status.COMPLETED,
    encode: Callable[[str], list[int]] = lambda text: [*text.encode()],
    task_id: str = "t0",
    environment: str | None = None,
    versions: tuple[int, int] = (3, 4),
    error: str | None = None,
) -> Trajectory:
    """One turn on "value of c?"; the first half of it is by the first version, the rest by the second."""
    prompt, answer = encode("value of c?"), encode(text)
    tokens = np.array([*prompt, *answer], np.int32)
    start, middle, end = len(prompt), len(prompt) + len(answer) // 2, len(tokens)
    mask = np.array([0] * start + [1] * len(answer), np.uint8)
    logprobs = np.where(mask == 1, -0.25, 0).astype(np.float32)
    turn = TurnRecord(
        start, end, SamplingParams(temperature=0.7), "stop", 0.125, 0.5, info={"key": text, "hits": 2**60}
    )
    sample = Sample(
        task_id, "g", name, "policy", tokens, mask, logprobs,
        (VersionSpan(versions[0], start, middle), VersionSpan(versions[1], middle, end)), (turn,), status,
    )  # fmt: skip
    scored = Reward(reward, None if reward is not None else "judge: HTTP 503", {"exact_match": reward, "format": 0.5})
    metadata = {"source": "tasks.jsonl:7", "weight": float("nan")}
    task = Task(task_id, (Message("user", "value of c?"),), "2", environment=environment, metadata=metadata)
    messages = (*task.messages, Message("assistant", text))
    return Trajectory(name, task, messages, (sample,), status, scored, (0.0,), "done", error)


def write_run(folder: Path, rows: Sequence[dict[str, Any]] = (), *, steps: Sequence[Sequence[Trajectory]] = ()) -> Path:
    """A run's folder: the config, one line of metrics per row, the episodes of each step, every other one kept."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(CONFIG)
    plugin = {"kind": "engine", "use": "embedded", "distribution": "miles-hub", "version": "0.1.0"}
    (folder / "plugins.json").write_text(json.dumps([plugin]))
    lines = [json.dumps({"step": number, **row}) + "\n" for number, row in enumerate(rows, start=1)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    for number, trajectories in enumerate(steps, start=1):
        kept = {trajectory.id for trajectory in trajectories[::2]}
        write_episodes(folder / "episodes", number, trajectories, kept, version=number)
    return folder


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    """Makes a trajectory."""
    return make_trajectory


@pytest.fixture
def run_folder() -> Callable[..., Path]:
    """Writes a run's folder."""
    return write_run


@pytest.fixture
def hostile() -> tuple[str, ...]:
    """Texts of a policy that would leave the page's data or its text, were they not escaped."""
    return HOSTILE


@pytest.fixture(scope="session")
def chromium_program() -> str:
    """The browser's program; without one the test is skipped, but not in CI."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        message = "no chromium is installed (Debian: apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return found


@pytest.fixture
def browsing(chromium_program: str, tmp_path: Path) -> Callable[[Path], Any]:
    """``async with browsing(page) as tab``: a headless browser with the file open."""
    spec = importlib.util.spec_from_file_location("report_tests_chromium", Path(__file__).with_name("chromium.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    if not hasattr(module, "browser"):
        spec.loader.exec_module(module)

    @asynccontextmanager
    async def browse(page: Path) -> AsyncIterator[Any]:
        async with module.browser(chromium_program, tmp_path / "profile") as open_tab:
            yield await open_tab(page)

    return browse
