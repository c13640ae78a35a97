"""``miles plugins check``: the conformance suite of a plugin's kind, run on one plugin."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from miles_core.cli.plugins_named import kinds_with, not_found
from miles_core.config.overrides import toml_value
from miles_core.errors import ConfigError, PluginError
from miles_core.kinds import KINDS
from miles_core.plugins.hub import Hub
from miles_core.plugins.resolve import kind_named

if TYPE_CHECKING:
    from miles_core.testing.reporting import Outcome


def check(
    name: str,
    /,
    *,
    kind: str | None = None,
    options: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
) -> int:
    """Run the suite of a plugin's kind in a process of its own; returns the exit code.

    Parameters
    ----------
    name
        Its name, distribution/name, or (with --kind) module:attribute.
    kind
        Its kind, such as reward_models, where several kinds have that name.
    options
        Its options as KEY=VALUE, values written as in a config file. A data source finds files from this folder on.
    """
    if find_spec("pytest") is None:
        raise PluginError(
            "conformance suites run in pytest, which is not installed", remedy='Run: pip install "miles-hub[testing]"'
        )
    hub = Hub.discover()
    kinds = [kind_named(kind).plural] if kind is not None else kinds_with(hub, name)
    if not kinds:
        raise not_found(hub, name)
    given = dict(map(_option, options))
    return max([_check_one(hub, each, name, given) for each in kinds])


def _check_one(hub: Hub, kind: str, name: str, options: dict[str, Any]) -> int:
    from miles_core.testing import SUITES
    from miles_core.testing.check import run_suite

    ref = hub.resolve(kind, name)
    plugin = ref.qualified_name if ref.distribution else ref.target
    sys.stdout.write(f"{ref}\n")
    if kind not in SUITES:
        sys.stdout.write(f"{KINDS[kind].plural.replace('_', ' ')} have no suite yet: checked is what loading shows\n")
    sys.stdout.flush()
    outcomes = run_suite(kind, plugin, options, Path.cwd())
    said: set[str] = set()
    sys.stdout.write("".join(_line(outcome, said) for outcome in outcomes) + _summary(outcomes))
    return int(any(outcome.outcome == "failed" for outcome in outcomes))


def _line(outcome: Outcome, said: set[str]) -> str:
    """The outcome of one rule; a reason that stands above already is not repeated."""
    if outcome.outcome == "failed":
        if outcome.reason in said:
            return f"  failed   {outcome.rule}: as above\n"
        said.add(outcome.reason)
        return f"  failed   {outcome.rule}: {outcome.text}\n{_indented(outcome.reason)}"
    why = f" ({outcome.reason})" if outcome.reason else ""
    return f"  {outcome.outcome:7}  {outcome.rule}{why}\n"


def _indented(text: str) -> str:
    return "".join(f"           {line}\n" for line in text.splitlines())


def _summary(outcomes: list[Outcome]) -> str:
    words = [
        f"{count} {what}"
        for what in ("passed", "failed", "skipped")
        if (count := sum(outcome.outcome == what for outcome in outcomes))
    ]
    return f"{', '.join(words)}\n"


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--options {text}: expected a key, '=' and a value", remedy="Write --options key=value.")
    return key.strip(), toml_value(value)
