"""Which part of a model this process of SGLang holds, and which rank it is of its server."""

from __future__ import annotations

from miles_core.types import Shard


def shard_of_process() -> Shard:
    """By SGLang's own ranks: ``moe_tp`` divides within experts, ``moe_ep`` whole experts."""
    from sglang.srt.runtime_context import get_parallel  # type: ignore[import-not-found]

    here = get_parallel()
    return Shard(
        tp_rank=here.tp_rank,
        tp_size=here.tp_size,
        ep_rank=here.moe_ep_rank,
        ep_size=here.moe_ep_size,
        etp_rank=here.moe_tp_rank,
        etp_size=here.moe_tp_size,
        pp_rank=here.pp_rank,
        pp_size=here.pp_size,
    )


def rank_of_process() -> int:
    """Replicas one after the other, in each the pipeline stages, in each the tensor-parallel ranks."""
    from sglang.srt.runtime_context import get_parallel

    here = get_parallel()
    replica = 0 if here.enable_dp_attention else here.dp_rank or 0
    return int((replica * here.pp_size + here.pp_rank) * here.tp_size + here.tp_rank)


def rank_count() -> int:
    """How many ranks the server has."""
    from sglang.srt.runtime_context import get_parallel

    here = get_parallel()
    replicas = 1 if here.enable_dp_attention else here.dp_size
    return int(replicas * here.pp_size * here.tp_size)
