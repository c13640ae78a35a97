"""Samples of a session as plain JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pybase64

from miles_core.session.server.fields import number, only, text, wrong
from miles_core.types import Reward, Status
from miles_core.types.records import to_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.session.session import TokenSession
    from miles_core.types import RoutingTrace, Sample

_LARGEST = float(np.finfo(np.float64).max)


def samples_of(session: TokenSession, body: Mapping[str, Any]) -> dict[str, Any]:
    """What ``POST /sessions/ID/samples`` answers.

    Raises:
        ClientError: naming the field of the body that is wrong.
        SessionError: if ``[session] pick`` fails.
    """
    only(body, ("status", "reward"))
    status = _status(text(body, "status") or Status.COMPLETED.value)
    value = number(body, "reward", low=-_LARGEST, high=_LARGEST)
    reward = None if value is None else Reward(value)
    samples = session.samples(status=status, reward=reward)
    return {"samples": [_record(sample) for sample in samples], "not_trained": _not_trained(session)}


def _status(name: str) -> Status:
    try:
        return Status(name)
    except ValueError:
        raise wrong("status", " or ".join(Status), name) from None


def _record(sample: Sample) -> dict[str, Any]:
    record = to_record(sample)
    return {
        **{name: value for name, value in record.items() if name not in ("$", "media", "media_tensors")},
        "tokens": sample.tokens.tolist(),
        "loss_mask": sample.loss_mask.tolist(),
        "logprobs": [_finite(value) for value in sample.logprobs.tolist()],
        "routing": None if sample.routing is None else _routing(sample.routing),
    }


def _finite(value: float) -> float | str:
    """JSON has no infinity."""
    return value if math.isfinite(value) else str(value)


def _routing(trace: RoutingTrace) -> dict[str, Any]:
    experts = np.ascontiguousarray(trace.experts)
    return {
        "data": pybase64.b64encode(experts.tobytes()).decode(),
        "shape": list(experts.shape),
        "dtype": str(experts.dtype),
        "layer_ids": list(trace.layer_ids),
    }


def _not_trained(session: TokenSession) -> list[dict[str, Any]]:
    """The stored turns that no sample trains, by their place among the turns of the record, and why."""
    picked = {turn for conversation in session.conversations() for turn in conversation.turns}
    reasons = []
    for place, node in enumerate(session.tree.nodes):
        if node not in picked:
            reasons.append({"turn": place, "reason": "session.pick left its conversation out"})
        elif node.sampling.json_schema is not None:
            reasons.append({"turn": place, "reason": "its output was held to a schema"})
        elif not node.sampling.trainable:
            reasons.append({"turn": place, "reason": "it was sampled greedily"})
    return reasons
