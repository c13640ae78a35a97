"""``miles plugins new``: a package to start from."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from miles_core.plugins.hub import Hub
from miles_core.scaffold.names import kind_of, names_of
from miles_core.scaffold.render import render, write

if TYPE_CHECKING:
    from miles_core.scaffold.names import Names


def new(
    kind: str, name: str, /, *, path: Path = Path(), distribution: str | None = None, author: str | None = None
) -> None:
    """Write a new package with one plugin that works: its code, its test, a README, and a workflow that runs the test.

    Parameters
    ----------
    kind
        What the plugin is: environment, reward_model, filter, advantage_estimator, loss, router_middleware,
        model_bridge, data_source, weight_transport, engine, train_backend or tracker.
    name
        What config files call it, such as short in `miles plugins new reward_model short`. A model bridge is called as
        `architectures` in config.json says.
    path
        The folder to put the package's folder into.
    distribution
        What pip calls the package; default: miles-NAME.
    author
        Your name, or `Name <address>`, for the package's metadata.
    """
    names = names_of(kind_of(kind), name, distribution)
    files = render(names, author)
    warnings = _warnings(names)
    folder = path.expanduser() / names.distribution
    write(files, folder)
    sys.stderr.write("".join(f"warning: {text}\n" for text in warnings))
    sys.stdout.write(_report(names, sorted(files), folder))


def _warnings(names: Names) -> list[str]:
    plural, name = names.kind.plural, names.plugin
    warnings = [
        f"{ref.distribution} offers a {names.kind.singular} {name!r} too: where both are installed, "
        f"config files must write {names.distribution}/{name}"
        for ref in Hub.discover().refs(plural)
        if ref.name == name
    ]
    if plural == "model_bridges" and not name[0].isupper():
        warnings.append(
            f"{name!r} is no architecture: a bridge that is called as `architectures` in config.json says, "
            "such as Qwen2ForCausalLM, is found without [model] bridge"
        )
    return warnings


def _report(names: Names, files: list[str], folder: Path) -> str:
    commands = (
        f"pip install -e {shlex.quote(f'{folder}[test]')}",
        f"pytest {shlex.quote(str(folder))}",
        f"miles plugins check {names.distribution}/{names.plugin}",
    )
    lines = [
        f"made the {names.kind.singular} {names.plugin!r} in {folder}:",
        *(f"  {file}" for file in files),
        "next:",
        *(f"  {command}" for command in commands),
    ]
    return "\n".join(lines) + "\n"
