"""A ``config.json`` of any architecture that transformers knows, with tiny sizes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VOCAB_SIZE = 104

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "intermediate_size": 24,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 3,
    "topk_group": 2,
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 6,
    "sliding_window": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_UNLESS_ABSENT = frozenset({"sliding_window"})


def tiny_config(architecture: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The config of a model with some thousand parameters; ``changes`` are keys of it.

    Raises:
        LookupError: if transformers knows no such architecture.
    """
    import transformers

    model = getattr(transformers, architecture, None)
    if model is None:
        raise LookupError(
            f"transformers {transformers.__version__} knows no architecture {architecture}; set `architecture` in the "
            "suite to one that it knows, or `hf_config` to a tiny config.json"
        )
    config_class = model.config_class
    default = config_class()
    sizes = {
        key: value
        for key, value in _SIZES.items()
        if hasattr(default, key) and not (key in _UNLESS_ABSENT and getattr(default, key) is None)
    }
    if hasattr(default, "qk_rope_head_dim"):
        sizes["head_dim"] = _SIZES["qk_rope_head_dim"]
    config = config_class(**sizes, **(changes or {}), architectures=[architecture])
    tiny: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return tiny


def write_config(folder: Path, config: Mapping[str, Any]) -> Path:
    """A model directory that holds a config and no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)), "utf-8")
    return folder
