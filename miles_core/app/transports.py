"""The transports of a config: the one that it names, or all that ``auto`` may choose from."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from miles_core.config.schema import WeightsTable
from miles_core.errors import ConfigError, PluginError
from miles_core.weights.auto_choice import AutoChoice
from miles_core.weights.choice import NamedChoice, TransportWay
from miles_core.weights.transport_facts import TransportFacts

if TYPE_CHECKING:
    from miles_core.app.wiring import Wiring
    from miles_core.plugins.hub import Hub
    from miles_core.weights.ports import UpdateChoice

AUTO = "auto"


def transport_table(hub: Hub, table: WeightsTable, name: str) -> WeightsTable:
    """The table of one transport: under ``auto`` it gets the options of ``[weights]`` that it has."""
    if table.use != AUTO:
        return table if name == table.use else _bare(table, name)
    known = _option_names(hub, name)
    options = {key: value for key, value in table.options.items() if key in known}
    return WeightsTable.model_validate({**_bare(table, name).model_dump(), **options})


def transport_options(hub: Hub, table: WeightsTable) -> dict[str, dict[str, Any]]:
    """What ``[weights]`` sets for each transport that an update may go by; those that do not load are left out."""
    options: dict[str, dict[str, Any]] = {}
    for name in transport_names(hub) if table.use == AUTO else [table.use]:
        with suppress(PluginError):
            options[name] = dict(transport_table(hub, table, name).options)
    return options


def usable_transports(hub: Hub, use: str = AUTO) -> dict[str, str | None]:
    """The transports that receivers of ours take, with why one cannot be used in this process.

    They are the installed ones, and the one that the config names, which may be a module's.
    """
    named = [] if use in (AUTO, *transport_names(hub)) else [_facts(hub, use)]
    return {one.name: one.unavailable for one in (*installed_transports(hub), *named) if one.receivers}


def transport_names(hub: Hub) -> list[str]:
    """The names of the installed transports; of several with one name, none."""
    names = [ref.name for ref in hub.refs("weight_transports")]
    return sorted({name for name in names if names.count(name) == 1})


def installed_transports(hub: Hub) -> list[TransportFacts]:
    """What the installed transports say of themselves; one that does not load says why."""
    return [_facts(hub, name) for name in transport_names(hub)]


def _facts(hub: Hub, name: str) -> TransportFacts:
    try:
        return TransportFacts.of(name, hub.load(hub.resolve("weight_transports", name)))
    except PluginError as error:
        return TransportFacts(name, unavailable=error.message)


def update_choice(wiring: Wiring) -> UpdateChoice:
    """By which transport a run's updates go."""
    config, hub = wiring.config, wiring.hub
    engine: Any = hub.load(hub.resolve("engines", config.engine.use))

    def way(facts: TransportFacts) -> TransportWay:
        model = wiring.model
        return TransportWay(
            facts, engine.weight_updates, config.engine.pause_mode, model.layout_of, frozenset(model.mappings)
        )

    if config.weights.use == AUTO:
        ways = [way(one) for one in installed_transports(hub) if one.fits(engine.weight_updates)]
        return AutoChoice(ways, has_folder="dir" in config.weights.options)
    loaded = hub.load(hub.resolve("weight_transports", config.weights.use))
    return NamedChoice(way(TransportFacts.of(config.weights.use, loaded)))


def check_transport(wiring: Wiring) -> None:
    """Refuse a transport that no engine of this kind takes, and options that none has.

    Raises:
        ConfigError: with the reason.
    """
    config, hub = wiring.config, wiring.hub
    if config.weights.use == AUTO:
        _check_options(hub, config.weights)
        return
    engine: Any = hub.load(hub.resolve("engines", config.engine.use))
    facts = TransportFacts.of(config.weights.use, hub.load(hub.resolve("weight_transports", config.weights.use)))
    if not facts.fits(engine.weight_updates):
        raise ConfigError(
            f"the transport {config.weights.use} feeds endpoints of SGLang only, which the engine {config.engine.use} "
            "does not have",
            remedy='Set weights.use = "auto".',
        )
    if facts.unavailable is not None:
        raise ConfigError(
            f"the transport {config.weights.use} cannot be used here: {facts.unavailable}",
            remedy='Install what it needs, or set weights.use = "auto".',
        )


def _check_options(hub: Hub, table: WeightsTable) -> None:
    known: set[str] = set()
    for name in transport_names(hub):
        try:
            known |= _option_names(hub, name)
        except PluginError:  # the choice says so, and goes by another one
            continue
        hub.configure("weight_transports", transport_table(hub, table, name))
    if unknown := sorted(set(table.options) - known):
        raise ConfigError(
            f"weights.{unknown[0]} is an option of no transport; they have {', '.join(sorted(known))}",
            remedy="Correct the key, or name the transport that has it as weights.use.",
        )


def _option_names(hub: Hub, name: str) -> set[str]:
    model = hub.config_model(hub.resolve("weight_transports", name))
    return set() if model is None else set(model.model_fields)


def _bare(table: WeightsTable, name: str) -> WeightsTable:
    return WeightsTable(use=name, bucket_bytes=table.bucket_bytes, timeout=table.timeout, patience=table.patience)
