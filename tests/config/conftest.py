from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MINIMAL = """
[run]
steps = 3

[model]
path = "model"

[data]
use = "jsonl"
path = "tasks.jsonl"

[rollout]
groups_per_step = 2
group_size = 4
max_context_tokens = 64
max_response_tokens = 16

[[environments]]
use = "lookup"

[[rewards]]
use = "exact_match"
ignore_case = true

[[rewards]]
use = "my_rewards:short"
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes the smallest valid config, with text replaced or appended."""

    def write(*replacements: tuple[str, str], extra: str = "") -> Path:
        text = MINIMAL
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / "run.toml"
        path.write_text(text + extra)
        return path

    return write
