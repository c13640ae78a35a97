"""The pytest plugin: fixtures for authors of plugins.

It loads in every pytest run of an environment, so nothing but pytest is imported before a fixture is used. A fixture of
the same name in an author's own conftest takes its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.kinds import PluginContext
    from miles_core.plugins.hub import Hub
    from miles_core.session.session import TokenSession
    from miles_core.testing.memory_transport import TransportPair
    from miles_core.testing.scripted_engine import ScriptedEngine
    from miles_core.testing.site import Site
    from miles_core.testing.toy_bridge import ToyModels


@pytest.fixture
def hub() -> Hub:
    """The plugins of this environment, and those that ``install_plugin`` installed before it was asked for."""
    from miles_core.plugins.hub import Hub

    return Hub.discover()


@pytest.fixture
def install_plugin(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Installs hand-made distributions for one test; see :class:`miles_core.testing.Site`.

    ``install_plugin("acme", source="...", reward_models={"short": "acme:short"})`` writes metadata and a module into a
    temporary folder on ``sys.path``; both are gone with the test.
    """
    import sys

    from miles_core.testing.site import Site

    folder = tmp_path_factory.mktemp("site")
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield Site(folder)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def plugin_context(tmp_path_factory: pytest.TempPathFactory) -> PluginContext:
    """A context with a run folder, a seed and the toy tokenizer, as plugins are made with."""
    from miles_core.testing.context import make_context

    return make_context(tmp_path_factory.mktemp("run"))


@pytest.fixture
def scripted_engine() -> Iterator[ScriptedEngine]:
    """An engine on loopback that answers by script, with the toy tokenizer: ``scripted_engine.add("5", "done")``."""
    from miles_core.testing.scripted_engine import ScriptedEngine
    from miles_core.testing.toy_tokenizer import toy_tokenizer

    with ScriptedEngine(tokenizer=toy_tokenizer()) as engine:
        yield engine


@pytest.fixture
def token_session(scripted_engine: ScriptedEngine) -> TokenSession:
    """A real session on the toy tokenizer, against ``scripted_engine``."""
    from miles_core.testing.session import make_session

    return make_session(scripted_engine)


@pytest.fixture
def toy_bridge(tmp_path_factory: pytest.TempPathFactory) -> ToyModels:
    """A tiny dense and a tiny MoE model with their bridges: ``toy_bridge.moe.build()``; needs torch."""
    from miles_core.testing.toy_bridge import make_toy_models

    return make_toy_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def memory_transport() -> Iterator[TransportPair]:
    """Both ends of the in-memory weight transport: ``memory_transport.sender`` and ``.receiver``."""
    from miles_core.testing.memory_transport import open_pair

    with open_pair() as pair:
        yield pair
