"""The hooks that a plugin distribution may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.plugins.registry import Registry

PROJECT = "miles"

hookspec = pluggy.HookspecMarker(PROJECT)


@hookspec
def miles_register(registry: Registry) -> None:
    """Add plugins with ``registry.add(kind, name, target)``.

    Every distribution's entry points arrive through this hook. A module named in the entry-point group ``miles``
    implements it to add plugins that are computed at run time; it needs no decorator.
    """


@hookspec
def miles_eval_finished(step: int, results: Mapping[str, float]) -> None:
    """See the metrics (``eval/...``) of an evaluation after ``step`` steps of training."""
