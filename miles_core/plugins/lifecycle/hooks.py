"""Calls the lifecycle hooks of one process: observers may fail and change nothing, hooks that act may do both."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from miles_core.errors import MilesError, PluginError
from miles_core.lib.calls import run_in_thread
from miles_core.lib.error_text import error_text
from miles_core.lib.plugin_calls import CallTimeoutError, PluginCalls
from miles_core.plugins.lifecycle.hookspecs import ACTING
from miles_core.types.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from miles_core.plugins.lifecycle.implementations import Implementation

logger = logging.getLogger("miles.plugins")


class Hooks:
    """The implementations of every hook, in the order in which they are called.

    ``timeout`` seconds is what an observer may take; what takes longer than ``slow_call`` seconds is warned about.
    Arguments are frozen copies, except the trainer and the app that a hook may act on.
    """

    def __init__(
        self, implementations: Iterable[Implementation] = (), timeout: float = 60.0, slow_call: float = 10.0
    ) -> None:
        self._by_hook: defaultdict[str, list[Implementation]] = defaultdict(list)
        self._calls: dict[Implementation, PluginCalls] = {}
        for implementation in implementations:
            self._by_hook[implementation.hook].append(implementation)
            self._calls[implementation] = PluginCalls(implementation.label, slow_call=slow_call)
        self._timeout = timeout
        self._slow_call = slow_call
        self._turn = anyio.Lock()
        self._failures: Counter[Implementation] = Counter()

    def __contains__(self, hook: str) -> bool:
        """Whether anybody implements a hook."""
        return hook in self._by_hook

    def of(self, hook: str) -> Sequence[Implementation]:
        """The implementations of a hook in order, for a caller that treats each in a way of its own."""
        return tuple(self._by_hook.get(hook, ()))

    async def observe(self, hook: str, **arguments: Any) -> None:
        """Call an observer of every plugin, one after the other, ``def`` in a thread and ``async def`` here.

        One that raises or takes too long is a warning, and the others are called. No two observers of a process run at
        the same time, so that a plugin needs no locks; one that still runs after its time-out is left out.
        """
        _is_acting(hook, False)
        if hook not in self._by_hook:
            return
        async with self._turn:
            given = await run_in_thread(_given, arguments)  # thousands of trajectories take a while
            for implementation in self._by_hook[hook]:
                await self._observe(implementation, given)

    def observe_now(self, hook: str, **arguments: Any) -> None:
        """The same where no event loop runs."""
        _is_acting(hook, False)
        if hook in self._by_hook:
            asyncio.run(self.observe(hook, **arguments))

    def act(self, hook: str, **arguments: Any) -> None:
        """Call a hook that acts on what it is given, of every plugin, in this thread.

        Raises:
            PluginError: naming hook and plugin, if one raises or returns a value.
        """
        _is_acting(hook, True)
        if hook in self._by_hook:
            given = _given(arguments)
            for implementation in self._by_hook[hook]:
                if (result := self._act(implementation, given)) is not None:
                    raise PluginError(
                        f"{implementation} returned {type(result).__name__}, which nobody uses",
                        remedy="Change in place what it is given, and return nothing.",
                    )

    def change(self, hook: str, name: str, check: Callable[[Any, Any], Any], **arguments: Any) -> Any:
        """Let every plugin replace the argument ``name``, each seeing what the one before made of it; returns the last.

        ``check(before, after)`` gives the value that counts, and raises ``ValueError`` for one that must not.

        Raises:
            PluginError: naming hook and plugin, if one raises or what it returns is refused.
        """
        _is_acting(hook, True)
        for implementation in self._by_hook.get(hook, ()):
            result = self._act(implementation, _given(arguments))
            if result is not None:
                try:
                    arguments[name] = check(arguments[name], result)
                except ValueError as error:
                    raise PluginError(
                        f"{implementation} returned a {name} that cannot be used: {error}",
                        remedy=f"Return a changed copy of the {name}, or None.",
                    ) from error
        return arguments[name]

    async def _observe(self, implementation: Implementation, given: Mapping[str, Any]) -> None:
        calls = self._calls[implementation]
        if calls.running:
            self._warn(implementation, "still runs after its time-out, and was left out")
            return
        try:
            await calls(implementation.hook, implementation.bound(given), limit=self._timeout)
        except CallTimeoutError:
            self._warn(implementation, f"was not done after {self._timeout:g} s (plugins.hook_timeout)")
        except Exception as error:  # noqa: BLE001 - an observer decides nothing
            self._warn(implementation, f"raised {error_text(error)}", error)

    def _act(self, implementation: Implementation, given: Mapping[str, Any]) -> Any:
        try:
            with self._missed(implementation):
                result = implementation.bound(given)()
                return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            rejects = implementation.hook == "miles_config_loaded"
            cause = error.message if isinstance(error, MilesError) else error_text(error)
            remedy = error.remedy if isinstance(error, MilesError) else None
            raise PluginError(
                f"{implementation} {'rejects the config' if rejects else 'failed'}: {cause}",
                remedy=remedy
                or f"{'Change the config' if rejects else 'Repair the plugin'}, or block its distribution.",
            ) from error

    @contextmanager
    def _missed(self, implementation: Implementation) -> Iterator[None]:
        """Say what the process waits for where a hook takes long; one that acts cannot be left alone."""
        timer = threading.Timer(
            self._slow_call,
            logger.warning,
            ("%s has been running for %g s; waiting for it", implementation, self._slow_call),
        )
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _warn(self, implementation: Implementation, what: str, error: BaseException | None = None) -> None:
        """The first time, the tenth, the hundredth, ...: one that fails at every step must not fill the screen."""
        self._failures[implementation] += 1
        times = self._failures[implementation]
        if set(str(times)[1:]) <= {"0"} and str(times)[0] == "1":
            often = f" (for the {times}th time)" if times > 1 else ""
            logger.warning("%s %s%s; the run goes on", implementation, what, often)
            logger.info("%s", implementation, exc_info=error) if error is not None else None


async def _awaited(result: Any) -> Any:
    return await result


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: frozen(value) for name, value in arguments.items()}


def _is_acting(hook: str, expected: bool) -> None:
    assert (hook in ACTING) == expected, f"{hook} is called as what it is not"
