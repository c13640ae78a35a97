"""Whichever way the weights go, what is generated and learned is the same."""

from __future__ import annotations

import re
from pathlib import Path

from .test_resume import EXACT, learned, model


def ways(run) -> list[str]:
    """The transports that updates went by, in order."""
    said = "".join(path.read_text() for path in Path(run.folder, "logs").glob("driver*"))
    return re.findall(r"version \d+ went by (\w+)", said)


def test_a_run_whose_updates_go_by_several_transports_learns_what_one_with_a_single_transport_does(miles) -> None:
    options = {**EXACT, "rollout__groups_per_step": 4, "rollout__group_size": 8, "warmup__steps": 20}
    auto, memory = (miles.train(run__steps=8, weights__use=use, **options) for use in ("auto", "memory"))
    assert [auto.process.returncode, memory.process.returncode] == [0, 0], auto.output + memory.output
    assert set(ways(auto)) >= {"memory", "disk", "disk_delta"}, "it tried one after the other"
    assert set(ways(memory)) == {"memory"}
    assert learned(auto) == learned(memory)
    assert model(auto, 8) == model(memory, 8)
