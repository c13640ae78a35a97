"""``miles config``: the resolved config of a run, and the reference of every key."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="config", help="Show a resolved config, or describe every key.")


@app.command
def show(
    config: Path,
    /,
    *,
    overrides: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)] = (),
) -> None:
    """Print the config as it will run, defaults included, as TOML.

    Parameters
    ----------
    config
        A TOML file.
    overrides
        KEY=VALUE replaces one value of the file, such as rewards.0.weight=2; may be given several times.
    """
    from miles_core.config.load import dump_config, load_config

    sys.stdout.write(dump_config(load_config(config, overrides).config))


@app.command
def reference() -> None:
    """Describe every key of the config file: type, default and meaning."""
    from miles_core.config import reference as schema_reference

    sys.stdout.write(schema_reference.reference() + "\n")
