"""A folder on ``sys.path`` where tests install hand-made distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from miles_core.testing.plugin import install_plugin  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from miles_core.testing.site import Site


@pytest.fixture
def site(install_plugin: Site) -> Site:  # noqa: F811
    """The folder by the name that these tests have for it."""
    return install_plugin
