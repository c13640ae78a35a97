"""SGLang without a receiver of ours: engines of one kind can only be compared with each other."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from miles_core.app.verify.report import Difference, EngineFinding
from miles_core.errors import WeightSyncError
from miles_core.weights.exchange import Call
from miles_core.weights.sglang_calls import COMPARABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.app.verify.report import State
    from miles_core.app.weights_record import EngineRecord
    from miles_core.weights.exchange import EngineExchange


async def check_replicas(
    exchange: EngineExchange, engines: Sequence[EngineRecord], version: int
) -> list[EngineFinding]:
    """Compare ``/weights_checker`` of each engine with that of the first one of its kind; an only one fails."""
    firsts: dict[str, tuple[str, list[Mapping[str, str]]]] = {}
    compared: set[str] = set()
    findings = []
    for engine in engines:
        try:
            kind, ranks = await _kind(exchange, engine.url), await _held(exchange, engine.url, version)
        except WeightSyncError as error:
            findings.append(EngineFinding(engine.name, engine.url, "failed", reason=error.message, settled=False))
            continue
        first, expected = firsts.setdefault(kind, (engine.name, ranks))
        differences = tuple(_compared(first, expected, ranks))
        compared |= {first} if first != engine.name else set()
        tensors = sum(map(len, ranks))
        reason = "" if first != engine.name else "the first of its kind, which the others are compared with"
        state: State = "differs" if differences else "replica"
        findings.append(EngineFinding(engine.name, engine.url, state, tensors, 0, differences, reason))
    return [
        _alone(one) if one.state == "replica" and one.reason and one.name not in compared else one for one in findings
    ]


def _alone(finding: EngineFinding) -> EngineFinding:
    reason = "it has no receiver of miles, and there is no other engine of its kind to compare it with"
    return replace(finding, state="failed", reason=reason)


async def _held(exchange: EngineExchange, url: str, version: int) -> list[Mapping[str, str]]:
    """The checksums of each rank, which are of ``version`` if it is served before and after."""
    await _check_version(exchange, url, version)
    ranks = await _checksums(exchange, url)
    await _check_version(exchange, url, version)
    return ranks


async def _check_version(exchange: EngineExchange, url: str, version: int) -> None:
    serves = (await _get(exchange, Call(url, "/model_info"))).get("weight_version")
    if serves != str(version):
        raise WeightSyncError(f"it serves version {serves}; the run has committed {version}")


async def _kind(exchange: EngineExchange, url: str) -> str:
    found = await _get(exchange, Call(url, "/server_info"))
    return json.dumps([found.get(key) for key in COMPARABLE])


async def _checksums(exchange: EngineExchange, url: str) -> list[Mapping[str, str]]:
    found = await _get(exchange, Call(url, "/weights_checker", {"action": "checksum"}))
    try:
        return [dict(rank["checksums"]) for rank in found["ranks"]]
    except (TypeError, KeyError, ValueError) as error:
        raise WeightSyncError(f"engine {url}: /weights_checker gave no checksums: {error}") from error


async def _get(exchange: EngineExchange, call: Call) -> dict[str, Any]:
    text = await exchange.call(call, stage=f"asking {call.path}")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise WeightSyncError(f"engine {call.url}: {call.path} answered no JSON object: {text[:200]}")
    return found


def _compared(
    first: str, expected: Sequence[Mapping[str, str]], found: Sequence[Mapping[str, str]]
) -> list[Difference]:
    absent: Mapping[str, str] = {}
    return [
        Difference(name, f"rank {rank}, against {first}", str(one.get(name, "")), str(other.get(name, "")))
        for rank, (one, other) in enumerate(zip_longest(expected, found, fillvalue=absent))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]
