"""Why a server ended, read from its log: the last lines of SGLang's log are seldom the cause."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from miles_core.config.suggest import nearest
from miles_core.engine.sglang.tracebacks import cause_of
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_KILLED = re.compile(r"exit ?code:? -9\b|exit code -9\b", re.IGNORECASE)
_REFUSED = re.compile(r"^[\w .-]+: error: (.+)$")
_UNKNOWN = re.compile(r"unrecognized arguments: --([\w-]+)")
_MEMORY = (
    "Lower engine.mem_fraction_static if loading failed and raise it if the key-value pool did; or lower "
    "engine.max_total_tokens and engine.max_running_requests, or spread the model with engine.tp_size."
)
_REMEDIES = (
    (r"Not enough memory|[Oo]ut ?[Oo]f ?[Mm]emory|can't allocate memory", _MEMORY),
    (r"[Aa]ddress already in use|is used by a process", "Choose another engine.port, or set it to 0 for a free one."),
    (r"No space left on device", "Free space in /dev/shm and in the folder for temporary files."),
    (r"context_length", "Lower engine.context_length to at most the model's own."),
    (
        r"No accelerator|[Nn]o NVIDIA driver|not compiled with CUDA|CUDA-capable device|_cuda_",
        "Run where SGLang sees a GPU, or use the CPU environment: `make sglang-cpu`.",
    ),
    (
        r"is not installed|No module named|minimum required version",
        "Install it in the environment of engine.python, or choose options that do not need it.",
    ),
    (
        r"[Ss]afetensors|state_dict|size mismatch|No such file or directory|Repo id must be",
        "Check the model directory: config.json, tokenizer files and complete weights must be there.",
    ),
    (
        r"[Ss]upport|registered model|divisible",
        "Choose options, or a model, that this version of SGLang has for this device.",
    ),
)
_LOG = "Read the log of this engine."


def diagnose(lines: Sequence[str], exit_code: int) -> EngineError:
    """The error that a person sees: what SGLang said was wrong, and what to do."""
    if refusal := _refusal(lines):
        return refusal
    # its own exit code tells nothing: it kills itself when a process of it failed
    if cause := cause_of(lines):
        return EngineError(f"SGLang's server ended: {cause}", remedy=_remedy(cause))
    ended = f"SGLang's server ended with {_how(exit_code)}"
    if exit_code == -signal.SIGKILL or any(_KILLED.search(line) for line in lines):
        return EngineError(
            f"{ended}: it, or a process of it, was killed",
            remedy=f"If the machine ran out of memory: {_MEMORY}",
        )
    return EngineError(ended, remedy=_LOG)


def _refusal(lines: Sequence[str]) -> EngineError | None:
    """What its command line's parser says, which prints how to use all its options before."""
    refused = next((match for line in reversed(lines[-3:]) if (match := _REFUSED.match(line))), None)
    if refused is None:
        return None
    remedy = "Correct this option in [engine] or [engine.args]."
    unknown = _UNKNOWN.search(refused[1])
    if unknown and (known := nearest(unknown[1], _options(lines))):
        remedy = f"Did you mean {known!r}? {remedy}"
    return EngineError(f"SGLang refuses an option: {refused[1]}", remedy=remedy)


def _options(lines: Iterable[str]) -> set[str]:
    return {name for line in lines for name in re.findall(r"\[--([\w-]+)", line)}


def _remedy(cause: str) -> str:
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, cause)), _LOG)


def _how(exit_code: int) -> str:
    return f"signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
