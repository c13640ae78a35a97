"""What SGLang 0.5.23 decides by itself: which stage has what, and how it pads the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from miles_core.types import Shard

NAMING = "sglang"
_PAD = 64
HEAD_EVERYWHERE = frozenset({"LlamaForCausalLM", "Qwen3MoeForCausalLM"})
"""Architectures that make ``lm_head`` on every pipeline stage, and use that of the last."""


def layers_of(count: int, shard: Shard) -> range:
    """As ``get_pp_indices``: the last stages have one more where layers do not divide."""
    size, rest = divmod(count, shard.pp_size)
    even = shard.pp_size - rest
    start = shard.pp_rank * size + max(0, shard.pp_rank - even)
    return range(start, start + size + (shard.pp_rank >= even))


def padded_rows(rows: int, shard: Shard) -> int:
    """Rows of the vocabulary on one rank: in all a multiple of 64, or of 64 per rank where that does not divide."""
    pad = _PAD if _round_up(rows, _PAD) % shard.tp_size == 0 else _PAD * shard.tp_size
    return _round_up(rows, pad) // shard.tp_size


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
