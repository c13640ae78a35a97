from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from miles_core.adapters import ADAPTERS, adapted
from miles_core.config.tables import Adapter
from miles_core.errors import PluginError


def test_the_config_takes_exactly_the_adapters_that_there_are() -> None:
    assert set(ADAPTERS) == set(Adapter.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", [module for kinds in ADAPTERS.values() for module in kinds.values()])
def test_every_module_of_the_table_adapts(module: str) -> None:
    assert callable(import_module(module).adapt)


def test_other_kinds_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        PluginError, match=r"^the loss f: .* does not adapt losses; it adapts: environments, reward_mod"
    ):
        adapted("the loss f", "slime", "losses", len)


def test_listing_plugins_imports_no_adapter() -> None:
    script = "import sys, miles_core.plugins; print([m for m in sys.modules if m.startswith('miles_core.adapters.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
