"""Opening a session: what a client may say of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from miles_core.kinds.sessions import SamplingRequest
from miles_core.session.server.fields import MAX_SEED, mapping, only, temperature, text, whole, wrong

if TYPE_CHECKING:
    from collections.abc import Mapping

_IDS = ("task_id", "group_id", "trajectory_id", "agent_id")
_SAMPLING = ("temperature", "max_new_tokens", "seed")


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What ``POST /sessions`` asks for; ``None`` where the client does not care.

    ``sampling`` holds for all requests of the session.
    """

    task_id: str | None = None
    group_id: str | None = None
    trajectory_id: str | None = None
    agent_id: str | None = None
    sampling: SamplingRequest = field(default_factory=SamplingRequest)


def parse_opening(body: Mapping[str, Any]) -> OpenRequest:
    """The request in the body of ``POST /sessions``.

    Raises:
        ClientError: naming the field that is wrong.
    """
    only(body, (*_IDS, "sampling"))
    sampling = {} if body.get("sampling") is None else mapping(body["sampling"], "sampling")
    only(sampling, _SAMPLING, at="sampling.")
    return OpenRequest(
        **{name: _id(body, name) for name in _IDS},
        sampling=SamplingRequest(
            temperature=temperature(sampling, at="sampling."),
            max_new_tokens=whole(sampling, "max_new_tokens", at="sampling.", low=1),
            seed=whole(sampling, "seed", at="sampling.", high=MAX_SEED),
        ),
    )


def _id(body: Mapping[str, Any], name: str) -> str | None:
    value = text(body, name)
    if value == "":
        raise wrong(name, "a text that is not empty", value)
    return value
