"""Filters of slime: of dynamic sampling, ``(args, samples)``, and those that set ``sample.remove_sample``."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, Literal

from miles_core.adapters.slime.arguments import arguments
from miles_core.adapters.slime.call import check, names
from miles_core.adapters.slime.sample import sample_class
from miles_core.adapters.slime.to_slime import group_samples, trajectory_sample
from miles_core.errors import PluginError, RolloutError
from miles_core.kinds.filters import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.kinds.base import PluginContext
    from miles_core.kinds.filters import Filter, Stage

SIGNATURE = "filter(args, samples) for a group, or filter(args, groups) to set remove_sample"


def adapt(function: Callable[..., Any]) -> Callable[[Any, PluginContext], Filter]:
    """A factory for a slime filter.

    It is a sample filter, called with one sample in one group, if its parameter is called ``groups`` or ``data``;
    else it judges groups. Its name is the reason of drops that come without one.

    Raises:
        PluginError: if it is a buffer filter, or does not take ``args`` and samples.
    """
    from pydantic import BaseModel, ConfigDict, Field

    name = getattr(function, "__name__", "filter").strip("_<>") or "filter"
    default = _stage(function)

    class SlimeFilter:
        class Config(BaseModel):
            model_config = ConfigDict(extra="allow")
            stage: Literal["sample", "group"] = Field(
                default, description="group: it returns whether to keep; sample: it sets remove_sample"
            )

        stage: Stage = default

        def __init__(self, config: Config, context: PluginContext) -> None:
            self.stage = config.stage
            self._args = arguments(context, config.model_dump(exclude={"stage"}))
            self._class = sample_class(function)

        def keep(self, item: Any) -> Verdict:
            if self.stage == "group":
                return _verdict(function(self._args, group_samples(item, self._class)), name)
            sample = trajectory_sample(item, self._class)
            returned = function(self._args, [[sample]])
            if returned is not None:
                raise RolloutError(
                    f"filter {name}: a sample filter sets sample.remove_sample and returns None; got {returned!r}",
                    remedy='Set stage = "group" in its table if it returns whether to keep a group.',
                )
            return Verdict(not sample.remove_sample, name if sample.remove_sample else "")

    return SlimeFilter


def _stage(function: Callable[..., Any]) -> Literal["sample", "group"]:
    found = names(function)
    if "buffer" in found:
        raise PluginError(
            'adapter = "slime" does not adapt buffer filters: slime\'s choose which unfinished groups '
            "to go on with, which is the scheduler's work here",
            remedy='Write a filter with stage = "buffer", which judges groups when they are trained.',
        )
    check(function, SIGNATURE, "args", "samples")
    if inspect.iscoroutinefunction(function):
        raise PluginError(
            'adapter = "slime" calls filters without await, as slime does; this one is a coroutine function',
            remedy="Write `def` instead of `async def`.",
        )
    return "sample" if found[1:2] in (["groups"], ["data"]) else "group"


def _verdict(output: Any, name: str) -> Verdict:
    keep = getattr(output, "keep", output)
    if keep is None:
        raise RolloutError(
            f"filter {name} returned None; one for groups must return a bool, or an object with keep and reason",
            remedy='Set stage = "sample" in its table if it sets sample.remove_sample.',
        )
    keep = keep.item() if hasattr(keep, "item") else keep  # a tensor, or a scalar of numpy
    if not isinstance(keep, bool):
        raise RolloutError(f"filter {name} must return a bool, or an object with keep and reason; got {output!r}")
    reason = re.sub(r"[^\w.-]+", "_", str(getattr(output, "reason", None) or name))
    return Verdict(keep, "" if keep else reason)
