"""Is an engine one that a run can use? What it says of itself is held against the model that is trained."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from miles_core.app.context import trajectory_tokens
from miles_core.app.engine_facts import usable_tokens
from miles_core.engine.http import describe
from miles_core.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.app.wiring import ModelFacts, Wiring
    from miles_core.types import RoutingSpec

ASK_SECONDS = 30.0
PROBE_SECONDS = 5.0

_OTHER_MODEL = "Serve the model of model.path, or set model.path to the one that is served."


@dataclass(frozen=True, eq=False)
class EngineCheck:
    """What engines must be for the model that is trained; ``replay``: they must report routed experts.

    ``context_tokens`` is what a trajectory may need. What an engine does not report is left out here; the client checks
    each reply.
    """

    model: ModelFacts
    context_tokens: int
    replay: bool
    http: aiohttp.ClientSession
    _speculative: set[str] = field(default_factory=set, init=False)

    @classmethod
    def of_run(cls, wiring: Wiring, http: aiohttp.ClientSession) -> EngineCheck:
        """The needs of a config."""
        model, config = wiring.model, wiring.config
        replay = config.train.replay_routing and model.routing is not None
        return cls(model, trajectory_tokens(wiring), replay, http)

    async def check(self, url: str) -> None:
        """Hold one engine against the model.

        Raises:
            EngineError: if it cannot be asked, serves another model, too short a context, or no routed experts.
        """
        info = {**await self._ask(url, "/server_info"), **await self._ask(url, "/model_info")}
        self._check_context(url, usable_tokens(info))
        served = _served_config(info)
        architectures = info.get("architectures") or served.get("architectures")
        self._same(url, "architectures", architectures, self.model.hf_config.get("architectures"))
        self._same(url, "vocab_size", info.get("vocab_size") or served.get("vocab_size"), self.model.vocab_size)
        if served:
            self._check_layers(url, served)
        if self.replay and info.get("enable_return_routed_experts") is False:
            raise EngineError(
                f"engine {url} reports no routed experts (enable_return_routed_experts = false), which replay needs",
                remedy="Start it with --enable-return-routed-experts, or set train.replay_routing = false.",
            )
        if info.get("speculative_algorithm"):
            self._speculative.add(url)

    async def answers(self, url: str) -> bool:
        """Whether there is any answer; not asked at ``/health``, where a paused SGLang would wait."""
        try:
            async with self.http.get(f"{url}/model_info", timeout=aiohttp.ClientTimeout(total=PROBE_SECONDS)):
                return True
        except (aiohttp.ClientError, OSError):
            return False

    async def accept_length(self, urls: Sequence[str]) -> float | None:
        """Tokens per forward pass of engines with speculative decoding since their start, mean over those of ``urls``.

        ``None`` where no engine says so.
        """
        lengths = []
        for url in self._speculative.intersection(urls):
            with suppress(EngineError):  # it may be about to die, which others notice
                states = (await self._ask(url, "/server_info")).get("internal_states") or []
                lengths += [state["avg_spec_accept_length"] for state in states if "avg_spec_accept_length" in state]
        return sum(lengths) / len(lengths) if lengths else None

    async def _ask(self, url: str, path: str) -> dict[str, Any]:
        try:
            async with self.http.get(url + path, timeout=aiohttp.ClientTimeout(total=ASK_SECONDS)) as reply:
                status, raw = reply.status, await reply.read()
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(
                f"engine {url} does not answer {path}: {describe(error)}", remedy="Read the engine's log."
            ) from error
        try:
            answer = json.loads(raw) if status == 200 else None
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise EngineError(
                f"engine {url} must answer {path} with a JSON object; got status {status}: {raw[:200]!r}",
                remedy="Check that the URL is that of an SGLang server, and see its log.",
            )
        return answer

    def _check_context(self, url: str, served: int | None) -> None:
        if served is not None and served < self.context_tokens:
            raise EngineError(
                f"engine {url} serves trajectories of at most {served} tokens; one may have {self.context_tokens} "
                "(the lesser of rollout.max_context_tokens and what engines use of the model's own context)",
                remedy="Give the engine a longer context or more memory for it, or lower rollout.max_context_tokens.",
            )

    def _check_layers(self, url: str, served: Mapping[str, Any]) -> None:
        layers = self.model.hf_config.get("num_hidden_layers")
        self._same(url, "num_hidden_layers", served.get("num_hidden_layers"), layers)
        try:
            routing: RoutingSpec | None = self.model.bridge.routing_spec(served)
        except ConfigError:  # a config.json that no engine could serve either
            return
        ours = self.model.routing
        if routing is None or ours is None:
            self._same(url, "routed experts", routing is not None, ours is not None)
            return
        for name in ("num_layers", "num_experts", "top_k", "layer_ids"):
            self._same(url, name, getattr(routing, name), getattr(ours, name))

    def _same(self, url: str, name: str, served: object, trained: object) -> None:
        if served is not None and trained is not None and served != trained:
            raise EngineError(
                f"engine {url} serves another model than the one that is trained: its {name} is {served}, "
                f"that of {self.model.path} is {trained}",
                remedy=_OTHER_MODEL,
            )


def _served_config(info: Mapping[str, Any]) -> dict[str, Any]:
    """``config.json`` of the directory that the engine serves, where this machine has it."""
    try:
        config = json.loads((Path(str(info.get("model_path"))) / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
