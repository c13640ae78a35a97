"""A stand-in for SGLang's server, and an interpreter that claims to have SGLang."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from miles_core.app.processes import child
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from miles_core.app.processes import Child

FAKE = Path(__file__).with_name("fake_server.py")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes this interpreter, in child processes, report a version of SGLang."""

    def install(version: str) -> None:
        metadata = tmp_path / "site" / f"sglang-{version}.dist-info"
        metadata.mkdir(parents=True, exist_ok=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))

    return install


@pytest.fixture
def launched(tmp_path: Path, installed: Callable[[str], None]) -> Callable[..., AbstractAsyncContextManager[Child]]:
    """``launched("--behave", "die", port=0)``: the launcher on the stand-in, as a run starts it."""

    def launch(
        *words: str,
        name: str = "engine-0",
        port: int = 0,
        version: str = "0.5.23",
        said: Callable[[str], None] = lambda _: None,
    ) -> AbstractAsyncContextManager[Child]:
        if version:
            installed(version)
        own = ("--host", "127.0.0.1", "--port", str(port), "--")
        return child(
            name,
            [sys.executable, "-m", "miles_core.engine.sglang.launch", *own, sys.executable, str(FAKE), *words],
            log=tmp_path / f"{name}.log",
            error=EngineError,
            start_timeout=60.0,
            on_progress=said,
        )

    return launch
