"""What an embedded engine is started with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits and identity of one engine.

    ``context_length`` bounds prompt and output together. ``max_prefill_tokens`` bounds the padded tokens of one
    prefill forward; a longer prompt is prefilled alone. ``return_routed_experts`` records the routing of MoE models.
    ``seed`` draws the noise of requests that bring no ``sampling_seed``. ``deterministic`` runs one token of one
    request per forward pass, so that a result depends on weights, prompt, sampling parameters and seed alone.
    """

    context_length: int
    max_running_requests: int = 256
    max_prefill_tokens: int = 8192
    return_routed_experts: bool = True
    weight_version: str = "0"
    seed: int = 0
    deterministic: bool = False
    model_path: str = ""
