"""Everything here needs a GPU that torch sees, and is skipped without one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from miles_core.train.torch_backend import TorchBackend

from ..contract.conftest import checkpoints, engines, model, references, served  # noqa: F401 - fixtures
from ..e2e.conftest import miles  # noqa: F401 - a fixture
from ..train.conftest import MODEL, dense_model, make_backend  # noqa: F401 - fixtures

SECONDS = 900
SGLANG_PYTHON = "MILES_SGLANG_PYTHON"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, and skip them where there is no GPU."""
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a build for CPUs"
    reason = f"needs a GPU and a CUDA build of torch; torch {torch.__version__}, {build}, sees no GPU"
    no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason=reason)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for mark in (pytest.mark.gpu, pytest.mark.timeout(SECONDS), no_gpu):
                item.add_marker(mark)


@pytest.fixture
def on_both(make_backend: Callable[..., TorchBackend]) -> Callable[..., tuple[TorchBackend, TorchBackend]]:  # noqa: F811
    """``cpu, gpu = on_both(**options)``: backends with the same weights."""

    def make(**options: object) -> tuple[TorchBackend, TorchBackend]:
        cpu, gpu = (make_backend(device=device, **options) for device in ("cpu", "cuda"))
        assert {parameter.device.type for parameter in gpu.parameters().values()} == {"cuda"}
        return cpu, gpu

    return make


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """The interpreter of an environment that has SGLang for this GPU."""
    if python := os.environ.get(SGLANG_PYTHON):
        return python
    if find_spec("sglang") is None:
        pytest.skip(f"needs SGLang: {SGLANG_PYTHON} must name the interpreter of an environment that has it")
    return sys.executable


@pytest.fixture(scope="session")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's model in sizes that attention kernels of GPUs take; without weights."""
    path = tmp_path_factory.mktemp("large")
    for file in MODEL.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    config = json.loads((MODEL / "config.json").read_text())
    config |= {"hidden_size": 256, "head_dim": 64, "moe_intermediate_size": 128, "initializer_range": 0.1}
    (path / "config.json").write_text(json.dumps(config))
    return path
