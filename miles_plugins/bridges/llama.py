"""Llama, and what shares its architecture, such as SmolLM2."""

from __future__ import annotations

from typing import ClassVar

from miles_plugins.bridges.hugging_face import HuggingFaceBridge
from miles_plugins.bridges.sglang_names import DENSE


class Llama(HuggingFaceBridge):
    """Bridge of ``LlamaForCausalLM``."""

    architecture = "LlamaForCausalLM"
    engine_mappings: ClassVar = {"sglang": DENSE}
