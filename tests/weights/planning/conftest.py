"""Small models that exist only on paper."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def toy():
    """The module ``toy_model.py``."""
    spec = importlib.util.spec_from_file_location("planning_toy_model", Path(__file__).with_name("toy_model.py"))
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made
