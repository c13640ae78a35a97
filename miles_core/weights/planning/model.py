"""The checkpoint tensors of a model, by its ``config.json`` alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from miles_core.errors import ConfigError, MilesError, WeightSyncError
from miles_core.lib.error_text import error_text
from miles_core.lib.layout import build_layout, parameter_table
from miles_core.weights.planning import sglang
from miles_core.weights.planning.origins import origins

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from miles_core.kinds.model_bridges import ModelBridge
    from miles_core.types import Layout, NameMapping, ParameterTable
    from miles_core.weights.planning.origins import Origin


@dataclass(frozen=True, eq=False)
class PlannedModel:
    """What ``config.json`` and a bridge say of a model.

    ``table`` and ``layout`` are those of the built modules: they have all checkpoint tensors, in the order of the
    modules. ``mappings`` are the bridge's by naming.
    """

    architecture: str
    hf_config: Mapping[str, Any]
    table: ParameterTable
    layout: Layout
    mappings: Mapping[str, NameMapping]

    @property
    def tied(self) -> bool:
        """Whether the output projection has no checkpoint tensor of its own."""
        return bool(self.hf_config.get("tie_word_embeddings", False))

    def mapping(self, naming: str) -> NameMapping:
        """The mapping of a naming.

        Raises:
            WeightSyncError: if the bridge has none.
        """
        if naming not in self.mappings:
            raise WeightSyncError(
                f"the bridge of {self.architecture} does not say how {naming} names and divides the parameters; it "
                f"knows {', '.join(self.mappings)}",
                remedy=f'Add engine_mappings = {{"{naming}": NameMapping(...)}} to the bridge.',
            )
        return self.mappings[naming]

    @cached_property
    def divided(self) -> tuple[Origin, ...]:
        """How SGLang fuses and divides the checkpoint tensors.

        Raises:
            WeightSyncError: if the bridge does not say so.
        """
        return origins(self.mapping(sglang.NAMING), [placement.tensor for placement in self.layout.placements])


def plan_model(
    bridge: ModelBridge, path: Path, architecture: str, hf_config: Mapping[str, Any], dtype: str = "bfloat16"
) -> PlannedModel:
    """Build the model on torch's ``meta`` device, where tensors have shapes and no memory.

    Raises:
        ConfigError: if the bridge cannot build what ``config.json`` describes.
    """
    import torch

    try:
        with torch.device("meta"):
            model = bridge.build(str(path), dtype=dtype, init="random", seed=0)
    except MilesError:
        raise
    except Exception as error:  # whatever transformers makes of sizes that fit no model
        raise ConfigError(
            f"{path / 'config.json'} describes no {architecture} that can be built: {error_text(error)}",
            remedy="Use the config.json that belongs to the model's weights.",
        ) from error
    table = parameter_table(model.state_dict(keep_vars=True))
    mappings = {"torch": bridge.mapping, **getattr(bridge, "engine_mappings", {})}
    tied = hf_config.get("tie_word_embeddings")
    if tied is None:  # where config.json leaves it out, the model tells
        tied = any(one.shares is not None for one in table.parameters)
    hf_config = {**hf_config, "tie_word_embeddings": tied}
    return PlannedModel(architecture, hf_config, table, build_layout(bridge.mapping, table, hf_config), mappings)
