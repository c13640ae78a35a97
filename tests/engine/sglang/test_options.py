"""The options of the engine: what is refused before anything starts, and what SGLang's command line becomes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from miles_core.engine.sglang.arguments import server_arguments
from miles_core.engine.sglang.models import check_model, is_mixture_of_experts
from miles_core.engine.sglang.options import Options
from miles_core.errors import ConfigError

DENSE = {"architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16"}
EXPERTS = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "torch_dtype": "float32"}


def arguments(config: dict[str, Any] = DENSE, **options: Any) -> list[str]:
    made = Options.model_validate(options)
    return server_arguments(made, config, model_path="m", seed=7, replay=True, colocated=False)


def value_of(name: str, words: list[str]) -> str:
    assert words.count(name) == 1
    return words[words.index(name) + 1]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tp": 2}, "tp"),
        ({"tp_size": 0}, "tp_size"),
        ({"mem_fraction_static": 1.5}, "mem_fraction_static"),
        ({"dtype": "float8"}, "dtype"),
        ({"args": {"tp-size": 2}}, "set engine.tp_size"),
        ({"args": {"--port": 1}}, "set engine.port"),
        ({"args": {"model_path": "x"}}, "the checkpoint of the run is served"),
        ({"args": {"weight-version": "x"}}, "policy versions"),
        ({"args": {"enable-mixed-chunk": False}}, "leave it out"),
        ({"args": {"a": {"b": [None]}, "trust_remote_code": None}}, "trust-remote-code"),
        ({"urls": ["10.0.0.5:30000"]}, "is not the URL of a server"),
        ({"urls": ["http://a:1", "http://a:1"]}, "twice"),
        ({"urls": ["http://a:1"], "tp_size": 2}, "tp_size has no effect"),
    ],
)
def test_a_wrong_option_is_refused_with_what_to_write(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Options.model_validate(wrong)


def test_the_type_of_the_checkpoint_is_kept_since_sglang_would_halve_float32() -> None:
    assert value_of("--dtype", arguments(EXPERTS)) == "float32"
    assert value_of("--dtype", arguments({"text_config": DENSE})) == "bfloat16"
    assert value_of("--dtype", arguments(EXPERTS, dtype="bfloat16")) == "bfloat16"


def test_routed_experts_are_asked_for_of_a_mixture_of_experts_only() -> None:
    flag = "--enable-return-routed-experts"
    assert flag in arguments(EXPERTS)
    assert flag not in arguments(DENSE)
    assert flag not in server_arguments(Options(), EXPERTS, model_path="m", seed=7, replay=False, colocated=False)


@pytest.mark.parametrize(
    "config",
    [{"num_local_experts": 4}, {"n_routed_experts": 4}, {"text_config": {"num_experts": 4}}],
)
def test_each_family_counts_its_experts_under_its_own_name(config: dict[str, Any]) -> None:
    assert is_mixture_of_experts(config)
    assert not is_mixture_of_experts({"num_experts": 0, "n_routed_experts": None})


@pytest.mark.parametrize("dense", [{"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}])
def test_dense_layers_that_sglang_would_fill_with_noise_are_refused(dense: dict[str, Any]) -> None:
    check_model(EXPERTS | {"mlp_only_layers": [], "decoder_sparse_step": 1})
    with pytest.raises(ConfigError, match="no dense layers"):
        check_model(EXPERTS | dense)


def test_versions_count_from_the_checkpoint_and_each_server_has_its_seed() -> None:
    words = arguments()
    assert value_of("--weight-version", words) == "0"
    assert value_of("--random-seed", words) == "7"
    assert value_of("--model-path", words) == "m"


def test_options_and_other_arguments_become_words_of_the_command_line() -> None:
    words = arguments(
        radix_cache=False,
        deterministic=True,
        speculative_algorithm="NGRAM",
        speculative_num_draft_tokens=4,
        args={
            "schedule_policy": "lpm",
            "trust-remote-code": True,
            "cuda-graph-bs": [1, 2],
            "json-model-override-args": {"a": 1},
        },
    )
    assert {"--disable-radix-cache", "--enable-deterministic-inference", "--trust-remote-code"} <= set(words)
    assert value_of("--speculative-algorithm", words) == "NGRAM"
    assert value_of("--schedule-policy", words) == "lpm"
    assert words[words.index("--cuda-graph-bs") :][:3] == ["--cuda-graph-bs", "1", "2"]
    assert value_of("--json-model-override-args", words) == '{"a": 1}'


def test_streams_hold_what_is_new_unless_switched_off() -> None:
    assert "--incremental-streaming-output" in arguments()
    assert "--incremental-streaming-output" not in arguments(incremental_streaming_output=False)


def test_a_colocated_server_can_release_its_memory_where_sglang_has_a_saver_for_it() -> None:
    def words(device: str) -> list[str]:
        options = Options.model_validate({"device": device})
        return server_arguments(options, DENSE, model_path="m", seed=0, replay=True, colocated=True)

    assert "--enable-memory-saver" in words("cuda")
    assert "--enable-memory-saver" not in words("cpu")


def test_importing_the_engine_imports_neither_torch_nor_sglang() -> None:
    code = (
        "import sys; from miles_core.engine.sglang import attach, launch, plugin; "
        "sys.exit(bool({'torch', 'sglang', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
