"""What ``miles weights verify`` prints, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from miles_core.app.verify import CheckpointFinding, Difference, EngineFinding, VerifyReport
from miles_core.cli.main import main

ONE, OTHER = "1" * 32, "2" * 32


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Runs the command on a run whose verification finds what is given; returns exit code and output."""
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "plugins.json").write_text("[]")

    def run(report: VerifyReport, *flags: str) -> tuple[int, str]:
        async def found(run_dir, step, *, on_bytes) -> VerifyReport:
            assert run_dir == tmp_path
            for name in ("engine-0", "engine-0"):
                on_bytes(name)(1, 2)
            return report

        monkeypatch.setattr("miles_core.app.verify.verify_run", found)
        with pytest.raises(SystemExit) as ended:
            main(["weights", "verify", str(tmp_path), *flags])
        return int(ended.value.code or 0), capsys.readouterr().out

    return run


def report(*engines: EngineFinding, checkpoint: CheckpointFinding | None = None) -> VerifyReport:
    return VerifyReport("r", 7, "mooncake", "RDMA over mlx5_0", engines, checkpoint)


EQUAL = EngineFinding("engine-0", "http://a", "equal", 3, 2_000_000)
DIFFERS = EngineFinding(
    "engine-1",
    "http://b",
    "differs",
    30,
    differences=tuple(Difference(f"w{i}", "rank 1, fused", ONE, OTHER) for i in range(12)),
)


def test_what_is_equal_is_said_with_its_size(verified) -> None:
    code, text = verified(report(EQUAL, checkpoint=CheckpointFinding("step-4", 3, ())))
    assert code == 0
    assert text.splitlines() == [
        "run r: version 7, by mooncake (RDMA over mlx5_0)",
        "engine-0  http://a  holds what the trainer sent: 3 tensors, 2.0 MB",
        "step-4 is what the trainer sent: 3 tensors",
        "verified",
    ]


def test_the_first_tensors_that_differ_are_named_and_with_a_flag_all(verified) -> None:
    code, text = verified(report(EQUAL, DIFFERS))
    assert code == 1
    assert "engine-1  http://b  DIFFERS: 12 of 30 tensors" in text
    assert f"    w9 (rank 1, fused): expected {ONE}, found {OTHER}" in text
    assert "w10" not in text
    assert "and 2 more; --all shows them" in text
    assert "w11" in verified(report(EQUAL, DIFFERS), "--all")[1]


def test_what_cannot_be_said_is_not_said(verified) -> None:
    replica = EngineFinding("engine-0", "http://a", "replica", 9)
    behind = EngineFinding("engine-1", "http://b", "behind", reason="it was left behind")
    code, text = verified(report(replica, behind))
    assert code == 0
    assert "holds what the first of its kind holds; without a receiver of miles nothing more can be said" in text
    assert "not compared: it was left behind" in text
    assert "no checkpoint of this version" in text


def test_an_engine_that_cannot_be_asked_or_a_checkpoint_that_differs_is_a_failure(verified) -> None:
    failed = EngineFinding("engine-1", "http://b", "failed", reason="its weights are torn", settled=False)
    code, text = verified(report(EQUAL, failed))
    assert (code, "FAILED: its weights are torn" in text, "NOT VERIFIED" in text) == (1, True, True)
    spoilt = CheckpointFinding("step-4", 3, (Difference("w", "step-4", ONE, ""),))
    code, text = verified(report(EQUAL, checkpoint=spoilt))
    assert (code, f"w (step-4): expected {ONE}, found nothing" in text) == (1, True)


def test_json_holds_everything(verified) -> None:
    code, text = verified(report(EQUAL, DIFFERS), "--json")
    found = json.loads(text)
    assert (code, found["ok"], found["version"]) == (1, False, 7)
    assert len(found["engines"][1]["differences"]) == 12


def test_a_run_that_is_not_going_on_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Path(__file__).parents[2] / "examples" / "quickstart" / "config.toml"
    model = config.parent / "model"
    (tmp_path / "config.toml").write_text(config.read_text().replace('path = "model"', f'path = "{model}"'))
    (tmp_path / "plugins.json").write_text("[]")
    with pytest.raises(SystemExit) as ended:
        main(["weights", "verify", str(tmp_path)])
    assert ended.value.code == 1
    assert f"the run {tmp_path} is not running" in capsys.readouterr().err
