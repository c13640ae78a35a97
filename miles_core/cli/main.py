"""The ``miles`` command: it hands over to one module per sub-command and turns errors into one clear message."""

from __future__ import annotations

import io
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

import cyclopts

from miles_core import __version__
from miles_core.cli.plugin_commands import with_plugin_commands
from miles_core.config.suggest import did_you_mean
from miles_core.errors import MilesError, leaves_of
from miles_core.lib.error_text import UNREADABLE, reads_metadata

if TYPE_CHECKING:
    from collections.abc import Sequence

TRACEBACK_FLAG = "--traceback"
TRACEBACK_VARIABLE = "MILES_TRACEBACK"
"""Set to 1 it does what the flag does."""

END_SECONDS = 30.0
"""What threads that are left at the end of a command, and functions of `atexit`, may take."""

PLUGIN_FLAGS = {"--no-plugins": ("MILES_PLUGINS", "none"), "--strict-plugins": ("MILES_STRICT_PLUGINS", "1")}
"""Flags of every command, and the environment variables that they set, so that child processes see them too."""

app = cyclopts.App(
    name="miles",
    help="Post-train LLM and VLM agents with reinforcement learning, out of plugins.",
    help_epilogue=f"""
Flags of every command:

* {TRACEBACK_FLAG}: show where an error comes from.
* --no-plugins: use no plugins but those of miles-hub itself.
* --strict-plugins: whatever is wrong with any installed plugin is an error.
""",
    version=__version__,
    suppress_keyboard_interrupt=False,
)
# Import strings: a command's module is imported when that command runs, so that the others stay fast.
app.command(
    "miles_core.cli.train:train",
    name="train",
    help="Train the policy that a config file describes, or go on with a run.",
)
app.command("miles_core.cli.eval:evaluate", name="eval", help="Score a checkpoint of a run, or a model.")
app.command("miles_core.cli.report:report", name="report", help="Write one HTML page of a run: plots and episodes.")
app.command("miles_core.cli.data:app", name="data", help="Check data files before a run.")
app.command("miles_core.cli.serve:app", name="serve", help="Serve one part alone: engine, router or sessions.")
app.command("miles_core.cli.plugins:app", name="plugins", help="List, check and start plugins.")
app.command("miles_core.cli.r3:app", name="r3", help="Show what routing replay does to a step of a run.")
app.command("miles_core.cli.debug:app", name="debug", help="Compute a dumped step again and compare.")
app.command("miles_core.cli.doctor:doctor", name="doctor", help="Show what this machine can run, with remedies.")
app.command("miles_core.cli.config:app", name="config", help="Show a resolved config, or describe every key.")
app.command("miles_core.cli.weights:app", name="weights", help="Plan weight updates, and check what engines hold.")
app.command("miles_core.cli.tito:app", name="tito", help="Check what follows a generated turn, token by token.")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line ``argv`` (default: the process's) and exit with its code.

    0 is success, 1 a mistake that the message explains, 2 an error that miles did not foresee, 130 an interrupt.
    """
    tokens = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show must not end a command
        sys.stdout.reconfigure(errors="backslashreplace")
    show_traceback = os.environ.get(TRACEBACK_VARIABLE, "") not in ("", "0")
    end = tokens.index("--") if "--" in tokens else len(tokens)
    own, others = tokens[:end], tokens[end:]
    for variable, value in (PLUGIN_FLAGS[flag] for flag in PLUGIN_FLAGS if flag in own):
        os.environ[variable] = value
    show_traceback |= TRACEBACK_FLAG in own
    tokens = [token for token in own if token not in (TRACEBACK_FLAG, *PLUGIN_FLAGS)] + others
    code = _run(tokens, show_traceback=show_traceback)
    if argv is None:
        end_within(END_SECONDS, code)
    raise SystemExit(code)


def end_within(seconds: float, code: int) -> None:
    """End this process with ``code`` if it still runs then: the interpreter waits for threads that plugins left."""

    def end() -> None:
        names = sorted(t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread())
        left = ", ".join(names) or "functions of atexit"
        sys.stderr.write(f"warning: not waited for any longer, {seconds:g} s after the end: {left}\n")
        if sys.stdout is not None:
            sys.stdout.flush()
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _run(tokens: list[str], *, show_traceback: bool) -> int:
    try:
        with with_plugin_commands(app, tokens):
            result = _call(tokens)
    except (Exception, SystemExit, KeyboardInterrupt, BaseExceptionGroup) as error:  # noqa: BLE001 - the outermost boundary
        if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):  # rich exits from one
            sys.stdout = None  # whoever read has left: nothing to flush at the end
            return 1
        if show_traceback:
            traceback.print_exception(error)
        return _report(error, show_traceback=show_traceback)
    return result if isinstance(result, int) else 0


def _call(tokens: list[str]) -> Any:
    try:
        return app(tokens, result_action="return_value", exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        raise _usage_error(error) from error


def _report(error: BaseException, *, show_traceback: bool) -> int:
    leaves = list(leaves_of(error))
    known = next((leaf for leaf in leaves if isinstance(leaf, MilesError)), None)
    if known is not None:
        notes = "".join(f"\n  ({note})" for note in getattr(known, "__notes__", ()))
        sys.stderr.write(f"error: {known}{notes}\n")
        return 1
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        sys.stderr.write("interrupted\n")
        return 130
    hint = "" if show_traceback else f"\n  -> Run it again with {TRACEBACK_FLAG} to see where, and report it."
    if reads_metadata(leaves[0]):
        hint = f"\n  -> {UNREADABLE}"
    sys.stderr.write(f"error: unexpected {type(leaves[0]).__name__}: {leaves[0]}{hint}\n")
    return 2


def _usage_error(error: cyclopts.CycloptsError) -> MilesError:
    help_line = "Add --help to see what the command takes."
    if not isinstance(error, cyclopts.UnknownCommandError) or error.app is None or not error.unused_tokens:
        return MilesError(str(error).strip(), remedy=help_line)
    # Not cyclopts' own text: to make it, cyclopts imports the modules of all commands.
    token, names = error.unused_tokens[0], [name for name in error.app if not name.startswith("-")]
    return MilesError(
        f"there is no command {token!r}; commands: {', '.join(names)}", remedy=did_you_mean(token, names) or help_line
    )
