"""What SGLang is asked at an update, whoever brings the bytes: flush, version, comparison of replicas.

Written from the source of SGLang 0.5.23.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from miles_core.errors import WeightSyncError
from miles_core.weights.exchange import Call, RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.weights.exchange import EngineExchange

_logger = logging.getLogger("miles.weights")

COMPARABLE = ("dtype", "quantization", "tp_size", "pp_size", "ep_size", "dp_size", "moe_runner_backend")
"""Server arguments that decide which bytes an engine keeps of a checkpoint."""


async def flush(engines: EngineExchange, urls: Sequence[str], *, required: bool) -> None:
    """Forget prefixes of the old weights.

    Those of requests that are paused in place stay, and no salt matches: their refusal is none if not ``required``.
    """

    async def one(url: str) -> None:
        try:
            await engines.call(Call(url, "/flush_cache", {}), stage="flush of the prefix cache")
        except RefusedError:
            if required:
                raise

    await engines.each(one, stage="flush of the prefix cache", urls=urls)


async def name_version(engines: EngineExchange, urls: Sequence[str], version: int) -> None:
    """Name the weights, and see that each engine says so."""
    body = {"new_version": str(version), "abort_all_requests": False}

    async def one(url: str) -> None:
        await engines.call(Call(url, "/update_weight_version", body), stage="commit")
        text = await engines.call(Call(url, "/model_info"), stage="asking for the version")
        if (found := reply_value(text, "weight_version")) != str(version):
            raise RefusedError(
                f"engine {url}: expected weight_version {str(version)!r} after the commit; it says {found!r}",
                remedy="See the engine's log; restart the engine if it recurs.",
            )

    await engines.each(one, stage="commit", urls=urls)


async def compare(engines: EngineExchange) -> None:
    """Engines that keep weights alike must hold the same ones.

    Raises:
        WeightSyncError: naming two that differ: no one knows which of them is wrong.
    """
    if len(engines.urls) < 2:
        return
    facts = await engines.all("/server_info", None, stage="asking for the server's settings")
    refusals: list[Exception] = []

    async def checksums(url: str) -> Mapping[str, Any]:
        try:
            text = await engines.call(Call(url, "/weights_checker", {"action": "checksum"}), stage="checksum")
            return dict(json.loads(text))
        except (RefusedError, ValueError, TypeError) as error:  # some quantisations have none
            refusals.append(error)
            return {}

    sums = await engines.each(checksums, stage="checksum")
    if refusals:
        _logger.warning("engines are not compared with each other: %s", refusals[0])
        return
    first: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for url, found in sums.items():
        kind = json.dumps([reply_value(facts[url], name) for name in COMPARABLE])
        other, expected = first.setdefault(kind, (url, found))
        if expected.get("per_engine_checksum") != found.get("per_engine_checksum"):
            names = ", ".join(_differing(expected, found)[:3]) or "no parameter that they name"
            raise WeightSyncError(
                f"engines {other} and {url} loaded the same files and hold different weights: {names}",
                remedy="Publish again; if it recurs, see whether both read the same folder, and check their hosts.",
            )


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    pairs = zip(one.get("ranks") or (), other.get("ranks") or (), strict=False)
    return [
        name
        for left, right in pairs
        for name in sorted(left["checksums"].keys() | right["checksums"].keys())
        if left["checksums"].get(name) != right["checksums"].get(name)
    ]


def reply_value(text: str, key: str) -> object:
    """A member of a reply; ``None`` where it has none, or is no JSON object."""
    try:
        return json.loads(text).get(key)
    except (ValueError, AttributeError):
        return None
