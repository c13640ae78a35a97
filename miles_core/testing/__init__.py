"""For plugin authors: a pytest plugin with fixtures, builders of test data, and one conformance suite per kind.

A test of a plugin is a subclass of its kind's suite::

    from miles_core.testing import RewardModelSuite

    class TestShort(RewardModelSuite):
        plugin = "acme/short"  # a name, module:attribute, or the class or function itself
        options = {"limit": 3}

What is named here is imported when it is first used, since pytest imports this package in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from miles_core.testing.builders import make_group, make_sample, make_task, make_trajectory
    from miles_core.testing.engine_reply import ScriptedReply
    from miles_core.testing.make import make_plugin
    from miles_core.testing.scripted_engine import ScriptedEngine
    from miles_core.testing.site import Site
    from miles_core.testing.step_batch import make_step_batch
    from miles_core.testing.suites.advantage_estimators import AdvantageEstimatorSuite
    from miles_core.testing.suites.base import PluginSuite
    from miles_core.testing.suites.data_sources import DataSourceSuite
    from miles_core.testing.suites.environments import EnvironmentSuite
    from miles_core.testing.suites.filters import FilterSuite
    from miles_core.testing.suites.losses import LossSuite
    from miles_core.testing.suites.model_bridges import ModelBridgeSuite
    from miles_core.testing.suites.reward_models import RewardModelSuite
    from miles_core.testing.suites.router_middlewares import RouterMiddlewareSuite
    from miles_core.testing.suites.weight_transports import WeightTransportSuite
    from miles_core.testing.toy_bridge import ToyModel

_SUITES = "miles_core.testing.suites"

SUITES: dict[str, str] = {
    "environments": "EnvironmentSuite",
    "reward_models": "RewardModelSuite",
    "filters": "FilterSuite",
    "advantage_estimators": "AdvantageEstimatorSuite",
    "losses": "LossSuite",
    "router_middlewares": "RouterMiddlewareSuite",
    "model_bridges": "ModelBridgeSuite",
    "data_sources": "DataSourceSuite",
    "weight_transports": "WeightTransportSuite",
}
"""The suite of each kind that has one, by name."""

_MODULES = {
    "PluginSuite": f"{_SUITES}.base",
    **{suite: f"{_SUITES}.{kind}" for kind, suite in SUITES.items()},
    "ScriptedEngine": "miles_core.testing.scripted_engine",
    "ScriptedReply": "miles_core.testing.engine_reply",
    "Site": "miles_core.testing.site",
    "ToyModel": "miles_core.testing.toy_bridge",
    "make_group": "miles_core.testing.builders",
    "make_plugin": "miles_core.testing.make",
    "make_sample": "miles_core.testing.builders",
    "make_step_batch": "miles_core.testing.step_batch",
    "make_task": "miles_core.testing.builders",
    "make_trajectory": "miles_core.testing.builders",
}

__all__ = [
    "SUITES", "AdvantageEstimatorSuite", "DataSourceSuite", "EnvironmentSuite", "FilterSuite", "LossSuite",
    "ModelBridgeSuite", "PluginSuite", "RewardModelSuite", "RouterMiddlewareSuite", "ScriptedEngine",
    "ScriptedReply", "Site", "ToyModel", "WeightTransportSuite", "make_group", "make_plugin", "make_sample",
    "make_step_batch", "make_task", "make_trajectory",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_MODULES[name]), name)
