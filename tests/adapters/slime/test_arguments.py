from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from miles_core.adapters.slime.arguments import FIXED, FROM_CONFIG, Arguments, arguments
from miles_core.config.schema import Config
from miles_core.kinds import PluginContext
from miles_core.kinds.base import PluginContext as Context

CONFIG = {
    "run": {"seed": 7, "placement": "colocated"},
    "model": {"path": "model"},
    "rollout": {"groups_per_step": 4, "group_size": 8, "over_sampling": 1.5},
    "objective": {"mini_batches": 2},
}


def context(**services: object) -> Context:
    return PluginContext(services={"config": CONFIG, "base_dir": Path("/base"), **services})


def test_values_come_from_the_config_under_slimes_names() -> None:
    args = arguments(context(), {})
    assert (args.rollout_batch_size, args.n_samples_per_prompt, args.rollout_seed) == (4, 8, 7)
    assert (args.global_batch_size, args.over_sampling_batch_size) == (16, 6)
    assert (args.hf_checkpoint, args.colocate) == ("/base/model", True)
    assert args.rollout_max_prompt_len is None


def test_every_key_that_a_name_stands_for_is_in_the_schema() -> None:
    for key in FROM_CONFIG.values():
        table, name = key.split(".")
        annotation = Config.model_fields[table].annotation
        models = [annotation, *getattr(annotation, "__args__", ())]
        assert any(name in getattr(model, "model_fields", ()) for model in models), key


def test_options_of_the_table_go_before_everything_and_are_copies() -> None:
    options = {"rollout_seed": 1, "rm_url": "http://judge", "labels": ["a"]}
    args = arguments(context(), options)
    args.labels.append("b")
    assert (args.rollout_seed, args.rm_url, options["labels"]) == (1, "http://judge", ["a"])


def test_a_missing_name_is_an_error_that_lists_what_there_is_and_how_to_add_it() -> None:
    args = arguments(context(), {})
    with pytest.raises(
        AttributeError, match=r"no 'judge_url'; write judge_url = ... into the plugin's table.*reward_key"
    ):
        _ = args.judge_url
    assert getattr(args, "judge_url", "fallback") == "fallback"
    assert not hasattr(args, "judge_url")


def test_the_address_of_the_router_is_there_where_the_host_tells_it() -> None:
    args = arguments(context(router_url="http://127.0.0.1:3000"), {})
    assert (args.sglang_router_ip, args.sglang_router_port) == ("127.0.0.1", 3000)
    assert not hasattr(arguments(context(), {}), "sglang_router_ip")


def test_changes_stay_in_one_namespace() -> None:
    args = arguments(context(), {})
    args.apply_chat_template_kwargs["enable_thinking"] = True
    assert FIXED["apply_chat_template_kwargs"] == {}
    assert arguments(context(), {}).apply_chat_template_kwargs == {}


def test_a_namespace_can_be_copied_and_pickled() -> None:
    args = Arguments(a=1)
    assert copy.deepcopy(args) == args
    assert pickle.loads(pickle.dumps(args)) == args
