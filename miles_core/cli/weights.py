"""``miles weights``: plan updates, and compare engines with their trainer."""

from __future__ import annotations

from cyclopts import App

from miles_core.cli.weights_plan import plan
from miles_core.cli.weights_verify import verify

app = App(name="weights", help="Plan weight updates, and check what engines hold.")
app.command(plan)  # not by their import strings: then the help would say less
app.command(verify)
