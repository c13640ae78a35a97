"""Every built-in plugin keeps the rules that its kind's suite checks."""

# ruff: noqa: RUF012 - class attributes are a suite's settings

from __future__ import annotations

import json
from pathlib import Path

import pytest

from miles_core.testing import (
    AdvantageEstimatorSuite,
    DataSourceSuite,
    EnvironmentSuite,
    FilterSuite,
    LossSuite,
    ModelBridgeSuite,
    RewardModelSuite,
    RouterMiddlewareSuite,
    make_task,
)
from miles_core.testing.suites.data_sources import EXAMPLE_ROWS


class TestExactMatch(RewardModelSuite):
    plugin = "exact_match"
    expected = (1, 0, 0, 1, 0, 0)


class TestEqualRewards(FilterSuite):
    plugin = "equal_rewards"
    expected = (True, False, False, True, True)


class TestGrpo(AdvantageEstimatorSuite):
    plugin = "grpo"


class TestGrpoWithoutStd(AdvantageEstimatorSuite):
    plugin = "grpo"
    options = {"divide_by_std": False}


class TestRequestId(RouterMiddlewareSuite):
    plugin = "request_id"


class TestLookup(EnvironmentSuite):
    plugin = "lookup"
    tasks = (make_task("value of c?", "3"), make_task("value of d?", "4", id="task-1"))
    responses = ("get c", "3")


class TestLookupWithoutACall(EnvironmentSuite):
    plugin = "lookup"


class TestPpoClip(LossSuite):
    plugin = "ppo_clip"


class TestPpoClipWithKl(LossSuite):
    plugin = "ppo_clip"
    options = {"kl_coefficient": 0.1}


class TestSft(LossSuite):
    plugin = "sft"


class TestJsonl(DataSourceSuite):
    plugin = "jsonl"
    options = {"path": "tasks.jsonl"}
    other_options = {"shuffle": False}


class TestCsv(DataSourceSuite):
    plugin = "csv"
    options = {"path": "tasks.csv"}
    files = {"tasks.csv": "prompt,label\n" + "".join(f"{row['prompt']},{row['label']}\n" for row in EXAMPLE_ROWS)}
    other_options = {"shuffle": False}


class TestIterable(DataSourceSuite):
    plugin = "iterable"
    options = {"path": "miles_core.testing.suites.data_sources:EXAMPLE_ROWS", "shuffle": True}
    other_options = {"shuffle": False}


class TestMixture(DataSourceSuite):
    plugin = "mixture"
    files = {
        "a.jsonl": "".join(json.dumps(row) + "\n" for row in EXAMPLE_ROWS[:5]),
        "b.jsonl": "".join(json.dumps(row) + "\n" for row in EXAMPLE_ROWS[5:]),
    }
    options = {"sources": [{"use": "jsonl", "path": "a.jsonl", "weight": 0.25}, {"use": "jsonl", "path": "b.jsonl"}]}
    other_options = {"sources": [{"use": "jsonl", "path": "a.jsonl"}, {"use": "jsonl", "path": "b.jsonl"}]}


class TestParquet(DataSourceSuite):
    plugin = "parquet"
    options = {"path": "tasks.parquet"}
    other_options = {"shuffle": False}

    def write(self, folder: Path) -> None:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(list(EXAMPLE_ROWS)), folder / "tasks.parquet", row_group_size=4)


class TestHuggingFace(DataSourceSuite):
    plugin = "huggingface"
    options = {"path": "saved"}
    other_options = {"shuffle": False}

    def write(self, folder: Path) -> None:
        datasets = pytest.importorskip("datasets")
        datasets.disable_progress_bars()
        datasets.Dataset.from_list(list(EXAMPLE_ROWS)).save_to_disk(folder / "saved")
        datasets.enable_progress_bars()


class TestQwen3(ModelBridgeSuite):
    plugin = "Qwen3ForCausalLM"


class TestQwen3Tied(ModelBridgeSuite):
    plugin = "Qwen3ForCausalLM"
    config_changes = {"tie_word_embeddings": True}


class TestLlama(ModelBridgeSuite):
    plugin = "LlamaForCausalLM"


class TestQwen3Moe(ModelBridgeSuite):
    plugin = "Qwen3MoeForCausalLM"
    config_changes = {"mlp_only_layers": [1]}


class TestMixtral(ModelBridgeSuite):
    plugin = "MixtralForCausalLM"


class TestDeepseekV3(ModelBridgeSuite):
    plugin = "DeepseekV3ForCausalLM"


class TestGlm4Moe(ModelBridgeSuite):
    plugin = "Glm4MoeForCausalLM"


class TestGptOss(ModelBridgeSuite):
    plugin = "GptOssForCausalLM"
