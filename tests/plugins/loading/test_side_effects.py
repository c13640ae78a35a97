"""What importing a plugin may not do to the process."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from miles_core.errors import PluginError

FUNCTION = "\ndef fn(trajectory): return 1.0\n"


def load(site, source: str, after: str = FUNCTION):
    site.install("acme-kit", "1.2", {"miles.reward_models": {"exact": "acme_mod:fn"}})
    site.module("acme_mod", source + after)
    hub = site.hub()
    return hub.load(hub.resolve("reward_models", "exact"))


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "miles.plugins"]


def test_a_warning_at_import_is_reported_by_name_even_where_warnings_are_errors(site, caplog) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(site, "import warnings\nwarnings.warn('old thing', DeprecationWarning)")
        with pytest.raises(UserWarning, match="still an error"):
            warnings.warn("still an error", stacklevel=1)
    [message] = messages(caplog)
    assert "'exact' (acme_mod:fn, distribution acme-kit 1.2): its import warned: DeprecationWarning: old" in message


def test_warnings_that_are_ignored_stay_ignored(site, caplog) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(site, "import warnings\nwarnings.warn('old thing', DeprecationWarning)")
    assert messages(caplog) == []


def test_the_working_folder_signal_handlers_and_root_logger_are_put_back(site, caplog) -> None:
    before = (Path.cwd(), signal.getsignal(signal.SIGINT), logging.getLogger().handlers[:], logging.getLogger().level)
    load(
        site,
        "import logging, os, signal\nos.chdir('/')\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "logging.basicConfig(level=5, force=True)",
    )
    root = logging.getLogger()
    assert (Path.cwd(), signal.getsignal(signal.SIGINT), root.handlers, root.level) == before
    [message] = messages(caplog)
    assert "its import changed the working folder and the handlers of signals and the root logger" in message


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("import asyncio\nraise asyncio.CancelledError('x')", "CancelledError: x"),
        ("class E(BaseException): pass\nraise E('odd')", "E: odd"),
        ("import sys\nsys.exit('bye')", "SystemExit: bye"),
        ("raise ValueError('x' * 10_000_000)", "ValueError: xxxx"),
        ("class E(Exception):\n    def __str__(self): raise KeyError\nraise E", "E (its text cannot be had: KeyError)"),
        ("import sys\ndel sys.modules[__name__]", "KeyError: 'acme_mod'"),
    ],
)
def test_whatever_an_import_raises_is_an_error_that_names_the_plugin(site, source, cause) -> None:
    with pytest.raises(PluginError) as caught:
        load(site, source)
    assert f"(acme_mod:fn, distribution acme-kit 1.2) cannot be loaded: {cause}" in caught.value.message
    assert len(caught.value.message) < 1000


def test_ctrl_c_while_a_plugin_is_imported_is_the_user_s(site) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(site, "raise KeyboardInterrupt")


def test_a_module_may_start_threads_and_replace_itself(site) -> None:
    source = (
        "import sys, threading, types\nthreading.Thread(target=len, args=([],), daemon=True).start()\n"
        "new = types.SimpleNamespace(fn=lambda trajectory: 2.0)\nsys.modules[__name__] = new\n"
    )
    assert callable(load(site, source, after=""))


def test_machine_readable_output_stays_whole_whatever_an_import_prints(site) -> None:
    site.install("acme-kit", "1.2", {"miles": {"hooks": "noisy_mod"}})
    site.module(
        "noisy_mod",
        "print('HELLO')\nimport ctypes, os, subprocess, sys\nsys.__stdout__.write('ORIGINAL')\n"
        "os.write(1, b'DESCRIPTOR')\nctypes.CDLL(None).printf(b'FROM C')\nsubprocess.run(['echo', 'CHILD'])\n"
        "def miles_register(registry): os.write(1, b'HOOK')",
    )
    script = (
        "import json, sys\nfrom miles_core.plugins import Hub\n"
        f"hub = Hub.discover(path=[{str(site.folder)!r}])\nprint(json.dumps(len(hub.refs(computed=True))))"
    )
    environment = {**os.environ, "PYTHONPATH": str(site.folder)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert done.stdout == "0\n"
    for part in ("HELLO", "ORIGINAL", "DESCRIPTOR", "FROM C", "CHILD", "HOOK"):
        assert part in done.stderr
