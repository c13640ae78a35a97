"""Which Python runs SGLang: this one, another one, or the CPU environment."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from miles_core.engine.sglang.cpu.environment import cpu_environment
from miles_core.engine.sglang.version import INSTALL
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from miles_core.engine.sglang.options import Options


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that should have SGLang, and whether it runs it without a GPU."""

    path: str
    on_cpu: bool


def find_interpreter(options: Options) -> Interpreter:
    """The interpreter that options ask for, or the first that has SGLang.

    Raises:
        EngineError: if there is none.
    """
    made = cpu_environment()
    if options.python is not None:
        path = _program(options.python)
        return Interpreter(path, options.device == "cpu" or (options.device is None and _same(path, made)))
    if find_spec("sglang") is not None:
        return Interpreter(sys.executable, options.device == "cpu")
    if made is None:
        raise EngineError(f"there is no SGLang: not in {sys.prefix}, and no CPU environment", remedy=INSTALL)
    if options.device not in (None, "cpu"):
        raise EngineError(
            f"engine.device = {options.device!r}, but the only SGLang here is the CPU environment ({made})",
            remedy="Set engine.python to the interpreter of an environment that has SGLang for this device.",
        )
    return Interpreter(str(made), on_cpu=True)


def _program(python: str) -> str:
    found = shutil.which(str(Path(python).expanduser()))
    if found is None:
        raise EngineError(f"engine.python = {python!r} is no program", remedy="Set it to a Python that has SGLang.")
    return found


def _same(path: str, other: Path | None) -> bool:
    # not resolved: the interpreter of a virtual environment is a link to one that is shared
    return other is not None and Path(path).absolute() == other.absolute()
