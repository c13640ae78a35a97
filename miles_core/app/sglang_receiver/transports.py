"""The engine's ends of transports, by the names under which they are installed here; without the hub."""

from __future__ import annotations

import json
import os
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from miles_core.errors import WeightSyncError
from miles_core.kinds.base import PluginContext
from miles_core.weights.transport_facts import OPTIONS_VARIABLE, TransportFacts

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from miles_core.kinds.weight_transports import WeightTransport

_GROUP = "miles.weight_transports"


def make_transport(name: str) -> WeightTransport:
    """A transport with the options of this process.

    Raises:
        WeightSyncError: if there is none of that name, or it cannot be loaded or made.
    """
    found = {entry.name: entry for entry in entry_points(group=_GROUP)}
    if name not in found:
        raise WeightSyncError(
            f"this engine has no transport {name!r}; it has {', '.join(sorted(found)) or 'none'}",
            remedy="Choose one of these for [weights] use, or install the other in the engine's environment.",
        )
    options = _options(name)
    try:
        factory = found[name].load()
        config_class = getattr(factory, "Config", None)
        config = options if config_class is None else config_class.model_validate(options)
        transport: WeightTransport = factory(config, PluginContext())
    except (ImportError, AttributeError, TypeError, ValidationError) as error:
        raise WeightSyncError(
            f"the transport {name!r} cannot be made in this engine: {type(error).__name__}: {error}",
            remedy=f"Install what it needs in the engine's environment, or correct {OPTIONS_VARIABLE}.",
        ) from error
    return transport


def usable_transports() -> dict[str, str | None]:
    """The transports that are installed here, each with the reason why our receiver cannot use it."""
    return {entry.name: _why_not(entry) for entry in entry_points(group=_GROUP)}


def _why_not(entry: EntryPoint) -> str | None:
    try:
        facts = TransportFacts.of(entry.name, entry.load())
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return facts.unavailable if facts.receivers else "it feeds SGLang's own endpoints"


def _options(name: str) -> dict[str, Any]:
    text = os.environ.get(OPTIONS_VARIABLE, "{}")
    try:
        given = json.loads(text)
        options = given.get(name, {})
    except (ValueError, AttributeError) as error:
        raise WeightSyncError(
            f"{OPTIONS_VARIABLE} must be a JSON object of options by transport; got {text[:80]!r}: {error}"
        ) from error
    if not isinstance(options, dict):
        raise WeightSyncError(f"the options of {name!r} in {OPTIONS_VARIABLE} must be an object; got {options!r}")
    return options
