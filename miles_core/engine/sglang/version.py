"""Which SGLang an environment has."""

from __future__ import annotations

import subprocess

from packaging.version import InvalidVersion, Version

from miles_core.errors import EngineError

OLDEST = Version("0.5.23")
INSTALL = (
    "Run `make sglang-cpu` for a CPU. For GPUs, install SGLang in a virtual environment of its own and set "
    "engine.python to its interpreter."
)
_ASK_SECONDS = 60.0
_ASK = "import importlib.metadata, sys; sys.stdout.write(importlib.metadata.version('sglang'))"


def check_version(python: str) -> str:
    """The version of SGLang that an interpreter has, asked of it without importing SGLang.

    Raises:
        EngineError: if it has none or an old one.
    """
    try:
        answer = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{python} does not run: {error}", remedy="Correct engine.python.") from None
    found = answer.stdout.strip()
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise EngineError(f"{python} has no SGLang ({last})", remedy=INSTALL)
    try:
        is_old = Version(found) < OLDEST
    except InvalidVersion:
        raise EngineError(f"{python} has a SGLang of unknown version {found!r}", remedy=INSTALL) from None
    if is_old:
        raise EngineError(
            f"{python} has SGLang {found}; weight updates and routed experts need {OLDEST} or newer",
            remedy=f"Run `{python} -m pip install 'sglang>={OLDEST}'`.",
        )
    return found
