from __future__ import annotations

import os
import subprocess
import sys

import pytest

from miles_core import __version__
from miles_core.cli import main as cli
from miles_core.errors import ConfigError, PluginError


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs one command line, with one more command that raises what the test wants."""
    monkeypatch.delenv("MILES_TRACEBACK", raising=False)

    def run(*argv, error=None, result=None):
        def fail():
            if error is not None:
                raise error
            return result

        with monkeypatch.context() as patch:
            patch.setattr(cli.app, "_commands", dict(cli.app._commands))
            cli.app.command(fail, name="fail")
            with pytest.raises(SystemExit) as caught:
                cli.main(argv)
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return run


def test_help_has_one_line_per_command_and_imports_none_of_them():
    code = (
        "import sys\nfrom miles_core.cli.main import main\n"
        "try:\n    main(['--help'])\nfinally:\n"
        "    ours = [m[15:] for m in sys.modules if m.startswith('miles_core.cli.')]\n"
        "    print([m for m in ours if m not in ('main', 'plugin_commands')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("train", "serve", "plugins", "config"):
        assert any(line.split()[1:2] == [command] for line in done.stdout.splitlines())
    assert done.stdout.rstrip().endswith("[]")


def test_version(run):
    assert run("--version") == (0, f"{__version__}\n", "")


def test_an_error_of_miles_is_one_message_with_its_remedy_and_no_traceback(run):
    code, out, err = run("fail", error=ConfigError("expected a; got b", remedy="write a"))
    assert (code, out, err) == (1, "", "error: expected a; got b\n  -> write a\n")


def test_notes_of_an_error_are_shown(run):
    error = ConfigError("bad")
    error.add_note("while making x")
    assert run("fail", error=error)[2] == "error: bad\n  (while making x)\n"


@pytest.mark.parametrize("argv", [("--traceback", "fail"), ("fail", "--traceback")])
def test_the_traceback_flag_may_stand_anywhere(run, argv):
    code, _, err = run(*argv, error=ConfigError("bad"))
    assert code == 1
    assert err.startswith("Traceback")
    assert err.endswith("error: bad\n")


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False)])
def test_the_environment_may_ask_for_a_traceback(run, monkeypatch, value, shown):
    monkeypatch.setenv("MILES_TRACEBACK", value)
    assert ("Traceback" in run("fail", error=ConfigError("bad"))[2]) is shown


def test_a_group_is_unwrapped_to_its_first_error_of_miles(run):
    group = ExceptionGroup("tasks", [ValueError("x"), ExceptionGroup("inner", [PluginError("p"), ConfigError("c")])])
    assert run("fail", error=group)[::2] == (1, "error: p\n")


def test_an_unforeseen_error_is_one_line_that_says_how_to_see_more(run):
    code, _, err = run("fail", error=ExceptionGroup("tasks", [ValueError("boom")]))
    assert code == 2
    assert err.startswith("error: unexpected ValueError: boom\n")
    assert "--traceback" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BaseExceptionGroup("tasks", [KeyboardInterrupt()])])
def test_an_interrupt_exits_with_130_and_one_word(run, error):
    assert run("fail", error=error) == (130, "", "interrupted\n")


@pytest.mark.parametrize(("result", "code"), [(None, 0), (3, 3)])
def test_the_integer_that_a_command_returns_is_the_exit_code(run, result, code):
    assert run("fail", result=result)[0] == code


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ("plgins",),
            (
                "'plgins'",
                "train, eval, report, data, serve, plugins, r3, debug, doctor, config",
                "Did you mean 'plugins'?",
            ),
        ),
        (("plugins", "lst"), ("'lst'", "Did you mean 'list'?")),
        (("plugins", "list", "--jsno"), ("--jsno", "--json", "--help")),
        (("plugins", "show"), ("NAME", "--help")),
    ],
)
def test_a_mistyped_command_line_suggests(run, argv, words):
    code, out, err = run(*argv)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert all(word in err for word in words)


def test_a_mistyped_command_imports_no_other_command():
    code = (
        "import sys\nfrom miles_core.cli.main import main\n"
        "try:\n    main(['trian'])\nfinally:\n    print('miles_core.cli.train' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "False\n")
    assert "Did you mean 'train'?" in done.stderr


def test_python_m_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "miles_core.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == __version__


@pytest.mark.parametrize(
    ("flag", "variable", "value"),
    [("--no-plugins", "MILES_PLUGINS", "none"), ("--strict-plugins", "MILES_STRICT_PLUGINS", "1")],
)
def test_a_flag_about_plugins_may_stand_anywhere_and_reaches_child_processes(run, monkeypatch, flag, variable, value):
    for argv in ((flag, "fail"), ("fail", flag), (flag, "fail", flag)):
        monkeypatch.setenv(variable, "")
        assert run(*argv)[0] == 0
        assert os.environ[variable] == value


def test_flags_behind_a_double_dash_are_not_ours(run, monkeypatch):
    monkeypatch.setenv("MILES_PLUGINS", "")
    assert run("fail", "--", "--no-plugins")[0] == 1
    assert os.environ["MILES_PLUGINS"] == ""


def test_help_tells_of_the_flags_that_every_command_takes(run):
    out = run("--help")[1]
    assert all(flag in out for flag in ("--traceback", "--no-plugins", "--strict-plugins"))


def test_a_package_whose_metadata_breaks_a_library_is_hinted_at(tmp_path):
    info = tmp_path / "bad-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_bytes(b"[console_scripts]\n\xff\xfe = a:b\n")
    done = subprocess.run(
        [sys.executable, "-m", "miles_core.cli", "config", "reference"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 2
    assert "`miles plugins doctor --no-import` says which to reinstall" in done.stderr


def test_a_reader_that_leaves_is_no_error():
    command = [sys.executable, "-m", "miles_core.cli", "config", "reference"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (1, b"")


def test_a_thread_that_a_plugin_left_behind_does_not_keep_the_process():
    code = (
        "import threading\nfrom miles_core.cli.main import end_within\n"
        "threading.Thread(target=threading.Event().wait, name='left behind').start()\n"
        "print('said')\nend_within(0.1, 3)\nraise SystemExit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (3, "said\n")
    assert done.stderr == "warning: not waited for any longer, 0.1 s after the end: left behind\n"
