"""What a person sees: metrics by name, readable samples, a bar or lines."""

from __future__ import annotations

import io
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from miles_core.telemetry.logs import logging_to
from miles_core.telemetry.metrics import repetition, rollout_metrics
from miles_core.telemetry.progress import TrainingProgress
from miles_core.telemetry.samples import dump_samples
from miles_core.types import (
    Group,
    Message,
    Reward,
    Sample,
    SamplingParams,
    Status,
    Task,
    Trajectory,
    TurnRecord,
    VersionSpan,
)
from miles_core.types.versions import SkippedVersions

TASK = Task("t7", (Message("user", "value of c?"),), label="2")


def trajectory(name: str, reward: float | None, *, status: Status = Status.COMPLETED, version: int = 0) -> Trajectory:
    scored = Reward(reward, None if reward is not None else "no network")
    sample = Sample(
        task_id="t7",
        group_id="g",
        trajectory_id=name,
        agent_id="policy",
        tokens=np.array([5, 6, 7], np.int32),
        loss_mask=np.array([0, 1, 1], np.uint8),
        logprobs=np.array([0, -0.25, -1], np.float32),
        versions=(VersionSpan(version, 1, 3),),
        turns=(TurnRecord(1, 3, SamplingParams(), "stop"),),
        status=status,
        reward=scored,
    )
    messages = (*TASK.messages, Message("assistant", "get c"))
    reason = "max_turns" if status is Status.TRUNCATED else "done"
    return Trajectory(name, TASK, messages, (sample,), status, scored, stop_reason=reason)


def test_dropped_groups_count_in_the_reward_and_not_in_the_kept_one() -> None:
    hard = Group("a", 0, TASK, (trajectory("x", 1.0, version=3), trajectory("y", 0.0, version=4)))
    easy = Group("b", 1, TASK, (trajectory("z", 1.0), trajectory("w", None, status=Status.FAILED)))
    metrics = rollout_metrics([hard, easy], [hard], {"equal_rewards": 1}, version=5)
    assert metrics["rollout/reward"] == pytest.approx(2 / 3)
    assert metrics["rollout/reward_kept"] == 0.5
    assert metrics["rollout/dropped/equal_rewards"] == 1
    assert metrics["rollout/staleness_max"] == 2
    assert metrics["rollout/response_length_mean"] == 2
    assert metrics["rollout/turns"] == 1


def test_staleness_counts_updates_and_not_the_versions_that_a_resume_skipped() -> None:
    group = Group("a", 0, TASK, (trajectory("x", 1.0, version=3), trajectory("y", 0.0, version=4)))
    skipped = SkippedVersions(((5, 8),))
    assert rollout_metrics([group], [group], {}, version=9, skipped=skipped)["rollout/staleness_max"] == 2


@pytest.mark.parametrize(
    ("tokens", "share"), [([], 0), ([1, 2, 3], 0), ([1, 2, 3, 4, 5], 0), ([7] * 8, 0.8), ([1, 2, 3, 4] * 2, 0.2)]
)
def test_repetition_is_the_share_of_n_grams_that_stood_before(tokens: list[int], share: float) -> None:
    assert repetition(tokens) == pytest.approx(share)


def test_truncation_is_counted_by_reason() -> None:
    group = Group("a", 0, TASK, (trajectory("x", 1.0, status=Status.TRUNCATED), trajectory("y", 0.0)))
    assert rollout_metrics([group], [group], {}, version=0)["rollout/truncated/max_turns"] == 1


def test_agents_beside_the_main_one_have_rewards_of_their_own() -> None:
    scored = replace(trajectory("x", 1.0), agent_rewards={"critic": 0.5})
    failed = replace(trajectory("y", None, status=Status.FAILED), agent_rewards={"critic": 9.0})
    group = Group("a", 0, TASK, (scored, replace(trajectory("z", 0.0), agent_rewards={"critic": 0.0}), failed))
    assert rollout_metrics([group], [group], {}, version=0)["rollout/agent_reward/critic"] == 0.25


def test_lengths_are_those_of_all_conversations_of_a_trajectory() -> None:
    one = trajectory("x", 1.0)
    group = Group("a", 0, TASK, (replace(one, samples=one.samples * 2), trajectory("y", 1.0)))
    assert rollout_metrics([group], [group], {}, version=0)["rollout/response_length_mean"] == 3


def test_a_step_without_any_reward_has_no_reward_metric_instead_of_zero() -> None:
    group = Group("a", 0, TASK, (trajectory("x", None),))
    metrics = rollout_metrics([group], [], {"unscored": 1}, version=0)
    assert "rollout/reward" not in metrics
    assert "rollout/reward_kept" not in metrics


def test_a_dump_shows_messages_reward_and_every_trained_token(tmp_path: Path) -> None:
    words = {5: "?", 6: "get", 7: "c"}
    dump_samples(
        tmp_path / "samples" / "s.txt", [trajectory("x", 0.5), trajectory("y", None)], lambda ids: words[ids[0]]
    )
    text = (tmp_path / "samples" / "s.txt").read_text()
    for part in ("task t7   label '2'", "reward 0.5", "[assistant]\nget c", "'get' -0.250 v0", "because: no network"):
        assert part in text


def test_off_a_terminal_progress_is_plain_lines() -> None:
    output = io.StringIO()
    with TrainingProgress(2, console=Console(file=output, width=100)) as progress:
        progress.phase("rollout")
        progress.step(1, {"rollout/reward": 0.25, "perf/tokens_per_second": 1234.0})
        progress.step(2, {})
    assert output.getvalue() == "step 1/2  reward 0.250  1,234 tokens/s\nstep 2/2  reward -  - tokens/s\n"


def test_a_long_start_is_told_every_ten_seconds_off_a_terminal(monkeypatch) -> None:
    now = 0.0
    monkeypatch.setattr("miles_core.telemetry.progress.time.monotonic", lambda: now)
    output = io.StringIO()
    with TrainingProgress(2, console=Console(file=output, width=100)) as progress:
        progress.phase("starting engines")
        for second in range(25):
            now = float(second)
            progress.waiting(f"engine-0 loading weights, {second} s")
    assert output.getvalue() == "engine-0 loading weights, 10 s\nengine-0 loading weights, 20 s\n"


def test_on_a_terminal_the_bar_shows_step_reward_speed_and_phase() -> None:
    output = io.StringIO()
    with TrainingProgress(2, console=Console(file=output, width=140, force_terminal=True)) as progress:
        progress.step(1, {"rollout/reward": 0.25, "perf/tokens_per_second": 1234.0})
        progress.phase("train")
    for part in ("training", "1/2", "reward 0.250", "1,234 tokens/s", "train"):
        assert part in output.getvalue()


def test_warnings_reach_the_person_and_everything_the_file(tmp_path: Path) -> None:
    said: list[str] = []
    with logging_to(tmp_path / "logs" / "driver.log", said.append):
        logging.getLogger("miles.weights").info("quiet")
        logging.getLogger("miles.weights").warning("loud")
    logging.getLogger("miles.weights").warning("after")
    assert said == ["warning: loud"]
    text = (tmp_path / "logs" / "driver.log").read_text()
    assert "quiet" in text
    assert "after" not in text
