"""Which GPUs each server of a run takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from miles_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Pool: TypeAlias = "Sequence[str] | None"
"""The GPUs that servers share, in the order in which they are taken; ``None``: all of the machine, from 0."""


def share(needed: int, pool: Pool, before: Iterable[tuple[int, Pool]]) -> str:
    """The value of ``CUDA_VISIBLE_DEVICES`` for a server that needs so many GPUs of a pool.

    ``before`` are the needs and pools of the servers that take theirs first.

    Raises:
        ConfigError: if the pool has too few, or one before has some of its GPUs and is another.
    """
    taken = sum(other_needed for other_needed, other in before if other_needed and _is_same(other, pool))
    if pool is None:
        return ",".join(str(gpu) for gpu in range(taken, taken + needed))
    mine = pool[taken : taken + needed]
    if len(mine) < needed:
        raise ConfigError(
            f"the servers need {taken + needed} GPUs or more (tp_size x pp_size x dp_size of each); "
            f"there are {len(pool)}: {', '.join(pool) or 'none'}",
            remedy="Lower engine.count or the sizes, or name more in engine.gpus or CUDA_VISIBLE_DEVICES.",
        )
    return ",".join(mine)


def _is_same(other: Pool, pool: Pool) -> bool:
    if other == pool:
        return True
    if other is None or pool is None or set(other) & set(pool):
        raise ConfigError(
            f"servers take GPUs from pools that overlap: {_named(other)}, and {_named(pool)}",
            remedy="Set engine.gpus in each of [[engine.groups]], with no GPU in two different lists.",
        )
    return False


def _named(pool: Pool) -> str:
    return "all of the machine" if pool is None else ", ".join(pool) or "none"
