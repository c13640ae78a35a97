"""The functions of docs/extending.md work: loaded from the text by the keys that the page sets."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from miles_core.api import KINDS, Message, StepBatch
from miles_core.app.functions import (
    EPISODES,
    build_correction,
    build_reduction,
    check_functions,
    session_functions,
)
from miles_core.config.load import load_config
from miles_core.config.schema import Config
from miles_core.plugins.functions.episode import load_episode_function
from miles_core.session.picking import PICKS
from miles_core.train.correction import CORRECTIONS
from miles_core.train.reduction import REDUCTIONS

from .conftest import read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .conftest import Document


@pytest.fixture
def page() -> Document:
    return read("docs/extending.md")


@pytest.fixture
def config(page: Document, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """The quickstart with all tables of the page, whose files can be imported."""
    for name, text in page.files("python").items():
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    raw = load_config(root / "examples/quickstart/config.toml").config.model_dump(mode="json", exclude_none=True)
    for block in page.blocks("toml"):
        for table, keys in tomllib.loads(block).items():
            raw[table] = {**raw.get(table, {}), **keys}
    yield Config.model_validate(raw)
    for name in page.files("python"):
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.fixture
def batch() -> StepBatch:
    """Two samples of four tokens, of which the last three are trained."""
    mask = np.array([0, 1, 1, 1] * 2, bool)
    rollout = np.where(mask, -1.0, 0.0).astype(np.float32)
    return StepBatch(
        cu_seqlens=np.array([0, 4, 8]),
        tokens=np.arange(8, dtype=np.int32),
        loss_mask=mask,
        temperatures=np.ones(8, np.float32),
        rollout_logprobs=rollout,
        rewards=np.array([1.0, 0.0]),
        group_index=np.array([0, 0]),
        trajectory_index=np.array([0, 1]),
        denominator_tokens=6,
        proximal_logprobs=rollout,
    )


def test_every_key_of_the_page_is_taken_by_a_run_before_it_starts(config: Config) -> None:
    check_functions(config)
    assert config.rollout.generate is not None
    assert config.rollout.generate.options == {"call": "get "}
    made = load_episode_function(config.rollout.generate, EPISODES)(None)  # type: ignore[arg-type]
    assert made.keywords == {"call": "get "}  # type: ignore[attr-defined]


def test_the_match_ignores_spaces_and_nothing_else(config: Config) -> None:
    match = session_functions(config.session)["match"]
    assert match(Message("user", "a  b"), Message("user", "a b "))
    assert not match(Message("user", "ab"), Message("user", "a b"))
    assert not match(Message("user", "a"), Message("tool", "a"))


def test_the_pick_is_the_last_call_or_else_the_last_turn(config: Config) -> None:
    class Turn:
        def __init__(self, text: str) -> None:
            self.response = Message("assistant", text)

    pick = session_functions(config.session)["pick"]
    turns = [Turn("get a"), Turn("get b"), Turn("2")]
    assert pick(turns) is turns[1]
    assert pick(turns[2:]) is turns[2]


def test_the_correction_rejects_what_is_further_than_its_limit(config: Config, batch: StepBatch) -> None:
    correction = build_correction(config)
    assert correction is not None
    gap = np.array([0, 1.4, 1.6, 0, 0, 0, 0, -3], np.float32)
    assert batch.proximal_logprobs is not None
    weights, keep, metrics = correction.apply(replace(batch, proximal_logprobs=batch.proximal_logprobs + gap))
    assert keep.tolist() == [False, True, False, True, False, True, True, False]
    assert weights.tolist() == keep.astype(float).tolist()
    assert metrics["train/correction/gap_max"] == pytest.approx(3)


def test_the_reduction_divides_by_a_constant(config: Config, batch: StepBatch) -> None:
    weights = build_reduction(config).weights(batch, batch.loss_mask)
    assert weights[batch.loss_mask] == pytest.approx(1 / 32)
    assert not weights[~batch.loss_mask].any()


def test_the_table_has_every_kind_and_every_other_point(page: Document) -> None:
    rows = [line.split(" | ") for line in page.text.splitlines() if line.startswith("| ")]
    where = " ".join(row[1] for row in rows if len(row) == 3)
    assert [kind.table for kind in KINDS.values() if f"`{_key(kind.table)}`" not in where] == []
    for key in ("[rollout.generate]", "session.match", "session.pick", "[correction]", "objective.reduction"):
        assert f"`{key}`" in where


def _key(table: str) -> str:
    """``[model] bridge`` as the page writes it: ``model.bridge``."""
    name, _, key = table.partition(" ")
    return f"{name.strip('[]')}.{key}" if key else table


def test_functions_are_enough_where_the_table_says_so(page: Document) -> None:
    rows = [line.strip("| ").split(" | ") for line in page.text.splitlines() if line.startswith("| ")]
    enough: dict[str, Any] = {row[1].split("`")[1]: row[2] != "no" for row in rows if len(row) == 3 and "`" in row[1]}
    for kind in KINDS.values():
        assert enough[_key(kind.table)] == (kind.adapt is not None), kind.plural


def test_the_page_names_every_built_in_function(page: Document) -> None:
    for name in (*CORRECTIONS, *REDUCTIONS, *PICKS):
        assert f"`{name}`" in page.text
