"""From options to SGLang's command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from miles_core.engine.sglang.models import dtype_of, is_mixture_of_experts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.engine.sglang.options import Options

_SAME_NAME = (
    "device",
    "context_length",
    "max_running_requests",
    "max_total_tokens",
    "mem_fraction_static",
    "tp_size",
    "pp_size",
    "dp_size",
    "ep_size",
    "quantization",
    "kv_cache_dtype",
    "attention_backend",
    "chunked_prefill_size",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "log_level",
)


def server_arguments(
    options: Options, hf_config: Mapping[str, Any], *, model_path: str, seed: int, replay: bool, colocated: bool
) -> list[str]:
    """The arguments of one server, its address excepted; ``hf_config`` is the model's ``config.json``.

    Versions count from 0, which is what the checkpoint holds. Routed experts are returned where ``replay`` has a use
    for them. A colocated server may be asked to release its memory.
    """
    defaults = {"log-level-http": "warning"}  # one line for each request would hide all else
    arguments = ["--model-path", model_path, "--weight-version", "0", "--random-seed", str(seed)]
    if dtype := options.dtype or dtype_of(hf_config):
        arguments += ["--dtype", dtype]
    for name in _SAME_NAME:
        if (value := getattr(options, name)) is not None:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    switches = {
        "disable-radix-cache": not options.radix_cache,
        "enable-deterministic-inference": options.deterministic,
        "incremental-streaming-output": options.incremental_streaming_output,
        "enable-return-routed-experts": replay and is_mixture_of_experts(hf_config),
        "enable-memory-saver": colocated and options.device != "cpu",
    }
    arguments += [f"--{name}" for name, on in switches.items() if on]
    for name, value in (defaults | options.args).items():
        arguments += [f"--{name}", *_values(value)]
    return arguments


def _values(value: Any) -> list[str]:
    """The words after an option's name: none for a switch, JSON for a table."""
    if value is True:
        return []
    if isinstance(value, dict):
        return [json.dumps(value)]
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return [str(value)]
