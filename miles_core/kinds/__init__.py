"""The plugin kinds: one module each, with its Protocol and contract.

Importing this package is cheap: it pulls in neither torch nor numpy nor pydantic.
"""

from miles_core.kinds import (
    advantage_estimators,
    data_sources,
    engines,
    environments,
    filters,
    losses,
    model_bridges,
    reward_models,
    router_middlewares,
    trackers,
    train_backends,
    weight_transports,
)
from miles_core.kinds.base import Kind, PluginContext

KINDS: dict[str, Kind] = {
    module.KIND.plural: module.KIND
    for module in (
        environments,
        reward_models,
        filters,
        advantage_estimators,
        losses,
        router_middlewares,
        model_bridges,
        data_sources,
        weight_transports,
        engines,
        train_backends,
        trackers,
    )
}

__all__ = ["KINDS", "Kind", "PluginContext"]
