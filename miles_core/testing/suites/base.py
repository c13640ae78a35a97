"""What all suites share: which plugin is tested, with which options, and how it is made."""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from miles_core.errors import ConfigError
from miles_core.kinds import PluginContext
from miles_core.plugins.hub import Hub
from miles_core.testing.make import make_plugin, plugin_ref
from miles_core.testing.suites.checks import BLOCK_LIMIT, longest_block

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from miles_core.plugins.reference import PluginRef


class PluginSuite:
    """The base of the suites: a subclass names its ``plugin`` and gives what the kind's suite asks for.

    ``plugin`` is a name, ``distribution/name``, ``module:attribute``, or the class or function itself. ``options`` are
    what a config file would hold. ``services`` are added to those that the suite's context offers. ``time_limit`` is
    for one call, in seconds.
    """

    kind: ClassVar[str]
    plugin: ClassVar[Any] = None
    options: ClassVar[Mapping[str, Any]] = {}
    services: ClassVar[Mapping[str, Any]] = {}
    seed: ClassVar[int] = 0
    time_limit: ClassVar[float] = 10.0

    pytestmark: ClassVar[Any] = pytest.mark.anyio

    _hub: ClassVar[Hub]
    _run_dir: Path | None = None

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Coroutines run on asyncio, as in a run."""
        return "asyncio"

    @pytest.fixture(autouse=True)
    def _use_run_dir(self, tmp_path: Path) -> None:
        self._run_dir = tmp_path

    @property
    def hub(self) -> Hub:
        """The plugins of this environment, read once for all tests of a suite."""
        cls = type(self)
        if "_hub" not in vars(cls):
            cls._hub = Hub.discover()
        return cls._hub

    @cached_property
    def ref(self) -> PluginRef:
        """The plugin under test."""
        # not self.plugin: a function among a class's attributes comes back as a method
        plugin = inspect.getattr_static(type(self), "plugin")
        if plugin is None:
            pytest.fail(f"set `plugin` in {type(self).__name__} to a name, module:attribute, a class or a function")
        return plugin_ref(self.hub, self.kind, plugin)

    def default_services(self) -> dict[str, Any]:
        """The services that a run offers to this kind."""
        return {"base_dir": self._run_dir}

    def make(self, *, app: Any = None, seed: int | None = None, **options: Any) -> Any:
        """A new object of the plugin; ``options`` are added to the suite's, ``app`` is what a middleware wraps."""
        services = self.default_services()
        services.update(self.services)
        context = PluginContext(self._run_dir, self.seed if seed is None else seed, services=services)
        return make_plugin(self.kind, self.ref, {**self.options, **options}, context, hub=self.hub, app=app)

    def check(self, condition: object, *, expected: str, got: Any, remedy: str) -> None:
        """Fail the test unless ``condition`` holds, saying what was expected, what came and what to do."""
        if not condition:
            shown = got if isinstance(got, str) else repr(got)
            pytest.fail(f"{self.ref.label}: expected {expected}; got {shown}. {remedy}", pytrace=False)

    async def check_leaves_the_loop_free(self, action: Callable[[], Awaitable[Any]], *, remedy: str) -> None:
        """Fail the test if the event loop stands still for long while ``action`` runs."""
        blocked = await longest_block(action)
        self.check(
            blocked < BLOCK_LIMIT,
            expected=f"at most {BLOCK_LIMIT} s without other tasks running",
            got=f"{blocked:.2f} s",
            remedy=remedy,
        )

    def test_loads(self) -> None:
        """It can be imported, and has the members and the signatures of its kind."""
        self.hub.load(self.ref)

    def test_is_made_from_its_options(self) -> None:
        """``cls(config, context)`` makes an object that its kind can use."""
        self.make(app=_no_app)

    def test_refuses_unknown_options(self) -> None:
        """A key that its ``Config`` does not declare is an error, so that no typo goes unnoticed."""
        model = self.hub.config_model(self.ref)
        self.check(
            model is None or model.model_config.get("extra") != "allow",
            expected="an error for a key that the Config does not declare",
            got="a Config that takes any key",
            remedy='Set model_config = ConfigDict(extra="forbid").',
        )
        with pytest.raises(ConfigError):
            self.hub.configure(self.kind, self.ref, {**self.options, "no_such_option": 1})

    def test_has_a_docstring(self) -> None:
        """It says what it does: `miles plugins show` prints the first line."""
        self.check(
            (self.hub.load(self.ref).__doc__ or "").strip(),
            expected="a docstring",
            got="none",
            remedy="Write one sentence that says what it does.",
        )


async def _no_app(scope: Any, receive: Any, send: Any) -> None:
    """The app that a middleware wraps where nothing is sent."""
