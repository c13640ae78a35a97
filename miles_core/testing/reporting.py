"""A pytest plugin that writes the outcome of each rule of a suite as a line of JSON; ``check`` reads them."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

OPTION = "--miles-outcomes"


@dataclass(frozen=True)
class Outcome:
    """One rule, as a suite found it: ``outcome`` is ``passed``, ``failed`` or ``skipped``."""

    module: str
    suite: str
    rule: str
    outcome: str
    text: str
    reason: str = ""


def read_outcomes(path: Path) -> list[Outcome]:
    """The outcomes in the file, in the order of the tests."""
    return [Outcome(**json.loads(line)) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def rule_of(function: object) -> tuple[str, str]:
    """Id and text of the rule that a suite's test checks: its name, and its docstring in one line."""
    name = getattr(function, "__name__", "").removeprefix("test_")
    return name, " ".join((inspect.getdoc(function) or "").split())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the path of the file."""
    parser.addoption(OPTION, type=Path, help="write outcomes of conformance rules into this file")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write what a rule's test found, once, from its call or from the setup or teardown that failed."""
    report = yield
    decides = report.when == "call" or not report.passed
    path: Path | None = item.config.getoption(OPTION)
    if decides and path is not None and isinstance(item, pytest.Function):
        rule, text = rule_of(item.function)
        suite = item.cls.__name__ if item.cls else ""
        outcome = Outcome(item.module.__name__, suite, rule, report.outcome, text, _reason(call))
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
    return report


def _reason(call: pytest.CallInfo[None]) -> str:
    if call.excinfo is None:
        return ""
    error = call.excinfo.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, pytest.fail.Exception | pytest.skip.Exception):
        return str(error.msg)
    return " ".join(f"{type(error).__name__}: {error}".split())
