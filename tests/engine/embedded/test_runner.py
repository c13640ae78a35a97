"""Forward passes over slots give what one plain forward pass of the model gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.engine.embedded.routing import RoutingRecorder
from miles_core.engine.embedded.runner import ModelRunner
from miles_core.engine.embedded.slots import PrefixMatch, SlotTable
from miles_core.errors import RoutingError
from miles_core.types import RoutingSpec

NOTHING = PrefixMatch(-1, 0)
TOKENS = st.lists(st.integers(0, 38), min_size=1, max_size=24)


def runner_of(model: Any, slots: int = 8) -> tuple[ModelRunner, SlotTable]:
    table = SlotTable(slots)
    runner = ModelRunner(model, table, None, 64)
    runner.reserve(25)
    return runner, table


@pytest.mark.parametrize("kind", ["moe", "dense"])
@given(rows=st.lists(TOKENS, min_size=1, max_size=6), data=st.data())
@settings(max_examples=25, deadline=None)
def test_logits_of_chunked_padded_batches_equal_plain_forwards(
    kind: str, rows: list[list[int]], data: st.DataObject, request: pytest.FixtureRequest, reference: Any
) -> None:
    model = request.getfixturevalue(kind)
    runner, table = runner_of(model)
    slots = np.array([table.take(NOTHING, np.array(row, np.int32), None, shared=True) for row in rows])
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    lengths = np.array([len(row) for row in rows])
    splits = np.array([data.draw(st.integers(0, length - 1)) for length in lengths])
    first = order[splits[order] > 0]
    with torch.inference_mode():
        if len(first):
            runner.forward(slots[first], np.zeros_like(splits[first]), splits[first])
        logits = runner.forward(slots[order], splits[order], (lengths - splits)[order])
    for row, found in zip(order, logits, strict=True):
        torch.testing.assert_close(found, reference(model, rows[row]).logits[-1], atol=1e-5, rtol=1e-5)


def test_logits_survive_the_growth_of_the_cache(dense: Any, reference: Any) -> None:
    runner, table = runner_of(dense)
    ids = np.random.default_rng(0).integers(0, 38, 60).astype(np.int32)
    slot = np.array([table.take(NOTHING, ids[:20], None, shared=True)])
    with torch.inference_mode():
        runner.forward(slot, np.array([0]), np.array([20]))
        runner.reserve(60)
        table.tokens[slot[0], 20:60] = ids[20:]
        other = table.take(NOTHING, ids[:1], None, shared=True)
        runner.forward(np.array([other]), np.array([0]), np.array([1]))
        logits = runner.forward(slot, np.array([20]), np.array([40]))
    torch.testing.assert_close(logits[0], reference(dense, ids.tolist()).logits[-1], atol=1e-5, rtol=1e-5)


def test_replay_points_that_do_not_fit_the_routing_spec_are_refused(routing_spec: RoutingSpec) -> None:
    with pytest.raises(RoutingError, match=r"cover layers \(\); the routing spec names \(1, 2\)"):
        RoutingRecorder([], routing_spec, 4)
