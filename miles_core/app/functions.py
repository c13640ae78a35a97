"""The functions that a config names beside its plugins: generate, match, pick, correction and reduction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.errors import ConfigError
from miles_core.plugins.functions.episode import load_episode_function
from miles_core.plugins.functions.resolve import find_target, load_function
from miles_core.rollout.generating import TURNS, Generator
from miles_core.session.matching import MATCHES
from miles_core.session.parsing.derive import derive_parser
from miles_core.session.parsing.turn import TurnParser
from miles_core.session.picking import PICKS
from miles_core.session.rendering import own_renderer
from miles_core.session.tito import TemplateRenderer
from miles_core.train.correction import CORRECTIONS, NamedCorrection
from miles_core.train.reduction import REDUCTIONS, NamedReduction

if TYPE_CHECKING:
    from miles_core.app.wiring import Wiring
    from miles_core.config.schema import Config
    from miles_core.config.serving import SessionTable
    from miles_core.kinds.sessions import Renderer
    from miles_core.session.tokenizer import ChatTokenizer

EPISODES = {TURNS.name: TURNS.function}
"""The built-in functions of ``[rollout] generate``, by name."""

_SESSION_TARGETS: dict[str, dict[str, Any]] = {
    "renderer": {"template": None},
    "tool_calls": {"template": None, "none": None},
    "reasoning": {"template": None, "none": None},
}


def check_functions(config: Config) -> None:
    """Load all of them, and check their options.

    Raises:
        MilesError: naming the key, what it holds and what is wrong.
    """
    if config.rollout.generate is not None:
        load_episode_function(config.rollout.generate, EPISODES)
    session_functions(config.session)
    for key in _SESSION_TARGETS:
        own = _session_target(config.session, key)
        if own is not None and not callable(own):
            raise ConfigError(f"session.{key} = {getattr(config.session, key)!r} cannot be called")
    build_correction(config)
    build_reduction(config)


def build_generator(wiring: Wiring, *, evaluation: bool, needs_routing: bool, **services: Any) -> Generator:
    """What generates the episodes of training, or of an evaluation."""
    table = wiring.config.rollout.generate
    function, name = TURNS.function, TURNS.name
    if table is not None:
        config = wiring.config.model_dump(mode="json", exclude_none=True)
        context = wiring.context(config=config, **services)
        function, name = load_episode_function(table, EPISODES)(context), table.use
    return Generator(function, name, evaluation=evaluation, needs_routing=needs_routing)


def session_functions(table: SessionTable) -> dict[str, Any]:
    """``match`` and ``pick`` of every session."""
    return {
        "match": load_function("session.match", table.match, MATCHES, ("stored", "given")),
        "pick": load_function("session.pick", table.pick, PICKS, ("turns",)),
    }


def session_options(table: SessionTable, tokenizer: ChatTokenizer) -> dict[str, Any]:
    """What ``[session]`` says of every session, as keyword arguments of ``TokenSession``.

    Raises:
        ConfigError: if the chat template is needed, and there is none.
        SessionError: if a renderer of somebody else's cannot be made.
    """
    learns = "template" in (table.tool_calls, table.reasoning)
    learned = derive_parser(tokenizer.deriver(tools=True).text) if learns else TurnParser()
    parser = TurnParser(
        learned.tool_calls if table.tool_calls == "template" else _session_target(table, "tool_calls"),
        learned.reasoning if table.reasoning == "template" else _session_target(table, "reasoning"),
    )
    renderer = _own_renderer(table, tokenizer)
    return {**session_functions(table), "renderer": renderer, "parser": parser, "clock": table.clock}


def session_renderer(table: SessionTable, tokenizer: ChatTokenizer) -> Renderer:
    """What writes prompts outside of sessions, as sessions do: to count their tokens, or to train on given ones."""
    return _own_renderer(table, tokenizer) or TemplateRenderer(tokenizer, table.clock)


def _own_renderer(table: SessionTable, tokenizer: ChatTokenizer) -> Renderer | None:
    factory = _session_target(table, "renderer")
    return None if factory is None else own_renderer(factory, table.renderer, tokenizer)


def _session_target(table: SessionTable, key: str) -> Any:
    """The renderer or the parser of a key that is not ours; ``None`` for what is built in."""
    return find_target(f"session.{key}", getattr(table, key), _SESSION_TARGETS[key])


def build_correction(config: Config) -> NamedCorrection | None:
    """The correction of a config; ``None`` for ``none``.

    Raises:
        ConfigError: if it would count twice what the ratio holds already, or an option is wrong.
    """
    table = config.correction
    if table.use == "none":
        if table.options:
            raise ConfigError(
                f'[correction] use = "none" takes no options; got {", ".join(table.options)}',
                remedy=f"Name a correction in use: {', '.join(CORRECTIONS)}, or module:attribute.",
            )
        return None
    known = {"none": None, **CORRECTIONS}
    function = load_function("correction.use", table.use, known, ("batch",), table.options)  # type: ignore[arg-type]
    if table.use in CORRECTIONS and config.objective.old_logprobs == "rollout":
        raise ConfigError(
            f'[correction] use = "{table.use}" needs objective.old_logprobs = "proximal": ratios against rollout '
            "logprobs hold that factor already",
            remedy='Set one of both: correction.use = "none", or objective.old_logprobs = "proximal".',
        )
    return NamedCorrection(table.use, function)


def build_reduction(config: Config) -> NamedReduction:
    """The reduction of a config."""
    use = config.objective.reduction
    return NamedReduction(use, load_function("objective.reduction", use, REDUCTIONS, ("batch", "mask")))
