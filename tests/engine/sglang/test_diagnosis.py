"""The cause of a server's end, picked out of logs as SGLang 0.5.23 writes them."""

from __future__ import annotations

import pytest

from miles_core.engine.sglang.diagnosis import diagnose

USAGE = """\
usage: sglang serve [-h] --model-path MODEL_PATH [--max-running-requests MAX_RUNNING_REQUESTS]
                    [--kv-cache-dtype {auto,fp8_e4m3}] [--disable-cuda-graph]"""
SURVIVED = """\
[2026-12-01 03:22:21] post-warmup freeze_gc failed
Traceback (most recent call last):
  File "connection.py", line 239, in _new_conn
    sock = connection.create_connection(
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ConnectionRefusedError: [Errno 111] Connection refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "sessions.py", line 784, in send
    r = adapter.send(request, **kwargs)
requests.exceptions.ConnectionError: HTTPConnectionPool(host='127.0.0.1', port=42077): Max retries exceeded
[2026-12-01 03:22:21] The server is fired up and ready to roll!"""
SCHEDULER = """\
[2026-12-01 03:28:33] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 6364, in run_scheduler_process
    scheduler = Scheduler(server_args, port_args)
safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata

[2026-12-01 03:28:33] Received sigquit from a child process. It usually means the child failed.
Traceback (most recent call last):
  File "engine.py", line 10, in wait
    raise EOFError
EOFError
[2026-12-01 03:28:33] kill_process_tree called: parent_pid=19118, include_parent=True, pid=19118"""
MAIN = """\
[2026-12-01 03:31:55] Using default HuggingFace chat template
Traceback (most recent call last):
  File "model_config.py", line 1314, in _derive_context_length
    raise ValueError(
ValueError: Warning: User-specified context_length (99999) is greater than the derived context_length (512). This may
lead to incorrect outputs."""


def test_an_unknown_option_is_named_with_the_nearest_one_that_sglang_has() -> None:
    log = f"{USAGE}\nsglang serve: error: unrecognized arguments: --max-runing-requests 3"
    error = diagnose(log.splitlines(), 2)
    assert error.message == "SGLang refuses an option: unrecognized arguments: --max-runing-requests 3"
    assert str(error.remedy).startswith("Did you mean 'max-running-requests'?")


def test_a_value_that_an_option_cannot_have_is_named_with_its_choices() -> None:
    log = f"{USAGE}\nsglang serve: error: argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto')"
    assert "invalid choice: 'fp9' (choose from 'auto')" in diagnose(log.splitlines(), 2).message


def test_the_exception_of_a_scheduler_is_the_cause_whatever_was_logged_around_it() -> None:
    error = diagnose(f"{SURVIVED}\n{SCHEDULER}".splitlines(), -9)
    assert error.message == (
        "SGLang's server ended: safetensors._safetensors_rust.SafetensorError: "
        "Error while deserializing header: incomplete metadata"
    )
    assert "complete weights" in str(error.remedy)


def test_an_exception_of_the_main_process_is_quoted_whole() -> None:
    error = diagnose(MAIN.splitlines(), 1)
    assert "(99999) is greater than the derived context_length (512). This may lead to" in error.message
    assert "engine.context_length" in str(error.remedy)


def test_the_last_exception_of_a_chain_is_what_is_said() -> None:
    log = (
        "Traceback (most recent call last):\n  File\nmetadata.PackageNotFoundError: flashinfer_python\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File\nException: flashinfer_python is not installed.\n"
    )
    error = diagnose(log.splitlines(), 1)
    assert error.message == "SGLang's server ended: Exception: flashinfer_python is not installed."
    assert "environment of engine.python" in str(error.remedy)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "mem_fraction_static"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "mem_fraction_static"),
        ("OSError: [Errno 28] No space left on device", "/dev/shm"),
        ("OSError: [Errno 98] Address already in use", "engine.port"),
        ("KeyError: 'something new'", "Read the log"),
    ],
)
def test_known_causes_come_with_what_to_do(cause: str, said: str) -> None:
    log = f"[2026-12-01 03:00:00] Scheduler hit an exception: Traceback (most recent call last):\n  File\n{cause}\n"
    error = diagnose(log.splitlines(), -9)
    assert cause in error.message
    assert said in str(error.remedy)


def test_a_process_that_was_killed_without_a_word_suggests_memory() -> None:
    assert "ran out of memory" in str(diagnose(SURVIVED.splitlines(), -9).remedy)
    crashed = "Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
    assert "ran out of memory" in str(diagnose([crashed], 1).remedy)


def test_an_end_without_any_cause_says_how_it_ended() -> None:
    assert diagnose([], 3).message == "SGLang's server ended with exit code 3"
