"""The names of a new package: checked, and derived from one another."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

from miles_core.config.suggest import did_you_mean
from miles_core.errors import PluginError
from miles_core.kinds import KINDS, Kind
from miles_core.plugins.reference import normalise

_PLUGIN = re.compile(r"[A-Za-z]([A-Za-z0-9_-]{0,38}[A-Za-z0-9])?")
_DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Names:
    """``distribution`` is what pip installs, ``package`` what Python imports; ``module`` in it holds ``class_name``."""

    kind: Kind
    plugin: str
    distribution: str
    package: str
    module: str
    class_name: str


def kind_of(text: str) -> Kind:
    """The kind of a singular or plural; spaces, ``-`` and ``_`` are the same.

    Raises:
        PluginError: if there is none.
    """
    word = re.sub(r"[\s_-]+", "_", text.strip()).lower()
    by_word = {kind.singular.replace(" ", "_"): kind for kind in KINDS.values()}
    if found := by_word.get(word) or KINDS.get(word):
        return found
    raise PluginError(
        f"there is no plugin kind {text!r}; kinds: {', '.join(by_word)}",
        remedy=did_you_mean(word, by_word) or "Write one of these, or its plural.",
    )


def names_of(kind: Kind, plugin: str, distribution_name: str | None = None) -> Names:
    """All names of a package that holds one plugin; by default the distribution is called ``miles-<plugin>``.

    Raises:
        PluginError: if a name is malformed, a keyword of Python, or that of something installed.
    """
    if not _PLUGIN.fullmatch(plugin):
        raise PluginError(
            f"a plugin's name has up to 40 letters, digits, - and _, begins with a letter and ends with a letter or "
            f"digit; got {plugin!r}",
            remedy="Choose such a name, for example short_answer.",
        )
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", plugin)]
    module = "_".join(words)
    found = distribution_name if distribution_name is not None else f"miles-{module.replace('_', '-')}"
    names = Names(kind, plugin, found, _package(found), module, _class_name(plugin))
    if keyword.iskeyword(module):
        raise PluginError(
            f"the module of the plugin would be called {module!r}, which is a keyword of Python",
            remedy="Choose another name for the plugin.",
        )
    _check_free(names)
    return names


def _class_name(plugin: str) -> str:
    return "".join(part[0].upper() + part[1:] for part in re.split(r"[_-]+", plugin))


def _package(distribution_name: str) -> str:
    if not _DISTRIBUTION.fullmatch(distribution_name):
        raise PluginError(
            f"a distribution's name has ASCII letters, digits, -, _ and ., and begins and ends with a letter or digit; "
            f"got {distribution_name!r}",
            remedy="Give another --distribution, for example acme-plugins.",
        )
    package = normalise(distribution_name).replace("-", "_")
    if not package.isidentifier() or keyword.iskeyword(package):
        raise PluginError(
            f"the distribution {distribution_name!r} would hold the package {package!r}, which Python cannot import",
            remedy="Give a --distribution that begins with a letter and is no keyword.",
        )
    return package


def _check_free(names: Names) -> None:
    try:
        distribution(names.distribution)
    except PackageNotFoundError:
        taken = "a module" if names.package in sys.stdlib_module_names or find_spec(names.package) else None
    else:
        taken = "a distribution"
    if taken:
        raise PluginError(
            f"{taken} called {names.distribution if taken == 'a distribution' else names.package!r} is installed",
            remedy="Give another --distribution, or uninstall that one.",
        )
