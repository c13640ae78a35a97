"""The engine kind `embedded`: its command line, and that it costs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from miles_core.engine.embedded.plugin import Embedded
from miles_core.kinds.base import PluginContext
from miles_core.kinds.engines import Engine


def test_the_command_names_every_option_that_was_given() -> None:
    engine = Embedded(Embedded.Config(dtype="bfloat16", context_length=64, port=9000), PluginContext(seed=7))
    assert isinstance(engine, Engine)
    command = engine.command("models/tiny", index=2, transport="memory")
    assert command.argv[:5] == (sys.executable, "-m", "miles_core.cli", "serve", "engine")
    options = dict(zip(command.argv[5::2], command.argv[6::2], strict=True))
    assert options == {
        "--model-path": "models/tiny",
        "--dtype": "bfloat16",
        "--threads": "1",
        "--max-running-requests": "256",
        "--context-length": "64",
        "--host": "127.0.0.1",
        "--port": "9002",
        "--seed": "9",
        "--transport": "memory",
    }


def test_what_is_left_to_the_model_is_not_on_the_command_line() -> None:
    argv = Embedded(Embedded.Config(), PluginContext()).command("m", index=3, transport="memory").argv
    assert "--dtype" not in argv
    assert "--context-length" not in argv
    assert argv[argv.index("--port") + 1] == "0"


@pytest.mark.parametrize("wrong", [{"dtypes": "float32"}, {"dtype": "int8"}, {"threads": 0}, {"port": 70000}])
def test_a_wrong_key_or_value_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Embedded.Config.model_validate(wrong)


def test_importing_the_plugin_and_the_client_imports_no_torch() -> None:
    modules = "miles_core.engine.embedded.plugin, miles_core.engine.client, miles_core.engine.control"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
