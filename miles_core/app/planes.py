"""Builds the rollout plane of a run: data, environments, sessions, rewards and filters."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from miles_core.app.context import trajectory_tokens
from miles_core.app.functions import build_generator, session_options, session_renderer
from miles_core.app.plugin_calls import calls_into
from miles_core.errors import ConfigError, RolloutError
from miles_core.kinds.environments import is_agent
from miles_core.lib.signatures import is_async
from miles_core.rollout.agents import AgentPlayer
from miles_core.rollout.budget import Budget
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.rollout.evaluation import Evaluation
from miles_core.rollout.filtering import FilterChain, NamedFilter
from miles_core.rollout.groups import GroupRunner, GroupSettings
from miles_core.rollout.scheduler import FillSettings
from miles_core.rollout.scoring import Scorer, WeightedReward
from miles_core.rollout.tasks import TaskStream
from miles_core.session.session import TokenSession
from miles_core.session.startup import check_append_only
from miles_core.session.tokenizer import ChatTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.app.session_audit import SessionAudit
    from miles_core.app.wiring import Wiring
    from miles_core.config.schema import DataTable, EnvironmentTable
    from miles_core.kinds.engines import EngineClient
    from miles_core.kinds.environments import AgentEnvironment, Environment
    from miles_core.rollout.agents import Endpoints
    from miles_core.types import Task


def build_tasks(
    wiring: Wiring, table: DataTable, tokenizer: ChatTokenizer, *, epochs: int | None, seed: int | None = None
) -> TaskStream:
    """The tasks of a data table, in the order of ``seed``, or else of the run's."""
    renderer = session_renderer(wiring.config.session, tokenizer)

    def prompt_tokens(task: Task) -> int:
        return len(renderer.prompt(task.messages, task.tools))

    source = wiring.source(table, seed)
    return TaskStream(
        source,
        epochs=epochs,
        max_prompt_tokens=table.max_prompt_tokens,
        prompt_tokens=prompt_tokens,
        timeout=table.timeout,
        calls=calls_into(wiring, "data_sources", table),
    )


def build_filters(wiring: Wiring, tokenizer: ChatTokenizer) -> FilterChain:
    """The filters of a config, of all stages."""
    return FilterChain(
        [
            NamedFilter(
                t.use,
                wiring.build("filters", t, tokenizer=tokenizer.tokenizer),
                t.timeout,
                calls_into(wiring, "filters", t),
            )
            for t in wiring.config.filters
        ]
    )


def build_scorer(wiring: Wiring) -> Scorer:
    """The rewards of a config."""
    return Scorer(
        [
            WeightedReward(
                t.name or t.use,
                wiring.build("reward_models", t),
                t.weight,
                t.timeout,
                calls_into(wiring, "reward_models", t),
            )
            for t in wiring.config.rewards
        ]
    )


def build_runner(
    wiring: Wiring,
    client: EngineClient,
    tokenizer: ChatTokenizer,
    settings: GroupSettings | None = None,
    *,
    router_url: str = "",
    endpoints: Endpoints | None = None,
    audit: SessionAudit | None = None,
) -> GroupRunner:
    """What generates and scores groups through ``client``; ``settings`` default to those of training.

    ``router_url`` is for functions of ``[rollout] generate`` that call engines themselves, ``endpoints`` for agents.
    ``audit`` sees the sessions.
    """
    config = wiring.config
    routing = wiring.model.routing if config.train.replay_routing and settings is None else None
    open_session = partial(TokenSession, tokenizer, client, routing, **session_options(config.session, tokenizer))
    player = None if endpoints is None else AgentPlayer(endpoints, scored=bool(config.rewards))
    return GroupRunner(
        {t.name or t.use: _environments(wiring, t, tokenizer, player) for t in config.environments},
        open_session if audit is None else audit.watched(open_session),
        build_scorer(wiring),
        Budget(
            max_turns=config.rollout.max_turns,
            max_context_tokens=trajectory_tokens(wiring),
            max_response_tokens=config.rollout.max_response_tokens,
            max_new_tokens=config.sampling.max_new_tokens,
            episode_timeout=config.rollout.episode_timeout,
        ),
        settings or training_groups(wiring),
        build_generator(
            wiring,
            evaluation=settings is not None,
            needs_routing=routing is not None,
            tokenizer=tokenizer.tokenizer,
            router_url=router_url,
        ),
    )


def training_groups(wiring: Wiring) -> GroupSettings:
    """How groups are generated for training."""
    config = wiring.config
    return GroupSettings(
        group_size=config.rollout.group_size,
        max_concurrency=config.rollout.max_concurrency,
        temperature=config.sampling.temperature,
        seed=config.run.seed,
    )


