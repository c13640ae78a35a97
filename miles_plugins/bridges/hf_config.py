"""What ``config.json`` says, read and checked without torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from miles_core.api import ConfigError, RoutingSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_WHOLE = "Set [model] path to a whole checkpoint of this architecture."


def check_config(path: Path, architecture: str) -> None:
    """Check that the model directory ``path`` is a plain checkpoint of ``architecture``.

    Raises:
        ConfigError: if its ``config.json`` is missing, broken, of another architecture or of quantised weights.
    """
    file = path / "config.json"
    try:
        config = json.loads(file.read_text("utf-8"))
        found, quantization = config.get("architectures"), config.get("quantization_config")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the model directory {path} must hold a readable config.json: {error}",
            remedy="Set [model] path to a local Hugging Face directory; nothing is downloaded.",
        ) from error
    if found != [architecture]:
        raise ConfigError(
            f"this bridge builds {architecture}; {file} names architectures {found}",
            remedy="Choose the [model] bridge of that architecture, or another [model] path.",
        )
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise ConfigError(
            f"training needs plain weights; {file} has a quantization_config ({method})",
            remedy="Use a bfloat16 checkpoint of this model, whose config.json has no quantization_config.",
        )


def config_int(hf_config: Mapping[str, Any], *names: str, at_least: int = 0) -> int:
    """The first of ``names`` that ``config.json`` holds.

    Raises:
        ConfigError: if none of them is there as an integer, or it is below ``at_least``.
    """
    for name in names:
        value = hf_config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            if value < at_least:
                raise ConfigError(f"{name} in config.json must be at least {at_least}; got {value}", remedy=_WHOLE)
            return value
    raise ConfigError(
        f"config.json must hold {' or '.join(names)} as an integer; it has neither: {', '.join(sorted(hf_config))}"
        if len(names) > 1
        else f"config.json must hold {names[0]} as an integer; got {hf_config.get(names[0])!r}",
        remedy=_WHOLE,
    )


def routing_of(hf_config: Mapping[str, Any], layer_ids: Iterable[int], num_experts: int) -> RoutingSpec | None:
    """The routing shape of MoE layers ``layer_ids``; ``None`` if there are none.

    Raises:
        ConfigError: if the config lacks its layer count or top-k, or routes to more experts than it has.
    """
    ids = tuple(layer_ids)
    if not ids:
        return None
    top_k = config_int(hf_config, "num_experts_per_tok", at_least=1)
    if top_k > num_experts:
        raise ConfigError(
            f"num_experts_per_tok in config.json must be at most the number of experts, {num_experts}; got {top_k}",
            remedy=_WHOLE,
        )
    return RoutingSpec(num_layers(hf_config), ids, num_experts, top_k)


def num_layers(hf_config: Mapping[str, Any]) -> int:
    """``num_hidden_layers``.

    Raises:
        ConfigError: if it is not there as an integer.
    """
    return config_int(hf_config, "num_hidden_layers", at_least=1)


def routing_of_every_layer(hf_config: Mapping[str, Any]) -> RoutingSpec | None:
    """The routing shape of a model whose layers are all MoE.

    Raises:
        ConfigError: if the config lacks or contradicts its layer or expert counts.
    """
    experts = config_int(hf_config, "num_local_experts", "num_experts", at_least=1)
    return routing_of(hf_config, range(num_layers(hf_config)), experts)
