"""Qwen3, dense."""

from __future__ import annotations

from typing import ClassVar

from miles_plugins.bridges.hugging_face import HuggingFaceBridge
from miles_plugins.bridges.sglang_names import DENSE


class Qwen3(HuggingFaceBridge):
    """Bridge of ``Qwen3ForCausalLM``."""

    architecture = "Qwen3ForCausalLM"
    engine_mappings: ClassVar = {"sglang": DENSE}
