"""Saving and loading checkpoints against raw safetensors of the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.report import Report, Value
from benchmarks.timing import Timings
from benchmarks.training import CONFIG
from miles_core.app.checkpoints import verify
from miles_core.app.wiring import wire
from miles_core.config.load import load_config
from miles_core.kinds.base import PluginContext
from miles_core.kinds.train_backends import ModelSource, OptimizerSettings
from miles_core.train.checkpoint import write_checkpoint
from miles_core.train.torch_backend import TorchBackend, TorchBackendConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from miles_core.train.snapshot import Snapshot

RAW, OURS, COPY, MAP = "raw safetensors", "miles", "of it: the copy that training waits for", "raw, mapped only"
FOLDER = "checkpoints"
SHAPE = {"hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64}
MODELS = {
    "dense": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "tie_word_embeddings": True,
    },
    "moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 384,
        "num_hidden_layers": 6,
        "tie_word_embeddings": False,
    },
}


def run(*, repeats: int = 5, vocabulary: int = 32_000, folder: Path | None = None) -> Report:
    """Save and load model, AdamW's state and random states, in turns with raw files of the same tensors.

    Parameters
    ----------
    repeats
        How often each is measured.
    vocabulary
        Rows of the embeddings, to make the models larger.
    folder
        Where to write, on the disk to be measured; default: the system's temporary folder.
    """
    rows: list[dict[str, Value]] = []
    summary: dict[str, Value] = {}
    for name, config in MODELS.items():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            case = _Case(Path(work), {**SHAPE, **config, "vocab_size": vocabulary})
            for what, timings, cases in (("save", *case.saves(repeats)), ("load", *case.loads(repeats))):
                for label in cases:
                    shown = timings.rate_row(label, case.nbytes / (1 << 30), "GiB_per_s")
                    rows.append({"model": name, "what": what, **shown})
                summary[f"{what}_{name}"] = rows[-len(cases) + 1]["ratio_median"]
            summary[f"GiB_{name}"] = case.nbytes / (1 << 30)
    return Report(
        benchmark="checkpoint",
        rows=rows,
        summary=summary,
        notes=(
            f"{repeats} of each in turns, one thread; ratios are speeds over raw safetensors; all files are synced.",
            "A raw load copies weights into existing tensors and the optimizer's into new ones; mapping reads nothing.",
        ),
    )


class _Case:
    """One model with an optimizer that has a state."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._folder = folder
        (folder / "config.json").write_text(json.dumps(config))
        wiring = wire(load_config(CONFIG), folder)
        bridge = wiring.hub.create("model_bridges", config["architectures"][0], None, PluginContext())
        source = ModelSource(str(folder), bridge, bridge.routing_spec(config), init="random")
        self._backend = TorchBackend(TorchBackendConfig(threads=1), PluginContext(services={"model_source": source}))
        self._backend.reset_optimizer(OptimizerSettings(1e-3))
        for parameter in self._backend.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self._backend.optimizer_step(1e-3)
        snapshot = self._backend.snapshot()
        self.nbytes = snapshot.nbytes
        snapshot(folder / "first")  # from the second save on, the copy's memory is there
        files = ("model.safetensors", "state/optimizer.safetensors")
        self._weights, self._moments = (
            {name: tensor.clone() for name, tensor in load_file(folder / "first" / file).items()} for file in files
        )

    def saves(self, repeats: int) -> tuple[Timings, list[str]]:
        """Raw files, and a checkpoint; the copy is a part of it."""
        timings = Timings([RAW, OURS], RAW)
        for case in timings.rounds(repeats):
            path = self._folder / FOLDER / "step-1"
            shutil.rmtree(path, ignore_errors=True)
            os.sync()  # what an earlier save left to write is not this one's
            if case == RAW:
                timings.add(RAW, _seconds(lambda path=path: self._raw_save(path)))
                continue
            begin = time.perf_counter()
            snapshot = self._backend.snapshot()
            timings.add(COPY, time.perf_counter() - begin)
            timings.add(OURS, time.perf_counter() - begin + _seconds(lambda s=snapshot, path=path: _save(s, path)))
        return timings, [RAW, OURS, COPY]

    def loads(self, repeats: int) -> tuple[Timings, list[str]]:
        """The last checkpoint, restored or read raw; its files are in the page cache."""
        path = self._folder / FOLDER / "step-1"
        shutil.rmtree(path, ignore_errors=True)
        _save(self._backend.snapshot(), path)
        timings = Timings([RAW, OURS, MAP], RAW)
        actions = {RAW: self._raw_load, OURS: self._load, MAP: self._map}
        for case in timings.rounds(repeats):
            timings.add(case, _seconds(lambda action=actions[case], path=path: action(path)))
        return timings, [RAW, OURS, MAP]

    def _raw_save(self, path: Path) -> None:
        path.mkdir(parents=True)
        for index, tensors in enumerate((self._weights, self._moments)):
            save_file(tensors, path / f"{index}.safetensors")
            with (path / f"{index}.safetensors").open("rb") as file:
                os.fsync(file.fileno())

    def _raw_load(self, path: Path) -> None:
        weights, moments = self._map(path)
        for name, tensor in self._weights.items():
            tensor.copy_(weights[name])
        self._moments = {name: tensor.clone() for name, tensor in moments.items()}

    def _map(self, path: Path) -> list[dict[str, torch.Tensor]]:
        return [load_file(path / name) for name in ("model.safetensors", "state/optimizer.safetensors")]

    def _load(self, path: Path) -> None:
        verify(path)
        self._backend.restore(path)


def _save(snapshot: Snapshot, path: Path) -> None:
    write_checkpoint(path, snapshot, {"state/run.json": b"{}"}, nbytes=snapshot.nbytes)


def _seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin
