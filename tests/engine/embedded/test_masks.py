"""Masks give what the model's own masks give, in the form that its attention implementation takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from miles_core.engine.embedded.masks import AttentionMasks
from miles_core.engine.embedded.runner import ModelRunner
from miles_core.engine.embedded.slots import PrefixMatch, SlotTable
from miles_core.errors import EngineError

NOTHING = PrefixMatch(-1, 0)
ROWS = [list(range(3, 23)), [5, 6, 7], list(range(9, 20))]


def windowed(window: int, implementation: str = "sdpa", dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Three layers, of which the last two slide."""
    sizes = {"vocab_size": 39, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3}
    sliding = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}
    torch.manual_seed(0)
    config = Qwen3Config(**{**sizes, **heads, **sliding, **changes})
    return Qwen3ForCausalLM._from_config(config, attn_implementation=implementation, dtype=dtype).eval()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("window", [1, 4, 64])
def test_sliding_layers_see_what_a_plain_forward_pass_shows_them(implementation: str, window: int) -> None:
    model = windowed(window, implementation)
    table = SlotTable(8)
    runner = ModelRunner(model, table, None, 64)
    runner.reserve(25)
    slots = np.array([table.take(NOTHING, np.array(row, np.int32), None, shared=True) for row in ROWS])
    lengths = np.array([len(row) for row in ROWS])
    with torch.inference_mode():
        runner.forward(slots, np.zeros_like(lengths), lengths - 2)
        logits = runner.forward(slots, lengths - 2, np.full_like(lengths, 2))
        for row, found in zip(ROWS, logits, strict=True):
            torch.testing.assert_close(found, model(torch.tensor([row])).logits[0, -1], atol=1e-5, rtol=1e-5)


def test_a_window_counts_the_token_itself() -> None:
    masks = AttentionMasks(windowed(3), 64)(np.array([[4], [1]]), 5)
    assert masks["full_attention"][:, 0, 0].tolist() == [[True] * 5, [True, True, False, False, False]]
    assert masks["sliding_attention"][:, 0, 0].tolist() == [
        [False, False, True, True, True],
        [True, True] + [False] * 3,
    ]


def test_eager_attention_adds_numbers_of_the_models_type(dense: Any) -> None:
    model = windowed(64, "eager", torch.bfloat16, layer_types=["full_attention"] * 3)
    mask = AttentionMasks(model, 64)(np.array([[1]]), 3)
    assert mask.dtype == torch.bfloat16
    assert mask.flatten().tolist() == [0, 0, torch.finfo(torch.bfloat16).min]
    assert AttentionMasks(dense, 64)(np.array([[1]]), 3).dtype == torch.bool


def test_a_window_that_no_layer_type_tells_of_is_refused() -> None:
    model = windowed(16, layer_types=["full_attention"] * 3)
    with pytest.raises(EngineError, match="a window of 16 tokens and no such layers"):
        AttentionMasks(model, 17)
    AttentionMasks(model, 16)


def test_another_layer_type_is_refused(dense: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense.config, "layer_types", ["full_attention", "linear_attention"])
    with pytest.raises(EngineError, match="the model has linear_attention"):
        AttentionMasks(dense, 64)


def test_another_attention_implementation_is_refused(dense: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense.config, "_attn_implementation_internal", "flash_attention_2")
    with pytest.raises(EngineError, match="needs attention implementation 'sdpa' or 'eager'; .* 'flash_attention_2'"):
        AttentionMasks(dense, 64)
