"""The weights of replayed experts are the router's own, bit by bit, whichever experts are chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from miles_core.api import ReplayPoint

    from .conftest import Family

DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
RENORMALISED = pytest.mark.parametrize("renormalised", [True, False])


class Choosing(TorchFunctionMode):
    """Makes ``topk`` over all experts choose ``indices`` ``[tokens, top_k]``."""

    def __init__(self, indices: torch.Tensor, num_experts: int) -> None:
        super().__init__()
        self.indices, self.num_experts = indices, num_experts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.topk, torch.Tensor.topk) and args[0].shape[-1] == self.num_experts:
            return args[0].gather(-1, self.indices), self.indices
        return func(*args, **(kwargs or {}))


@pytest.fixture
def points(family: Family, tmp_path: Path) -> Callable[..., Iterator[tuple[ReplayPoint, torch.Tensor]]]:
    """Replay points of a model, each with hidden states ``[50, hidden]`` for its router."""

    def make(dtype: str, renormalised: bool) -> Iterator[tuple[ReplayPoint, torch.Tensor]]:
        model = family.build(tmp_path, dtype=dtype, norm_topk_prob=renormalised, num_experts_per_tok=3)
        found = family.make_bridge().replay_points(model)
        assert len(found) == len(family.layer_ids)
        for seed, point in enumerate(found):
            hidden = torch.randn(50, 16, generator=torch.Generator().manual_seed(seed))
            yield point, hidden.to(model.dtype)

    return make


@DTYPES
@RENORMALISED
def test_for_its_own_experts(points: Any, dtype: str, renormalised: bool) -> None:
    for point, hidden in points(dtype, renormalised):
        logits, weights, indices = point.router(hidden)
        replayed = point.weights(logits, indices)
        assert replayed.dtype == weights.dtype
        assert torch.equal(replayed, weights)


@DTYPES
@RENORMALISED
def test_for_foreign_experts(points: Any, dtype: str, renormalised: bool) -> None:
    for point, hidden in points(dtype, renormalised):
        foreign = torch.rand(50, 6, generator=torch.Generator().manual_seed(9)).argsort(-1)[:, :3]
        own = point.router(hidden)[2]
        with Choosing(foreign, 6):
            logits, weights, indices = point.router(hidden)
        assert torch.equal(indices, foreign)
        assert not torch.equal(own.sort(-1)[0], foreign.sort(-1)[0])
        assert torch.equal(point.weights(logits, foreign), weights)
