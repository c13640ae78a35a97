"""What real SGLang says of its ranks: each byte of a parameter is of one box of a checkpoint tensor, and holds it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest

from .true_layouts import assert_true_layouts

pytestmark = pytest.mark.anyio

CASES = [
    ("Qwen3Moe", {"tp_size": 2, "ep_size": 2, "pp_size": 2}),
    ("Qwen3", {"pp_size": 2}),  # tied, and the last stage has a copy
    ("Llama", {"tp_size": 2}),  # with biases
]


@pytest.mark.parametrize(("family", "parallel"), CASES)
async def test_ranks_hold_what_mapping_and_plan_say(
    launch: Any, connect: Any, make_checkpoint: Callable[..., Any], family: str, parallel: dict[str, int]
) -> None:
    checkpoint = make_checkpoint(family)
    with launch(checkpoint, **parallel) as url:
        server = connect(url)
        ranks = await server.ranks(checkpoint)
        assert len(ranks) == prod(parallel.values()) // parallel.get("ep_size", 1)  # experts are divided among tp ranks
        await assert_true_layouts(server, checkpoint, ranks)
