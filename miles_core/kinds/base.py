"""What a plugin kind is, and what every plugin gets when it is made."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from miles_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of plugin; entry points of group ``miles.<plural>`` register it.

    ``protocol`` documents the object and its methods' parameters; ``table`` is where a config names the plugin.
    ``members`` are the attributes that a plugin object must have. ``awaited`` says of methods whether they must be
    ``async def`` (``True``) or must not be (``False``); others may be either. ``choices`` are the values that a member
    may have, where this version runs no other; a member that is a tuple holds some of them. ``adapt`` turns a plain
    function into a factory, for kinds where a function is enough; ``function`` names its arguments. ``offers`` are
    keywords that it and the method of the same arguments get only if they take them. ``wraps_app`` is set where the
    factory is called ``cls(app, config, context)`` instead of ``cls(config, context)``. Objects may have the
    ``other_members`` of ``other_protocol`` in place of ``members``.
    """

    plural: str
    singular: str
    summary: str
    table: str
    protocol: type
    members: tuple[str, ...]
    awaited: Mapping[str, bool] = field(default_factory=dict, hash=False)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    adapt: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    function: tuple[str, ...] = ()
    offers: tuple[str, ...] = ()
    wraps_app: bool = False
    other_protocol: type | None = None
    other_members: tuple[str, ...] = ()

    def form(self, has: Container[str]) -> tuple[type, tuple[str, ...]]:
        """The Protocol, and the members it asks for, of an object that has these members."""
        whole = all(member in has for member in self.members)
        if self.other_protocol is None or whole or not all(member in has for member in self.other_members):
            return self.protocol, self.members
        return self.other_protocol, self.other_members

    @property
    def group(self) -> str:
        """The entry-point group."""
        return f"miles.{self.plural}"


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What the host gives to a plugin: run directory, seed, logger and the services of its kind."""

    run_dir: Path | None = None
    seed: int = 0
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("miles"))
    services: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokenizer(self) -> Any:
        """The policy's tokenizer.

        Raises:
            PluginError: where this process has none.
        """
        return self.service("tokenizer")

    def service(self, name: str) -> Any:
        """A service by name.

        Raises:
            PluginError: if the host does not offer it to this kind of plugin.
        """
        try:
            return self.services[name]
        except KeyError:
            offered = ", ".join(sorted(self.services)) or "none"
            raise PluginError(f"the context offers no {name!r} here; services: {offered}") from None
