"""``miles weights plan``: what is printed, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from miles_core.cli.main import main
from miles_core.cli.sizes import engine_grid, links, trainer_grid
from miles_core.errors import ConfigError
from miles_core.weights.planning.grid import EngineGrid, TrainerGrid
from miles_core.weights.planning.traffic import Links

MODEL = Path(__file__).parents[2] / "examples" / "quickstart" / "model"


@pytest.fixture
def run(capsys, tmp_path):
    """On the quickstart's ``config.json`` alone, or with other keys."""

    def run(*argv, **changes):
        config = json.loads((MODEL / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(SystemExit) as caught:
            main(["weights", "plan", str(tmp_path), *argv])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


def test_the_plan_says_what_each_side_moves_and_how_long_it_takes(run, tmp_path):
    file = tmp_path / "plan.json"
    code, out, _ = run("--trainer", "tp=2,dp=2", "--engines", "3xtp=2,ep=2", "--link", "rdma=1", "--json", str(file))
    assert code == 0
    plan = json.loads(file.read_text())
    assert f"Qwen3MoeForCausalLM: {plan['tensors']} tensors" in out
    assert "trainer    4 ranks hold" in out
    assert "engines    3xtp=2,ep=2: 6 ranks" in out
    assert "GB/s between machines" in out
    assert len(plan["sent_bytes"]) == 4
    received = [stream["nbytes"] * len(stream["receivers"]) for stream in plan["streams"]]
    assert sum(plan["sent_bytes"]) == sum(received)
    assert plan["sent_bytes_on_one_machine"] == [0] * 4
    assert max(plan["sent_bytes"]) < 1.3 * min(plan["sent_bytes"])
    assert plan["streams"][0]["receivers"][0] == ["3xtp=2,ep=2 #0", 0]
    assert all(sum(stream["bucket_nbytes"]) == stream["nbytes"] for stream in plan["streams"])


def test_colocated_engines_get_their_bytes_from_their_own_machine(run):
    _, out, _ = run("--trainer", "dp=2", "--engines", "2x", "--node-gpus", "1", "--colocate")
    total = out.split("in all")[1].split(", of which")[0].strip()
    assert f"of which {total} stay on a machine" in out


def test_an_engine_that_cannot_be_updated_is_named_with_the_reason(run):
    code, out, _ = run("--engines", "tp=2", "--engines", "2xtp=64")
    assert code == 1
    assert "cannot be updated: 2xtp=64\n" in out
    assert "do not divide among 64 ranks" in out
    assert "engines    tp=2: 2 ranks" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--engines", "tp=64"), "no engine can be updated: "),
        (("--trainer", "tp=x"), "--trainer tp must be a number of ranks; got 'x'"),
        (("--trainer", "cp=2"), "--trainer takes tp=, pp=, ep=, etp=, dp=; got 'cp=2'"),
        (("--engines", "dp=2"), "--engines takes tp=, pp=, ep=; got 'dp=2'"),
        (("--engines", "0xtp=2"), "--engines must be at least one"),
        (("--engines", "2x", "--engines", "2x"), "the same engines twice"),
        (("--engines", "tp=2,tp=4"), "--engines has tp twice"),
        (("--engine", "embedded", "--engines", "tp=2"), "are not divided"),
        (("--link", "rdma=0"), "--link rdma cannot be '0'"),
        (("--link", "latency=5"), "--link latency cannot be '5'"),
        (("--link", "nvlink=5"), "--link takes rdma=, node=, latency="),
        (("--json", "/no/such/folder/plan.json"), "--json cannot write"),
        (("--bucket-bytes", "0"), "bucket"),
    ],
)
def test_what_cannot_be_is_one_clear_error(run, argv, message):
    code, _, err = run(*argv)
    assert code == 1
    assert message in err
    assert "->" in err


def test_an_architecture_that_no_bridge_divides_for_sglang_is_an_error_with_the_remedy(run):
    code, _, err = run(architectures=["Qwen9ForCausalLM"])
    assert code == 1
    assert "Qwen9ForCausalLM" in err


@pytest.mark.parametrize("changes", [{"head_dim": -1}, {"num_attention_heads": 0}, {"moe_intermediate_size": -1}])
def test_sizes_of_no_model_are_one_clear_error(run, changes):
    code, _, err = run(**changes)
    assert code == 1
    assert "describes no Qwen3MoeForCausalLM that can be built" in err
    assert "->" in err


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit):
        main(["weights", "plan", "--help"])
    assert "miles weights plan models/Qwen3-30B-A3B --trainer tp=4" in capsys.readouterr().out


def test_sizes_and_links_are_read_as_they_are_written():
    assert trainer_grid("tp=8,pp=4,ep=8,dp=2") == TrainerGrid(tp=8, pp=4, ep=8, dp=2)
    assert trainer_grid("") == TrainerGrid()
    assert engine_grid("4xtp=8,ep=8") == (4, EngineGrid(tp=8, ep=8))
    assert engine_grid("tp=2,pp=2") == (1, EngineGrid(tp=2, pp=2))
    assert engine_grid("2x") == (2, EngineGrid())
    assert links(["rdma=25,latency=1.5ms", "rdma=12.5"]) == Links(rdma=12.5, latency=1.5e-3)
    assert links(["latency=0us"]).latency == 0
    with pytest.raises(ConfigError, match="rdma cannot be 'fast'"):
        links(["rdma=fast"])