def fill_settings(wiring: Wiring) -> FillSettings:
    """When a step is full."""
    rollout = wiring.config.rollout
    return FillSettings(
        groups_per_step=rollout.groups_per_step,
        fill=rollout.fill,
        over_sampling=rollout.over_sampling,
        max_groups=rollout.max_groups_per_step or 8 * rollout.groups_per_step,
        stragglers=rollout.stragglers,
        max_tries=rollout.max_tries,
    )


def build_evaluation(
    wiring: Wiring,
    client: EngineClient,
    tokenizer: ChatTokenizer,
    *,
    router_url: str = "",
    endpoints: Endpoints | None = None,
) -> Evaluation:
    """The evaluation of a config; its tasks are read now, and are the same each time.

    Raises:
        ConfigError: if the config has no ``[eval]``, or its data no task.
    """
    table = wiring.config.eval
    if table is None:
        raise ConfigError(
            "the config has no [eval] table",
            remedy='Add [eval] with a nested data table, such as data = { use = "jsonl", path = "eval.jsonl" }.',
        )
    # not the run's seed: runs of different seeds are compared on the same tasks
    stream = build_tasks(wiring, table.data, tokenizer, epochs=1, seed=0)
    tasks = [task for _ in range(table.tasks) if (task := stream.next()) is not None]
    if not tasks:
        limit = table.data.max_prompt_tokens
        reason = "" if limit is None else f" whose prompt has at most eval.data.max_prompt_tokens = {limit} tokens"
        raise ConfigError(f"the data of [eval] holds no task{reason}", remedy="Correct eval.data.")
    settings = replace(training_groups(wiring), group_size=table.samples_per_task, temperature=table.temperature)
    runner = build_runner(wiring, client, tokenizer, settings, router_url=router_url, endpoints=endpoints)
    return Evaluation(tasks, runner, pass_reward=table.pass_reward, seed=wiring.config.run.seed)


def load_tokenizer(wiring: Wiring) -> ChatTokenizer:
    """The policy's tokenizer, whose template is proven to be continued token by token where episodes have turns.

    Raises:
        ConfigError: if the model directory has no tokenizer, or no chat template where one is needed.
        SessionError: if the template rewrites what stands before an observation.
    """
    tokenizer = ChatTokenizer.load(wiring.model.path)
    if wiring.config.session.renderer != "template":
        return tokenizer
    tokenizer.deriver()  # there must be a template
    if wiring.config.rollout.max_turns > 1:
        roles, tools = observation_roles(wiring), agents_call_tools(wiring)
        check_append_only(tokenizer, sorted(roles - {"tool"} if tools else roles), tools=tools)
    return tokenizer


def observation_roles(wiring: Wiring) -> set[str]:
    """The roles in which the config's environments answer, as they declare them; ``user`` where they do not.

    Agents that declare none have none: the session server refuses what cannot be appended.
    """
    roles: set[str] = set()
    for factory in environment_factories(wiring):
        roles.update(getattr(factory, "observation_roles", () if is_agent(factory) else ("user",)))
    return roles


def agents_call_tools(wiring: Wiring) -> bool:
    """Whether an agent declares that it answers calls: ``observation_roles`` with ``tool``."""
    return any(
        "tool" in getattr(each, "observation_roles", ()) for each in environment_factories(wiring) if is_agent(each)
    )


def environment_factories(wiring: Wiring) -> list[Any]:
    """What makes the config's environments: their classes, or what an adapter made of them."""
    tables = wiring.config.environments
    return [wiring.hub.load(wiring.hub.resolve("environments", t.use), t.adapter) for t in tables]


def _environments(
    wiring: Wiring, table: EnvironmentTable, tokenizer: ChatTokenizer, player: AgentPlayer | None
) -> Callable[[], EnvironmentRunner]:
    """A maker of fresh environments: resolved and validated once, made per episode."""
    ref = wiring.hub.resolve("environments", table.use)
    config = wiring.hub.configure("environments", table)
    context = wiring.context(tokenizer=tokenizer.tokenizer)
    # An episode makes one call at a time, so that these are bounded already.
    calls = calls_into(wiring, "environments", table, threads=wiring.config.rollout.max_concurrency)

    def make() -> Environment | AgentEnvironment:
        made: Environment | AgentEnvironment = wiring.hub.create(
            "environments", ref, config, context, adapter=table.adapter
        )
        return made

    factory: Any = wiring.hub.load(ref, table.adapter)
    agent, name = is_agent(factory), table.name or table.use
    if agent and player is None:
        raise RolloutError(f"the environment {name} is an agent, and no session server runs that it could reach")
    blocks = not is_async(getattr(factory, "run" if agent else "reset", None))
    player = player if agent else None
    return lambda: EnvironmentRunner(None, name, table.timeout, calls, make=make, blocks=blocks, player=player)
