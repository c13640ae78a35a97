"""What an environment hands over is kept as it was."""

from __future__ import annotations

import pytest

from miles_core.kinds.environments import Step


def test_the_info_of_a_step_is_a_read_only_copy() -> None:
    mine = {"board": [1]}
    step = Step(info=mine)
    mine["board"].append(2)
    assert step.info == {"board": (1,)}
    with pytest.raises(TypeError, match="read-only"):
        step.info["board"] = ()  # type: ignore[index]
