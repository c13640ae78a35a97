"""How a run fails: its cause first, no process left, nothing lost, no traceback."""

from __future__ import annotations

import signal
import socket

import pytest

LONG = {"run__steps": 500, "run__max_empty_steps": 500}


@pytest.mark.parametrize(
    ("word", "name"), [("engine", "engine-0"), ("router", "router"), ("miles_core.app.trainer", "trainer")]
)
def test_a_killed_process_ends_the_run_and_is_its_cause(miles, word: str, name: str) -> None:
    run = miles.start(**LONG, engine__max_restarts=0)
    run.wait_for("metrics.jsonl")
    run.child(word).kill()
    assert run.wait() == 1
    assert f"error: the {name} process died (signal SIGKILL)" in run.output
    assert "Traceback" not in run.output
    run.assert_nothing_left()
    assert (run.folder / "checkpoints" / "step-0" / "model.safetensors").is_file()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_an_interrupt_ends_every_process(miles, sent: signal.Signals, code: int) -> None:
    run = miles.start(**LONG)
    run.wait_for("metrics.jsonl")
    run.process.send_signal(sent)
    assert run.wait() == code
    assert "interrupted" in run.output
    assert "Traceback" not in run.output
    run.assert_nothing_left()


def test_a_driver_that_is_killed_takes_its_processes_with_it(miles) -> None:
    run = miles.start(**LONG)
    run.wait_for("metrics.jsonl")
    assert len(run.children) >= 3
    run.process.kill()
    run.wait()
    run.assert_nothing_left()


def test_a_port_in_use_is_named(miles) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = miles.train(engine__port=port)
    assert run.process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in run.output
    assert "Choose another engine port" in run.output
    assert "Traceback" not in run.output


def test_an_engine_that_dies_at_start_shows_the_end_of_its_log(miles, tmp_path) -> None:
    (tmp_path / "dying.py").write_text(
        "import sys\n"
        "from miles_core.api import EngineCommand\n"
        "class Dying:\n"
        "    weight_updates = 'miles'\n"
        "    def __init__(self, config, context): pass\n"
        "    def command(self, model_path, *, index, config_path):\n"
        "        return EngineCommand((sys.executable, '-c', 'raise SystemExit(\"no such device\")'))\n"
    )
    run = miles.train(engine__use="dying:Dying")
    assert run.process.returncode == 1
    assert "error: the engine-0 process died (exit code 1)" in run.output
    assert "no such device" in run.output


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"filters": '[{use = "equal_reward"}]'}, ["equal_reward", "equal_rewards"]),
        ({"filters__0__usee": 1}, ["filters", "usee"]),
        ({"rollout__group_sizes": 4}, ["rollout.group_sizes", "group_size"]),
        ({"rollout__group_size": '"four"'}, ["rollout.group_size", "integer"]),
        ({"losses__0__clip_hig": 0.3}, ["clip_hig", "clip_high"]),
        ({"sampling__temperature": "inf"}, ["sampling.temperature", "finite"]),
        ({"data__path": "nowhere.jsonl"}, ["nowhere.jsonl", "data.path"]),
        ({"model__path": "nowhere"}, ["nowhere", "config.json", "model.path"]),
        ({"warmup__data": "nowhere.jsonl"}, ["nowhere.jsonl", "warmup.data"]),
        ({"engine__context_length": 40}, ["engine.context_length = 40", "96 tokens", "rollout.max_context_tokens"]),
    ],
)
def test_a_mistake_in_the_config_is_found_before_anything_starts(miles, overrides, expected: list[str]) -> None:
    run = miles.train(**overrides)
    assert run.process.returncode == 1
    assert run.output.startswith("error: ") or "\nerror: " in run.output
    for text in expected:
        assert text in run.output
    assert "Traceback" not in run.output
    assert not run.folder.exists()


def test_a_prompt_longer_than_the_context_says_both_numbers(miles) -> None:
    run = miles.train(rollout__max_context_tokens=10)
    assert run.process.returncode == 1
    assert "has 19 tokens; with rollout.max_context_tokens = 10" in run.output


def test_a_run_folder_is_never_shared(miles) -> None:
    (miles.folder / "taken").mkdir()
    run = miles.train(run__id="taken")
    assert run.process.returncode == 1
    assert "exists already" in run.output
