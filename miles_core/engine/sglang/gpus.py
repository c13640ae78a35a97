"""Which GPUs each server of a run takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


def share(taken: int, needed: int, pool: Sequence[str] | None) -> str:
    """The value of ``CUDA_VISIBLE_DEVICES`` for a server that needs so many GPUs after others took theirs.

    ``pool`` are the GPUs of all servers, in the order in which they are taken; ``None``: all of the machine, from 0.

    Raises:
        ConfigError: if the pool has too few.
    """
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
