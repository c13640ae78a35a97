"""Builds the rollout plane of a run: data, environments, sessions, rewards and filters."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from miles_core.rollout.budget import Budget
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.rollout.filtering import FilterChain, NamedFilter
from miles_core.rollout.scheduler import RolloutScheduler, RolloutSettings
from miles_core.rollout.scoring import Scorer, WeightedReward
from miles_core.session.session import TokenSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.app.wiring import Wiring
    from miles_core.config.schema import EnvironmentTable
    from miles_core.kinds.data_sources import DataSource
    from miles_core.kinds.engines import EngineClient
    from miles_core.session.tokenizer import ChatTokenizer


def build_scheduler(
    wiring: Wiring, source: DataSource, client: EngineClient, tokenizer: ChatTokenizer
) -> RolloutScheduler:
    """The scheduler of a config, generating through ``client``."""
    config = wiring.config
    rewards = [
        WeightedReward(t.name or t.use, wiring.build("reward_models", t), t.weight, t.timeout) for t in config.rewards
    ]
    filters = [NamedFilter(t.use, wiring.build("filters", t, tokenizer=tokenizer.tokenizer)) for t in config.filters]
    routing = wiring.model.routing if config.train.replay_routing else None
    return RolloutScheduler(
        source,
        {t.name or t.use: _environments(wiring, t, tokenizer) for t in config.environments},
        partial(TokenSession, tokenizer, client, routing),
        Scorer(rewards),
        FilterChain(filters),
        Budget(
            max_turns=config.rollout.max_turns,
            max_context_tokens=min(config.rollout.max_context_tokens, _served_context(wiring)),
            max_response_tokens=config.rollout.max_response_tokens,
            max_new_tokens=config.sampling.max_new_tokens,
            episode_timeout=config.rollout.episode_timeout,
        ),
        RolloutSettings(
            groups_per_step=config.rollout.groups_per_step,
            group_size=config.rollout.group_size,
            max_concurrency=config.rollout.max_concurrency,
            temperature=config.sampling.temperature,
            seed=config.run.seed,
        ),
    )


def observation_roles(wiring: Wiring) -> set[str]:
    """The roles in which the config's environments answer, as they declare them; ``user`` where they do not."""
    roles: set[str] = set()
    for table in wiring.config.environments:
        factory = wiring.hub.load(wiring.hub.resolve("environments", table.use))
        roles.update(getattr(factory, "observation_roles", ("user",)))
    return roles


def _served_context(wiring: Wiring) -> int:
    """Tokens that engines take: the model's context, or less where the engine's options say so."""
    options = wiring.hub.configure("engines", wiring.config.engine)
    limit: int | None = getattr(options, "context_length", None)
    return min(limit or wiring.model.context_length, wiring.model.context_length)


def _environments(wiring: Wiring, table: EnvironmentTable, tokenizer: ChatTokenizer) -> Callable[[], EnvironmentRunner]:
    """A maker of fresh environments: resolved and validated once, made per episode."""
    ref = wiring.hub.resolve("environments", table.use)
    config = wiring.hub.configure("environments", table)
    context = wiring.context(tokenizer=tokenizer.tokenizer)

    def make() -> EnvironmentRunner:
        environment = wiring.hub.create("environments", ref, config, context)
        return EnvironmentRunner(environment, table.name or table.use, table.timeout)

    return make
