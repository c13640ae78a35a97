"""Snapshots: training goes on from one as if nothing had happened, or nothing is loaded at all."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from miles_core.errors import CheckpointError, TrainError
from miles_core.kinds.train_backends import OptimizerSettings
from miles_core.train.torch_backend import TorchBackend

from .conftest import MODEL
from .resumed import build, result_of, train, trainer_of

CASES = list(product(["dense", "moe"], [False, True]))
DONE, MORE = 2, 2
NORM = "model.norm.weight"
WEIGHTS, OPTIMIZER = "model.safetensors", "state/optimizer.safetensors"


@pytest.fixture
def models(dense_model: Path) -> dict[str, Path]:
    return {"dense": dense_model, "moe": MODEL}


def assert_same(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one["metrics"] == two["metrics"]
    assert one["weights"].keys() == two["weights"].keys()
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, two["weights"][name]), name
    assert torch.equal(one["random"], two["random"])


def interrupted(model: Path, folder: Path, checkpointing: bool) -> dict[str, Any]:
    """Train, copy, train on, and write the copy only then, in a thread; returns the result of training on."""
    backend = build(model, seed=0, checkpointing=checkpointing)
    backend.snapshot()(folder / "step-0")
    trainer = trainer_of(backend)
    train(trainer, range(DONE))
    snapshot = backend.snapshot()
    result = result_of(backend, train(trainer, range(DONE, DONE + MORE)))
    writer = Thread(target=snapshot, args=(folder / f"step-{DONE}",))
    writer.start()
    writer.join()
    assert result["metrics"][0]["train/kl"] > 0, "the reference is not the present model"
    return result


@pytest.mark.parametrize(("kind", "checkpointing"), CASES)
def test_training_goes_on_bit_for_bit_in_another_backend(
    models: dict[str, Path], tmp_path: Path, kind: str, checkpointing: bool
) -> None:
    expected = interrupted(models[kind], tmp_path, checkpointing)
    backend = build(models[kind], seed=1, checkpointing=checkpointing)
    trainer = trainer_of(backend, tmp_path / "step-0")
    train(trainer, range(7, 8))  # what the backend held before leaves no trace
    backend.restore(tmp_path / f"step-{DONE}")
    assert_same(result_of(backend, train(trainer, range(DONE, DONE + MORE))), expected)


def test_training_goes_on_bit_for_bit_in_another_process(models: dict[str, Path], tmp_path: Path) -> None:
    expected, cases = [], []
    for kind, checkpointing in CASES:
        folder = tmp_path / f"{kind}-{checkpointing}"
        expected.append(interrupted(models[kind], folder, checkpointing))
        cases.append(
            {
                "model": str(models[kind]),
                "checkpointing": checkpointing,
                "reference": str(folder / "step-0"),
                "checkpoint": str(folder / f"step-{DONE}"),
                "steps": [DONE, DONE + MORE],
                "result": str(folder / "result.pt"),
            }
        )
    command = [sys.executable, "-m", "tests.train.resumed", json.dumps(cases)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    for case, result in zip(cases, expected, strict=True):
        assert_same(torch.load(case["result"]), result)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_bfloat16_goes_on_bit_for_bit(models: dict[str, Path], tmp_path: Path, kind: str) -> None:
    backend = build(models[kind], seed=0, dtype="bfloat16")
    backend.snapshot()(tmp_path / "step-0")
    trainer = trainer_of(backend)
    train(trainer, range(DONE))
    backend.snapshot()(tmp_path / "step-2")
    expected = result_of(backend, train(trainer, range(DONE, DONE + MORE)))
    other = build(models[kind], seed=1, dtype="bfloat16")
    resumed = trainer_of(other, tmp_path / "step-0")
    other.restore(tmp_path / "step-2")
    assert_same(result_of(other, train(resumed, range(DONE, DONE + MORE))), expected)
    assert {t.dtype for t in load_file(tmp_path / "step-2/model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize("dense", [False, True])
def test_it_is_what_transformers_itself_would_write(
    make_backend: Callable[..., TorchBackend], tmp_path: Path, dense: bool
) -> None:
    backend = make_backend(dense=dense)
    backend.model.save_pretrained(tmp_path / "theirs")
    backend.snapshot()(tmp_path / "ours")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert "lm_head.weight" not in ours or not dense, "tied weights are stored once"
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "theirs")]
    assert configs[0] == configs[1]


def test_it_loads_in_plain_transformers_with_its_tokenizer(
    make_backend: Callable[..., TorchBackend], tmp_path: Path
) -> None:
    backend = make_backend()
    backend.snapshot()(tmp_path)
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    ids = torch.tensor([[5, 9, 40, 41]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, backend.model.eval()(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer.encode("get c")) == "get c"
    assert model.generation_config.eos_token_id == 2


def test_a_snapshot_before_the_first_step_has_no_moments_and_restores(models: dict[str, Path], tmp_path: Path) -> None:
    backend = build(models["moe"], seed=0)
    snapshot = backend.snapshot()
    assert snapshot.nbytes == sum(tensor.nbytes for tensor in backend.parameters().values())
    snapshot(tmp_path)
    expected = result_of(backend, train(trainer_of(backend), range(2)))
    other = build(models["moe"], seed=1)
    trainer = trainer_of(other, tmp_path)
    train(trainer, range(5, 6))
    other.restore(tmp_path)
    assert_same(result_of(other, train(trainer, range(2))), expected)


def test_a_parameter_that_gets_no_gradient_has_no_moments(models: dict[str, Path], tmp_path: Path) -> None:
    def frozen(seed: int) -> TorchBackend:
        backend = build(models["dense"], seed=seed)
        backend.model.model.norm.weight.requires_grad_(False)
        return backend

    backend = frozen(0)
    backend.snapshot()(tmp_path / "step-0")
    trainer = trainer_of(backend)
    train(trainer, range(1))
    backend.snapshot()(tmp_path / "step-1")
    assert f"exp_avg.{NORM}" not in load_file(tmp_path / "step-1" / OPTIMIZER)
    other = frozen(1)
    resumed = trainer_of(other, tmp_path / "step-0")
    other.restore(tmp_path / "step-1")
    expected = train(trainer, range(1, 3))
    assert train(resumed, range(1, 3)) == expected


def test_the_estimate_is_close_to_what_is_written(models: dict[str, Path], tmp_path: Path) -> None:
    backend = build(models["moe"], seed=0)
    train(trainer_of(backend), range(1))
    snapshot = backend.snapshot()
    snapshot(tmp_path)
    written = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert snapshot.nbytes <= written <= snapshot.nbytes + 100_000


def test_every_random_generator_goes_on(make_backend: Callable[..., TorchBackend], tmp_path: Path) -> None:
    def drawn() -> list[float]:
        return [float(torch.randn(())), np.random.standard_normal(), random.gauss(0, 1)]

    drawn()  # a normal deviate is kept for the next call
    backend = make_backend(dense=True)
    backend.snapshot()(tmp_path)
    expected = [drawn() for _ in range(3)]
    backend.restore(tmp_path)
    assert [drawn() for _ in range(3)] == expected


def test_views_of_the_weights_stay_valid(make_backend: Callable[..., TorchBackend], tmp_path: Path) -> None:
    """The weight update reads the model through views made once."""
    make_backend(seed=1).snapshot()(tmp_path)
    backend = make_backend(seed=0)
    views = dict(backend.parameters())
    pointers = {name: tensor.data_ptr() for name, tensor in views.items()}
    backend.restore(tmp_path)
    expected = make_backend(seed=1).parameters()
    assert {name: tensor.data_ptr() for name, tensor in backend.parameters().items()} == pointers
    assert all(torch.equal(views[name], tensor) for name, tensor in expected.items())


def test_tied_weights_stay_tied(make_backend: Callable[..., TorchBackend], tmp_path: Path) -> None:
    make_backend(dense=True, seed=1).snapshot()(tmp_path)
    backend = make_backend(dense=True)
    backend.restore(tmp_path)
    parameters = backend.parameters()
    assert parameters["lm_head.weight"].data_ptr() == parameters["model.embed_tokens.weight"].data_ptr()


def test_restoring_needs_an_optimizer(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="reset_optimizer"):
        build(models["dense"], seed=0).restore(tmp_path)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def edit(file: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], object]) -> None:
    with safe_open(file, framework="pt") as opened:
        metadata = dict(opened.metadata())
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors, metadata)
    save_file(tensors, file, metadata=metadata)


def steps_edit(change: Callable[[dict[str, int]], object]) -> Callable[[Path], object]:
    def apply(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
        steps = json.loads(metadata["steps"])
        change(steps)
        metadata["steps"] = json.dumps(steps)

    return lambda file: edit(file, apply)


def tensors_edit(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    return lambda file: edit(file, lambda tensors, metadata: change(tensors))


FAULTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "weights cut": (WEIGHTS, cut, "cut short"),
    "weights gone": (WEIGHTS, Path.unlink, "is missing"),
    "weights empty": (WEIGHTS, lambda file: file.write_bytes(b"") and None, "cut short"),
    "weight missing": (WEIGHTS, tensors_edit(lambda t: t.pop(NORM)), f"missing: {NORM}"),
    "weight unexpected": (WEIGHTS, tensors_edit(lambda t: t.update(lora=t[NORM].clone())), "unexpected: lora"),
    "weight of another shape": (WEIGHTS, tensors_edit(lambda t: t.update({NORM: torch.zeros(3)})), r"float32 \[3\]"),
    "weight of another type": (WEIGHTS, tensors_edit(lambda t: t.update({NORM: t[NORM].half()})), "float16"),
    "optimizer cut": (OPTIMIZER, cut, "cut short"),
    "optimizer gone": (OPTIMIZER, Path.unlink, "is missing"),
    "moment missing": (OPTIMIZER, tensors_edit(lambda t: t.pop(f"exp_avg.{NORM}")), f"missing: exp_avg.{NORM}"),
    "moment of another shape": (
        OPTIMIZER,
        tensors_edit(lambda t: t.update({f"exp_avg_sq.{NORM}": torch.zeros(2)})),
        f"exp_avg_sq.{NORM}",
    ),
    "fewer parameters": (OPTIMIZER, steps_edit(lambda s: s.pop(NORM)), f"missing: {NORM}"),
    "more parameters": (OPTIMIZER, steps_edit(lambda s: s.update(lora=1)), "unexpected: lora"),
    "no steps": (OPTIMIZER, lambda file: edit(file, lambda t, m: m.pop("steps")), "no step counts"),
    "no random states": (OPTIMIZER, lambda file: edit(file, lambda t, m: m.pop("random")), "no random states"),
    "bad random states": (
        OPTIMIZER,
        lambda file: edit(file, lambda t, m: m.update(random=m["random"].replace("MT19937", "PCG64"))),
        "no random states",
    ),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole")
    backend = build(MODEL, seed=1)
    train(trainer_of(backend), range(1))
    backend.snapshot()(path)
    return path


@pytest.mark.parametrize("fault", FAULTS)
def test_a_checkpoint_that_does_not_fit_changes_nothing(checkpoint: Path, tmp_path: Path, fault: str) -> None:
    name, damage, message = FAULTS[fault]
    shutil.copytree(checkpoint, tmp_path / "step-1")
    damage(tmp_path / "step-1" / name)
    backend = build(MODEL, seed=0)
    trainer = trainer_of(backend)
    train(trainer, range(1))
    untouched = result_of(backend, [])
    torch_state = torch.get_rng_state()
    with pytest.raises(CheckpointError, match=message) as caught:
        backend.restore(tmp_path / "step-1")
    assert str(tmp_path / "step-1" / name) in str(caught.value)
    assert torch.equal(torch.get_rng_state(), torch_state)
    after = result_of(backend, [])
    assert all(torch.equal(tensor, after["weights"][name]) for name, tensor in untouched["weights"].items())
    fresh = build(MODEL, seed=0)
    other = trainer_of(fresh)
    train(other, range(1))
    assert train(trainer, range(1, 2)) == train(other, range(1, 2)), "the optimizer was not touched"


def test_a_model_of_another_shape_is_refused_with_the_names(checkpoint: Path, dense_model: Path) -> None:
    backend = build(dense_model, seed=0)
    backend.reset_optimizer(OptimizerSettings(1e-3))
    with pytest.raises(CheckpointError, match=r"missing: .*; unexpected: .* and \d+ more; of another shape"):
        backend.restore(checkpoint)


def test_a_reference_that_cannot_be_read_leaves_the_one_before(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "step-0")
    backend = build(MODEL, seed=0)
    backend.keep_reference()
    kept = backend._reference
    cut(tmp_path / "step-0" / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"step-0/model.safetensors is cut short"):
        backend.keep_reference(tmp_path / "step-0")
    assert backend._reference is kept


def test_a_copy_that_waits_to_be_written_is_never_reused(models: dict[str, Path], tmp_path: Path) -> None:
    backend = build(models["moe"], seed=0)
    trainer = trainer_of(backend)
    waiting = []
    for step in range(3):
        train(trainer, range(step, step + 1))
        weights = {name: tensor.detach().clone() for name, tensor in backend.parameters().items()}
        waiting.append((backend.snapshot(), weights))
    for index in (1, 0):
        waiting[index][0](tmp_path / f"step-{index}")
        train(trainer, range(5, 6))
        backend.snapshot()(tmp_path / f"after-{index}")  # into the memory that was just given back
    waiting[2][0](tmp_path / "step-2")
    for index, (_, weights) in enumerate(waiting):
        backend.restore(tmp_path / f"step-{index}")
        assert all(torch.equal(tensor, backend.parameters()[name]) for name, tensor in weights.items())


def test_a_snapshot_is_written_once(make_backend: Callable[..., TorchBackend], tmp_path: Path) -> None:
    snapshot = make_backend(dense=True).snapshot()
    snapshot(tmp_path / "one")
    with pytest.raises(CheckpointError, match="written once"):
        snapshot(tmp_path / "two")
    assert not (tmp_path / "two").exists()


def test_later_copies_take_the_memory_of_written_ones(
    make_backend: Callable[..., TorchBackend], tmp_path: Path
) -> None:
    backend = make_backend()
    pointers = []
    for name in ("one", "two"):
        snapshot = backend.snapshot()
        pointers.append({key: tensor.data_ptr() for key, tensor in snapshot._weights.items()})
        snapshot(tmp_path / name)
    assert pointers[0] == pointers[1]
