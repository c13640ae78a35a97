"""The plugin lock: which plugins a run uses, and which builds of them."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.errors import PluginError, PluginNotFound
from miles_core.kinds import KINDS
from miles_core.plugins.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from miles_core.plugins.hub import Hub
    from miles_core.plugins.reference import PluginRef


@dataclass(frozen=True, slots=True)
class LockedPlugin:
    """One plugin as it was resolved: ``use`` is what the config says, the rest is what answered to it.

    ``distribution`` and ``version`` are ``None`` for a written target. Nothing says where it was installed, so that
    machines can be compared.
    """

    kind: str
    use: str
    name: str
    target: str
    distribution: str | None = None
    version: str | None = None

    @classmethod
    def of(cls, ref: PluginRef, use: str) -> LockedPlugin:
        """The row of a plugin that the config calls ``use``."""
        return cls(ref.kind, use, ref.name, ref.target, ref.distribution, ref.version)

    @property
    def build(self) -> str:
        """What has to be the same for the same code to run: distribution, version and target."""
        offered = " ".join(part for part in (self.distribution, self.version) if part)
        return f"{offered or 'by import path'} ({self.target})"


@dataclass(frozen=True, slots=True)
class PluginLock:
    """Rows in the order of the config, then hand-written modules; JSON is a list of dictionaries."""

    rows: tuple[LockedPlugin, ...] = ()

    @classmethod
    def from_json(cls, rows: Any) -> PluginLock:
        """Read what :meth:`to_json` wrote, or an earlier version did: keys may be missing, unknown ones are skipped.

        Raises:
            PluginError: if it is not a list of rows.
        """
        if not isinstance(rows, list | tuple) or not all(hasattr(row, "get") for row in rows):
            raise PluginError(
                f"a plugin lock is a list of objects with the keys {', '.join(_KEYS)}; got {str(rows)[:60]}",
                remedy="Write one with `miles plugins lock`.",
            )
        return cls(tuple(_row(row) for row in rows))

    def to_json(self) -> list[dict[str, str | None]]:
        """Plain dictionaries, one for each row."""
        return [dataclasses.asdict(row) for row in self.rows]

    def differences(self, other: PluginLock) -> list[str]:
        """What ``other`` has otherwise, one line for each plugin, as ``then -> now``; empty if the same code runs."""
        before, after = ({(row.kind, row.use): row.build for row in lock.rows} for lock in (self, other))
        return [
            f"plugin {key[0]} {key[1]}: {before.get(key, 'not used')} -> {after.get(key, 'not used')}"
            for key in sorted(before.keys() | after.keys())
            if before.get(key) != after.get(key)
        ]


_KEYS = tuple(field.name for field in dataclasses.fields(LockedPlugin))


def lock_of(hub: Hub, uses: Iterable[tuple[str, str]]) -> PluginLock:
    """The lock of plugins given as ``(kind, use)``, and of every hand-written module, since those act unnamed.

    Raises:
        PluginNotFound: if nothing, or more than one plugin, answers to a ``use``.
    """
    rows = [LockedPlugin.of(hub.resolve(kind, use), use) for kind, use in dict.fromkeys(uses)]
    return PluginLock((*rows, *(LockedPlugin.of(module, module.qualified_name) for module in hub.modules)))


def lock_of_all(hub: Hub) -> PluginLock:
    """The lock of everything that may be used, by metadata alone; ``use`` is ``distribution/name``."""
    refs = [row.ref for row in hub.listing if not row.left_out]
    return PluginLock(tuple(LockedPlugin.of(ref, ref.qualified_name) for ref in refs))


def lock_of_again(hub: Hub, before: PluginLock) -> PluginLock:
    """What answers here to the names in an earlier lock, without those that nothing answers to.

    Hand-written modules are imported only for names that no metadata knows.
    """
    rows = [LockedPlugin.of(module, module.qualified_name) for module in hub.modules]
    for row in before.rows:
        if row.kind not in KINDS:  # modules are above, and a later version may have more kinds
            continue
        with suppress(PluginNotFound):
            rows.append(LockedPlugin.of(_found(hub, row), row.use))
    return PluginLock(tuple(rows))


def _found(hub: Hub, row: LockedPlugin) -> PluginRef:
    refs = hub.refs(row.kind)
    for ref in refs:  # one distribution may offer a name twice
        if row == LockedPlugin.of(ref, ref.qualified_name):
            return ref
    try:
        return resolve(row.kind, row.use, refs)
    except PluginNotFound:
        return hub.resolve(row.kind, row.use)


def _row(row: Mapping[str, Any]) -> LockedPlugin:
    text = {key: str(row[key]) for key in _KEYS if row.get(key) is not None}
    return LockedPlugin(**{"kind": "", "use": "", "name": "", "target": "", **text})
