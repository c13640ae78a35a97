"""``[plugins] block`` and ``require``: names must be known, and what is required there in a version that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.config.suggest import did_you_mean, listed
from miles_core.errors import ConfigError, PluginNotFound
from miles_core.plugins.installed.metadata import requirement_of
from miles_core.plugins.installed.policy import OWN
from miles_core.plugins.reference import normalise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.requirements import Requirement

    from miles_core.plugins.installed.discovery import Discovery
    from miles_core.plugins.installed.policy import PluginPolicy
    from miles_core.plugins.installed.standing import Standing


def blocked_names(policy: PluginPolicy, discovery: Discovery) -> frozenset[str]:
    """The normalised names in ``block``.

    Raises:
        PluginNotFound: if one offers no plugins.
        ConfigError: if one is miles-hub itself.
    """
    barred = frozenset(normalise(name) for name in policy.block)
    installed = [distribution.name for distribution in discovery.distributions]
    if OWN in barred:
        raise ConfigError(
            f"[plugins] block names {OWN}, whose plugins always take part", remedy=f"Take {OWN!r} out of it."
        )
    if unknown := sorted(barred.difference(installed)):
        raise PluginNotFound(
            f"[plugins] block names {unknown[0]!r}, which offers no plugins; these do: {listed(installed)}",
            remedy=did_you_mean(unknown[0], installed) or f"Take {unknown[0]!r} out.",
        )
    return barred


def parsed(policy: PluginPolicy) -> dict[str, Requirement]:
    """The requirements in ``require`` by normalised name, without those whose marker excludes this machine.

    Raises:
        ConfigError: if one is malformed.
    """
    requirements: dict[str, Requirement] = {}
    for text in policy.require:
        try:
            requirement = requirement_of(text)
        except ValueError as error:
            raise ConfigError(
                f"[plugins] require: {text!r} is no valid requirement: {error}",
                remedy='Write a name with an optional version, such as "acme-envs>=1.2".',
            ) from None
        if requirement is None:
            continue
        name = normalise(requirement.name)
        if name in requirements:
            requirement.specifier &= requirements[name].specifier
        requirements[name] = requirement
    return requirements


def check_required(
    requirements: Mapping[str, Requirement], discovery: Discovery, standings: Mapping[str, Standing]
) -> None:
    """Refuse an environment that lacks what ``require`` names; all of it in one error.

    Raises:
        PluginNotFound: if a distribution is missing, has another version, or is left out.
    """
    failures: list[str] = []
    remedies: list[str] = []
    for name, requirement in requirements.items():
        version = discovery.version_of(name)
        if version is None:
            failures.append(f"{requirement} is not installed")
            remedies.append(did_you_mean(name, standings) or f"Run `pip install '{requirement}'`.")
        elif not _admits(requirement, version):
            failures.append(f"{requirement} is needed, and {name} {version} is installed")
            remedies.append(f"Run `pip install '{requirement}'`.")
        elif name in standings and not standings[name].takes_part:
            found = standings[name]
            failures.append(f"{name} {version} is installed but {found.state}: {found.reason}")
            remedies.append(found.remedy)
    if failures:
        offering = listed([f"{found.name} {found.version}" for found in discovery.distributions])
        raise PluginNotFound(
            f"[plugins] require: {'; '.join(failures)}; these offer plugins: {offering}",
            remedy=" ".join(dict.fromkeys(remedies)),
        )


def _admits(requirement: Requirement, version: str) -> bool:
    from packaging.version import InvalidVersion

    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return not str(requirement.specifier)
