"""The engine kind `embedded`: its command line, its options, and that it costs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from miles_core.engine.embedded.plugin import Embedded
from miles_core.kinds.base import PluginContext
from miles_core.kinds.engines import Engine


def test_the_command_leaves_every_option_to_the_config_file_of_the_run() -> None:
    engine = Embedded(Embedded.Config(dtype="bfloat16", context_length=64, port=9000), PluginContext(seed=7))
    assert isinstance(engine, Engine)
    argv = engine.command("models/tiny", index=2, config_path="run/config.toml").argv
    assert argv[:5] == (sys.executable, "-m", "miles_core.cli", "serve", "engine")
    assert argv[5:] == ("--config", "run/config.toml", "--model-path", "models/tiny", "--index", "2")


@pytest.mark.parametrize(
    "wrong", [{"dtypes": "float32"}, {"dtype": "int8"}, {"threads": 0}, {"port": 70000}, {"deterministic": 2}]
)
def test_a_wrong_key_or_value_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Embedded.Config.model_validate(wrong)


def test_importing_the_plugin_and_the_client_imports_no_torch() -> None:
    modules = "miles_core.engine.embedded.plugin, miles_core.engine.client"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
