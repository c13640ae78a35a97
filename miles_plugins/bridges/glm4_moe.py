"""GLM-4 MoE (GLM-4.5 and on): the router and the layout of DeepSeek-V3."""

from __future__ import annotations

from miles_plugins.bridges.deepseek_v3 import DeepseekV3


class Glm4Moe(DeepseekV3):
    """Bridge of ``Glm4MoeForCausalLM``."""

    architecture = "Glm4MoeForCausalLM"
