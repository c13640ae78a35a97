"""What a model's ``config.json`` says to SGLang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


def is_mixture_of_experts(hf_config: Mapping[str, Any]) -> bool:
    """Whether the model has routed experts; SGLang cannot return them of a dense one, and does not start."""
    text = _text_config(hf_config)
    return any(isinstance(text.get(key), int) and text[key] > 0 for key in _EXPERT_COUNTS)


def dtype_of(hf_config: Mapping[str, Any]) -> str | None:
    """The checkpoint's own type: what SGLang calls ``auto`` makes float16 of float32."""
    text = _text_config(hf_config)
    return hf_config.get("dtype") or hf_config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")


def check_model(hf_config: Mapping[str, Any]) -> None:
    """Refuse what SGLang 0.5.23 loads without an error and serves from memory that was never written.

    Raises:
        ConfigError: for a Qwen3-MoE with dense layers; SGLang makes all its layers sparse.
    """
    dense = hf_config.get("mlp_only_layers") or []
    step = hf_config.get("decoder_sparse_step", 1)
    if hf_config.get("architectures") == ["Qwen3MoeForCausalLM"] and (dense or step != 1):
        raise ConfigError(
            f"SGLang has no dense layers in Qwen3-MoE; this model has mlp_only_layers = {dense}, "
            f"decoder_sparse_step = {step}",
            remedy="Serve it with the embedded engine, or use a model whose layers are all sparse.",
        )


def _text_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = hf_config.get("text_config")
    return nested if isinstance(nested, dict) else hf_config
