"""Qwen3, dense."""

from __future__ import annotations

from miles_plugins.bridges.hugging_face import HuggingFaceBridge


class Qwen3(HuggingFaceBridge):
    """Bridge of ``Qwen3ForCausalLM``."""

    architecture = "Qwen3ForCausalLM"
