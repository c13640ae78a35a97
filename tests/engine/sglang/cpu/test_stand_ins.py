"""Each stand-in: SGLang fails without it, and not with it. The first half says when an upgrade makes one needless."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from miles_core.engine.sglang.cpu.environment import SERVER_FILE

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    InSGLang = Callable[[str], subprocess.CompletedProcess[str]]

_HEAD = f"""
import json, multiprocessing, sys

def outcome(act):
    try:
        return str(act())
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"

def use_folder():
    sys.path.insert(0, {str(SERVER_FILE.parent)!r})
"""
_TORCHVISION = """
use_folder()
import stand_ins
if {declared}:
    stand_ins.declare_torchvision_operators()
import torchvision.transforms
"""
_SGLANG = """
use_folder()
import stand_ins
stand_ins.declare_torchvision_operators()
sys.path.remove(sys.path[0])
import sglang

def kernels():
    import sglang.srt.mem_cache.allocation, sglang.srt.managers.scheduler
    return "imported"

def host_memory():
    from sglang.srt.state_capturer.base import BaseHostCache
    return BaseHostCache(num_tokens=4, num_layers=3, topk_size=2, name="routes", device="cpu").buffer.shape

def start_method():
    multiprocessing.set_start_method("spawn", force=True)
    return multiprocessing.get_start_method()

seen = {"kernels without": outcome(kernels)}
use_folder()
seen["kernels"] = outcome(kernels)
seen["host memory without"] = outcome(host_memory)
stand_ins.accept_pinned_memory()
seen["host memory"] = outcome(host_memory)
seen["children without"] = outcome(start_method)
stand_ins.fork_children()
seen["children"] = outcome(start_method)
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(in_sglang: InSGLang) -> dict[str, str]:
    """What each act came to in one process, since SGLang takes long to import."""
    ran = in_sglang(_HEAD + _SGLANG)
    assert ran.returncode == 0, ran.stderr[-2000:]
    answer: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return answer


def test_torchvision_is_imported_only_once_its_operators_are_declared(in_sglang: InSGLang) -> None:
    without = in_sglang(_HEAD + _TORCHVISION.format(declared=False))
    assert "operator torchvision::nms does not exist" in without.stderr
    with_it = in_sglang(_HEAD + _TORCHVISION.format(declared=True))
    assert with_it.returncode == 0, with_it.stderr[-2000:]


def test_the_scheduler_is_imported_only_with_the_kernels(seen: dict[str, str]) -> None:
    assert seen["kernels without"] == "ModuleNotFoundError: No module named 'sgl_kernel'"
    assert seen["kernels"] == "imported"


def test_the_buffer_of_routed_experts_is_made_only_once_pinned_memory_is_accepted(seen: dict[str, str]) -> None:
    assert "Torch not compiled with CUDA enabled" in seen["host memory without"]
    assert seen["host memory"] == "torch.Size([4, 3, 2])"


def test_the_processes_of_a_server_are_forked(seen: dict[str, str]) -> None:
    assert seen["children without"] == "spawn"
    assert seen["children"] == "fork"
