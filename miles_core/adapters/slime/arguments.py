"""``args``: a run's config under the names of slime's arguments."""

from __future__ import annotations

import copy
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.kinds.base import PluginContext

FROM_CONFIG = {
    "advantage_estimator": "advantage.use",
    "eval_interval": "eval.every",
    "eval_temperature": "eval.temperature",
    "hf_checkpoint": "model.path",
    "lr": "optimizer.learning_rate",
    "max_turns": "rollout.max_turns",
    "n_samples_per_eval_prompt": "eval.samples_per_task",
    "n_samples_per_prompt": "rollout.group_size",
    "num_epoch": "run.epochs",
    "num_rollout": "run.steps",
    "rollout_batch_size": "rollout.groups_per_step",
    "rollout_max_context_len": "rollout.max_context_tokens",
    "rollout_max_prompt_len": "data.max_prompt_tokens",
    "rollout_max_response_len": "rollout.max_response_tokens",
    "rollout_seed": "run.seed",
    "rollout_temperature": "sampling.temperature",
    "save_interval": "checkpoint.every",
    "seed": "run.seed",
    "sglang_server_concurrency": "rollout.max_concurrency",
}
"""By slime's name: the key of our config whose value it has."""

FIXED: dict[str, Any] = {
    "apply_chat_template": False,
    "apply_chat_template_kwargs": {},
    "ci_test": False,
    "custom_generate_function_path": None,
    "custom_rm_path": None,
    "debug_rollout_only": False,
    "eval_reward_key": None,
    "group_rm": False,
    "loss_mask_type": "qwen",
    "mask_offpolicy_in_partial_rollout": False,
    "multimodal_keys": None,
    "partial_rollout": False,
    "reward_key": None,
    "rm_type": None,
    "rm_url": None,
    "rollout_skip_special_tokens": False,
    "rollout_stop": None,
    "rollout_stop_token_ids": None,
    "rollout_top_k": -1,
    "rollout_top_p": 1.0,
    "router_policy": None,
    "sglang_dp_size": None,
    "sglang_enable_deterministic_inference": False,
    "sglang_speculative_algorithm": None,
    "use_rollout_routing_replay": False,
}
"""By slime's name: the value that it has in every run, unless the plugin's table says otherwise."""


class Arguments(Namespace):
    """slime's ``args``; a name that it lacks is an error that says how to add it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copy and pickle look for
            raise AttributeError(name)
        raise AttributeError(
            f"args has no {name!r}; write {name} = ... into the plugin's table to add it. It has: "
            f"{', '.join(sorted(vars(self)))}"
        )


def arguments(context: PluginContext, options: Mapping[str, Any], **values: Any) -> Arguments:
    """The ``args`` of one plugin: what slime's functions read most, ``values``, and the options of its table.

    Without a config among the context's services, as in a test of the plugin alone, names of the config are missing.
    ``sglang_router_ip`` and ``sglang_router_port`` are there where the context has the router's URL.
    """
    config = context.services.get("config")
    made = {**copy.deepcopy(FIXED), **({} if config is None else _from_config(config, context))}
    if url := context.services.get("router_url"):
        address = urlsplit(url)
        made |= {"sglang_router_ip": address.hostname, "sglang_router_port": address.port}
    if context.run_dir is not None:
        made["save"] = str(context.run_dir / "checkpoints")
    return Arguments(**{**made, **values, **copy.deepcopy(dict(options))})


def _from_config(config: Mapping[str, Any], context: PluginContext) -> dict[str, Any]:
    made = {name: _value(config, key) for name, key in FROM_CONFIG.items()}
    if made["hf_checkpoint"] is not None:
        made["hf_checkpoint"] = str(Path(context.services.get("base_dir", ".")) / made["hf_checkpoint"])
    if (groups := made["rollout_batch_size"]) and (size := made["n_samples_per_prompt"]):
        made["global_batch_size"] = groups * size // (_value(config, "objective.mini_batches") or 1)
        made["over_sampling_batch_size"] = round(groups * (_value(config, "rollout.over_sampling") or 1))
    made["colocate"] = _value(config, "run.placement") == "colocated"
    return made


def _value(config: Mapping[str, Any], key: str) -> Any:
    table, _, name = key.partition(".")
    return (config.get(table) or {}).get(name)
