"""Which distributions may take part: what the config, the environment and the command line say."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.config.schema import PluginsTable

AUTOLOAD = "MILES_PLUGIN_AUTOLOAD"
"""0: of other distributions than miles-hub only those that ``[plugins] require`` names take part."""

THIRD_PARTY = "MILES_PLUGINS"
"""``none``, as the flag ``--no-plugins`` sets it: no other distribution than miles-hub takes part."""

STRICT = "MILES_STRICT_PLUGINS"
"""1, as the flag ``--strict-plugins`` sets it: whatever is wrong with any plugin is an error."""

_NO = ("0", "false", "no", "off")

OWN = "miles-hub"
"""The distribution of the built-in plugins, which always takes part."""


@dataclass(frozen=True, slots=True)
class PluginPolicy:
    """See :class:`miles_core.config.schema.PluginsTable`; ``third_party`` is false under ``--no-plugins``."""

    block: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    autoload: bool = True
    strict: bool = False
    third_party: bool = True

    @classmethod
    def of(cls, table: PluginsTable | None = None, environ: Mapping[str, str] = os.environ) -> PluginPolicy:
        """The policy of a config's ``[plugins]``, or of no config, in this process's environment."""
        return cls(
            block=table.block if table else (),
            require=table.require if table else (),
            prefer=table.prefer if table else (),
            autoload=(table.autoload if table else True) and environ.get(AUTOLOAD, "").lower() not in _NO,
            strict=(table.strict if table else False) or environ.get(STRICT, "").lower() not in ("", *_NO),
            third_party=environ.get(THIRD_PARTY, "").lower() != "none",
        )

    def lenient(self) -> PluginPolicy:
        """The same without strictness, for commands that show what is wrong."""
        return replace(self, strict=False)
