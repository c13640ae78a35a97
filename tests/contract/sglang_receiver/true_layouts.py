"""What a server says of its ranks, against the checkpoint that it loaded and the plan's prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.weights.planning.model import PlannedModel, plan_model
from miles_core.weights.planning.tables import Tables
from miles_plugins.bridges.llama import Llama
from miles_plugins.bridges.qwen3 import Qwen3
from miles_plugins.bridges.qwen3_moe import Qwen3Moe

if TYPE_CHECKING:
    from collections.abc import Sequence

BRIDGES: dict[str, Any] = {bridge.architecture: bridge for bridge in (Llama, Qwen3, Qwen3Moe)}


async def assert_true_layouts(server: Any, checkpoint: Any, ranks: Sequence[Any]) -> None:
    """Each byte of a parameter is of one box of a checkpoint tensor, and holds it; a plan knows all parameters."""
    tensors = checkpoint.tensors()
    predicted = Tables(outline(checkpoint, ranks[0].layout.placements[0].tensor.dtype))
    for rank in ranks:
        layout = rank.layout
        assert layout.unclaimed == (), layout.unclaimed
        assert sum(placement.nbytes for placement in layout.placements) + layout.padding == rank.nbytes
        asked = {"placements": [placement.to_json() for placement in layout.placements]}
        held = await server.must(f"/weights/checksums?rank={rank.number}", asked)
        assert held["checksums"] == rank.checksums(tensors)
        unlike = set(predicted.of(rank.table.shard).parameters) ^ set(rank.table.parameters)
        assert not unlike, unlike
    assert {name for rank in ranks for name in rank.layout.tensors} == set(tensors)


def outline(checkpoint: Any, dtype: str) -> PlannedModel:
    """What a plan of updates knows, which reads ``config.json`` alone."""
    config = checkpoint.hf_config
    (architecture,) = config["architectures"]
    return plan_model(BRIDGES[architecture](None, None), checkpoint.path, architecture, config, dtype)
