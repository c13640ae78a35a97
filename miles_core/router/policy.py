"""How a worker is picked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from miles_core.errors import ConfigError

if TYPE_CHECKING:
    from miles_core.router.workers import Worker

PolicyName: TypeAlias = Literal["least_in_flight", "round_robin"]
Policy: TypeAlias = Callable[["Sequence[Worker]"], "Worker"]


def least_in_flight(workers: Sequence[Worker]) -> Worker:
    """The worker with the fewest requests; among equals the one that has waited longest for one."""
    return min(workers, key=lambda worker: (worker.in_flight, worker.last_pick))


def round_robin(workers: Sequence[Worker]) -> Worker:
    """The worker that has waited longest for a request, which stays fair while workers come and go."""
    return min(workers, key=lambda worker: worker.last_pick)


POLICIES: dict[str, Policy] = {"least_in_flight": least_in_flight, "round_robin": round_robin}


def policy_named(name: str) -> Policy:
    """The policy of that name.

    Raises:
        ConfigError: if there is none.
    """
    try:
        return POLICIES[name]
    except KeyError:
        raise ConfigError(
            f"there is no router policy {name!r}", remedy=f"Set [router] policy to one of: {', '.join(POLICIES)}."
        ) from None
