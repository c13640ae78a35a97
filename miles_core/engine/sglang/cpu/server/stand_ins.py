"""What stands in for the parts of a GPU that SGLang takes for granted. README.md says what breaks without each."""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

_DETECTIONS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def install() -> None:
    """Put all of them in place, before SGLang is imported.

    Raises:
        RuntimeError: if there is a GPU, which they would hide.
    """
    if torch.cuda.is_available():
        raise RuntimeError("this machine has a GPU, which serve.py hides; run `python -m sglang.launch_server`")
    declare_torchvision_operators()
    accept_pinned_memory()
    fork_children()


def declare_torchvision_operators() -> None:
    """Declare the operators whose library does not load, because PyPI's torchvision is built for CUDA.

    Nothing that serves text calls them; torchvision describes their shapes when it is imported, and they must exist.
    """
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None
    assert spec.submodule_search_locations
    try:
        torch.ops.load_library(f"{spec.submodule_search_locations[0]}/_C.so")  # type: ignore[no-untyped-call]
    except OSError:
        torch.library.define("torchvision::nms", _DETECTIONS)
        torch.library.define("torchvision::qnms", _DETECTIONS)


def accept_pinned_memory() -> None:
    """Let CUDA's registration of host memory succeed: the buffer of the routed experts asks for it on any device."""
    runtime = SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0)
    torch.cuda.cudart = lambda: runtime


def fork_children() -> None:
    """Make SGLang fork its processes where it asks to spawn them.

    A spawned process imports everything again, which is half of the time and of the memory that a server needs to
    start. CUDA does not survive a fork, and neither do threads: where there are others already, it spawns after all.
    """
    set_start_method = multiprocessing.set_start_method

    def fork_if_safe(method: str | None, force: bool = False) -> None:
        threads = len(list(Path("/proc/self/task").iterdir()))
        if threads > 1:
            sys.stderr.write(f"{threads} threads run before SGLang starts its processes: starting them anew, slowly\n")
        set_start_method("fork" if threads == 1 else method, force=force)

    multiprocessing.set_start_method = fork_if_safe
