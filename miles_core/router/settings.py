"""What the router may be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from miles_core.router.policy import PolicyName


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Bounds of the router; times in seconds, sizes in bytes.

    ``cooldown`` is how long a worker rests after it refused a connection or said that it is overloaded without
    saying for how long. A request body of up to ``max_replay_bytes`` can be sent again to another worker. An answer
    of up to ``max_buffered_bytes`` is complete before the client sees its status; a longer one is streamed.
    """

    policy: PolicyName = "least_in_flight"
    max_retries: int = 3
    connect_timeout: float = 5.0
    cooldown: float = 1.0
    max_retry_after: float = 30.0
    max_replay_bytes: int = 8 << 20
    max_buffered_bytes: int = 1 << 20
