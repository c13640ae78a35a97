"""``[plugins] prefer``: which plugin wins where several distributions offer a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.config.suggest import did_you_mean, listed
from miles_core.errors import ConfigError, PluginNotFound
from miles_core.plugins.reference import normalise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.plugins.reference import PluginRef


def preferred(refs: Sequence[PluginRef], prefer: Sequence[str]) -> list[PluginRef]:
    """Those of ``refs`` that ``prefer`` names as ``distribution/name``."""
    wanted = {(normalise(distribution), name) for distribution, _, name in (text.partition("/") for text in prefer)}
    return [ref for ref in refs if (ref.distribution, ref.name) in wanted]


def check_preferred(prefer: Sequence[str], offered: Mapping[str, set[str]]) -> None:
    """Refuse a preference that could never decide anything; ``offered`` are plugin names by distribution.

    Raises:
        ConfigError: if one is not ``distribution/name``.
        PluginNotFound: if there is no such plugin.
    """
    for text in prefer:
        distribution, slash, name = text.partition("/")
        if not (slash and distribution and name):
            raise ConfigError(
                f"[plugins] prefer: {text!r} is not distribution/name", remedy="Write one such as 'acme-envs/maze'."
            )
        if name in offered.get(normalise(distribution), ()):
            continue
        known = [f"{owner}/{each}" for owner, names in offered.items() for each in names]
        if normalise(distribution) in offered:
            names = ", ".join(sorted(offered[normalise(distribution)])) or "nothing"
            message = f"[plugins] prefer names {text!r}, and {distribution} offers only {names}"
        else:
            message = f"[plugins] prefer names {text!r}; these offer plugins: {listed(sorted(offered))}"
        raise PluginNotFound(message, remedy=did_you_mean(text, known) or f"Take {text!r} out.")
