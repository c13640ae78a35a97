"""Llama, and what shares its architecture, such as SmolLM2."""

from __future__ import annotations

from miles_plugins.bridges.hugging_face import HuggingFaceBridge


class Llama(HuggingFaceBridge):
    """Bridge of ``LlamaForCausalLM``."""

    architecture = "LlamaForCausalLM"
