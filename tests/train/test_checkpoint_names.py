"""Checkpoint names of module parameters, for mappings that the tiny models do not have."""

from __future__ import annotations

import pytest
import torch

from miles_core.errors import CheckpointError
from miles_core.train.checkpoint_names import by_checkpoint_name, without_aliases
from miles_core.types import NameMapping, Part, Rule

STACK = Rule("l{layer}.experts", (Part("l{layer}.{expert}.gate"), Part("l{layer}.{expert}.up")), stacked=True)


def test_a_stack_is_cut_into_views_by_expert_and_part() -> None:
    stacked = torch.arange(12.0).view(2, 2, 3)
    views = by_checkpoint_name(NameMapping((STACK,)), {"l7.experts": stacked, "norm": torch.ones(1)})
    assert {name: view.tolist() for name, view in views.items()} == {
        "l7.0.gate": [[0, 1, 2]],
        "l7.0.up": [[3, 4, 5]],
        "l7.1.gate": [[6, 7, 8]],
        "l7.1.up": [[9, 10, 11]],
        "norm": [1],
    }
    views["l7.1.gate"].zero_()
    assert stacked[1, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("shape", [(2,), (2, 3, 4)])
def test_a_stack_that_does_not_divide_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointError, match=r"parameter l0\.experts: .* cannot be cut into 2 equal parts"):
        by_checkpoint_name(NameMapping((STACK,)), {"l0.experts": torch.zeros(shape)})


def test_two_parameters_of_one_name_are_refused() -> None:
    mapping = NameMapping((Rule("{any}", (Part("same.{expert}"),), stacked=True),))
    with pytest.raises(CheckpointError, match=r"same\.0 is claimed by both a and b"):
        by_checkpoint_name(mapping, {"a": torch.zeros(1, 2), "b": torch.zeros(1, 2)})


@pytest.mark.parametrize("tied", [{"head": "embed"}, {"embed": "head"}])
def test_of_two_names_of_one_memory_the_tied_one_goes(tied: dict[str, str]) -> None:
    weight = torch.zeros(2, 2)
    tensors = {"head": weight, "embed": weight, "other": torch.zeros(2, 2)}
    assert without_aliases(NameMapping(tied=tied), tensors).keys() == {*tied.values(), "other"}


def test_a_tied_name_with_memory_of_its_own_stays() -> None:
    tensors = {"head": torch.zeros(2), "embed": torch.zeros(2), "empty": torch.zeros(0), "none": torch.zeros(0)}
    assert without_aliases(NameMapping(tied={"head": "embed"}), tensors).keys() == tensors.keys()


def test_a_name_that_shares_memory_without_a_rule_is_stored_once() -> None:
    weight = torch.zeros(2)
    assert list(without_aliases(NameMapping(), {"a": weight, "b": weight})) == ["a"]
