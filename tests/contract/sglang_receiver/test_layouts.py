"""What real SGLang says of its ranks: each byte of a parameter is of one box of a checkpoint tensor, and holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.anyio

CASES = [
    ("Qwen3Moe", {"tp_size": 2, "ep_size": 2}),
    ("Qwen3Moe", {"pp_size": 2}),
    ("Qwen3", {"pp_size": 2}),  # tied, and the last stage has a copy
    ("Llama", {"tp_size": 2}),  # with biases
]


@pytest.mark.parametrize(("family", "parallel"), CASES)
async def test_ranks_hold_what_the_mapping_says(
    launch: Any, connect: Any, make_checkpoint: Callable[..., Any], family: str, parallel: dict[str, int]
) -> None:
    checkpoint = make_checkpoint(family)
    tensors = checkpoint.tensors()
    with launch(checkpoint, **parallel) as url:
        server = connect(url)
        ranks = await server.ranks(checkpoint)
        assert len(ranks) == 2
        for number, rank in enumerate(ranks):
            await assert_true_layout(server, number, rank, tensors)
    missing = set(tensors) - {name for rank in ranks for name in rank.layout.tensors}
    assert missing == set()


async def assert_true_layout(server: Any, number: int, rank: Any, tensors: Any) -> None:
    layout = rank.layout
    assert layout.unclaimed == ()
    assert sum(placement.nbytes for placement in layout.placements) + layout.padding == rank.nbytes
    asked = {"placements": [placement.to_json() for placement in layout.placements]}
    held = await server.must(f"/weights/checksums?rank={number}", asked)
    assert held["checksums"] == rank.checksums(tensors)
