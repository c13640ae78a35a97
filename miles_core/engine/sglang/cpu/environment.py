"""Where SGLang for a CPU is kept, and what its servers are started with; standard library only."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
SERVER_FILE = Path(__file__).parent / "server" / "serve.py"
"""Run by its path in place of ``-m sglang.launch_server``: it puts the stand-ins beside it in place first."""

SERVER_ENVIRONMENT = {
    # Without it SGLang looks for a GPU, and fails where it asks for CUDA's version.
    "SGLANG_USE_CPU_ENGINE": "1",
    # A model is a local folder: a server must not wait for a hub that it cannot reach.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # Models small enough for a CPU lose more by sharing a matrix among threads than they win. It also keeps torch
    # from starting threads before the server forks.
    "OMP_NUM_THREADS": "1",
    # One name of cores for each rank. Without AMX SGLang binds nothing to them, but refuses more ranks than the machine
    # has NUMA nodes unless it finds a name for each.
    "SGLANG_CPU_OMP_THREADS_BIND": "0|1|2|3|4|5|6|7",
    # torch.compile needs a C++ compiler and would stop the server for a minute at its first request.
    "TORCHDYNAMO_DISABLE": "1",
}
SERVER_ARGUMENTS = (
    "--device=cpu",
    # SGLang's own choice, intel_amx, needs a processor with AMX and kernels that are not on PyPI.
    "--attention-backend=torch_native",
    # The warm-up is a request of its own: seconds, and it guards against nothing here.
    "--skip-server-warmup",
    # An idle scheduler looks for work in a loop without rest: a whole core, which the trainer and other servers need.
    "--sleep-on-idle",
    # By default a share of the machine's memory is taken for cached tokens, and every page of it written.
    "--max-total-tokens=16384",
    "--max-running-requests=32",
)
"""Options of ``sglang.launch_server``; the same option given again, after these, wins."""

_COMPLETE = ".complete"


def cpu_environment() -> Path | None:
    """The interpreter that has SGLang for a CPU, or None where ``make sglang-cpu`` has not run with these pins."""
    folder = environment_folder()
    return interpreter_of(folder) if is_complete(folder) else None


def environment_folder() -> Path:
    """Where it is kept, for all clones of the repository: named by what is in it, so that a new pin is a new folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kind = f"{sys.version_info.major}.{sys.version_info.minor} {sys.platform} {platform.machine()}"
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + kind.encode()).hexdigest()
    return cache / "miles-hub" / f"sglang-cpu-{digest[:12]}"


def interpreter_of(folder: Path) -> Path:
    """The Python of an environment."""
    return folder / "bin" / "python"


def is_complete(folder: Path) -> bool:
    """Whether its set-up came to its end."""
    return (folder / _COMPLETE).is_file()


def mark_complete(folder: Path) -> None:
    """Say that its set-up came to its end."""
    (folder / _COMPLETE).touch()
