"""Which shard a rank holds, as Megatron and SGLang number their ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import ConfigError
from miles_core.types import Shard
from miles_core.weights.planning import sglang
from miles_core.weights.planning.grid import EngineGrid, TrainerGrid


def test_trainer_ranks_run_through_tensor_then_data_then_pipeline_parallelism():
    grid = TrainerGrid(tp=2, dp=2, pp=2, ep=4)
    shards = [grid.shard(rank) for rank in range(grid.ranks)]
    assert [shard.tp_rank for shard in shards] == [0, 1] * 4
    assert [shard.ep_rank for shard in shards] == [0, 1, 2, 3] * 2
    assert [shard.pp_rank for shard in shards] == [0] * 4 + [1] * 4


def test_ranks_beyond_the_experts_division_hold_the_same_experts():
    grid = TrainerGrid(tp=2, dp=4, ep=2, etp=2)
    assert [(grid.shard(rank).etp_rank, grid.shard(rank).ep_rank) for rank in range(8)] == [
        (0, 0), (1, 0), (0, 1), (1, 1), (0, 0), (1, 0), (0, 1), (1, 1)
    ]  # fmt: skip


def test_engine_ranks_with_the_same_experts_are_neighbours():
    grid = EngineGrid(tp=4, ep=2, pp=2)
    assert grid.ranks == 8
    assert grid.shard(6) == Shard(2, 4, ep_rank=1, ep_size=2, etp_rank=0, etp_size=2, pp_rank=1, pp_size=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainerGrid(tp=2, ep=4), "tp x dp = 2 ranks, which ep x etp = 4 must divide"),
        (lambda: TrainerGrid(pp=0), "pp must be at least 1; got 0"),
        (lambda: EngineGrid(tp=4, ep=3), "ep = 3 must divide tp = 4"),
        (lambda: EngineGrid(tp=-1), "tp must be at least 1; got -1"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@given(st.integers(1, 100), st.integers(1, 16))
def test_stages_of_an_engine_hold_each_layer_once_and_the_last_ones_have_more(count, stages):
    spans = [sglang.layers_of(count, Shard(pp_rank=rank, pp_size=stages)) for rank in range(stages)]
    assert [layer for span in spans for layer in span] == list(range(count))
    sizes = [len(span) for span in spans]
    assert sizes == sorted(sizes)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("rows", "ranks", "expected"),
    [(48, 1, 64), (64, 2, 32), (65, 2, 64), (64, 3, 64), (130, 3, 64), (193, 5, 64), (151936, 8, 18992)],
)
def test_the_vocabulary_is_padded_to_64_or_to_64_for_each_rank(rows, ranks, expected):
    assert sglang.padded_rows(rows, Shard(tp_size=ranks)) == expected
