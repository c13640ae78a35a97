"""Loading plugins to see whether they load, in a process that may be lost: run by ``miles plugins doctor``.

It writes an empty line when it has started, reads plugins as JSON from its input, and answers one line of JSON each,
as soon as it is known.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from miles_core.errors import MilesError
from miles_core.lib.error_text import error_text
from miles_core.plugins.lifecycle.manager import Manager
from miles_core.plugins.loading.configure import config_model
from miles_core.plugins.loading.loader import import_target, load_factory
from miles_core.plugins.reference import HOOKS, PluginRef
from miles_core.plugins.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping


def main() -> None:
    """Try the plugins of the input, in order."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what plugins print must not mix with the answers
        answers.write("\n")
        answers.flush()
        for row in json.load(sys.stdin):
            answers.write(json.dumps(_tried(PluginRef(**row))) + "\n")
            answers.flush()


def _tried(ref: PluginRef) -> Mapping[str, Any]:
    try:
        _load(ref)
    except MilesError as error:
        named = str(ref) in error.message
        return {"failure": error.message if named else f"{ref}: {error.message}", "remedy": error.remedy}
    except BaseException as error:  # noqa: BLE001 - whatever it is, the next plugin gets its turn
        return {"failure": f"{ref} fails: {error_text(error)}", "remedy": None}
    return {"failure": None}


def _load(ref: PluginRef) -> None:
    if ref.kind != HOOKS:
        config_model(load_factory(ref), ref)
        return
    registry = Registry(ref.distribution or "", ref.version or "")
    Manager().collect(import_target(ref), ref.qualified_name, registry, ref.label)
    for computed in registry.refs:
        _load(computed)
