"""docs/plugin-package.md followed word for word, in an environment and a folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tomllib
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from miles_core.config.load import load_config

from .conftest import FENCE, read

if TYPE_CHECKING:
    from .conftest import Document

PROGRAMS = {"pip": "pip", "pytest": "pytest", "miles": "miles_core.cli"}


@pytest.fixture
def page() -> Document:
    return read("docs/plugin-package.md")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A virtual environment that sees the packages of ours and installs into itself, offline."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    ours = sysconfig.get_paths()["purelib"]
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    for name, module in PROGRAMS.items():
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -m {module} "$@"\n')
        program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as the value of build isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def edit(folder: Path, diff: str) -> None:
    name, _, change = diff.partition("\n")
    path = folder / name.removeprefix("--- ")
    before = "".join(line[1:] for line in change.splitlines(keepends=True) if line[0] != "+")
    after = "".join(line[1:] for line in change.splitlines(keepends=True) if line[0] != "-")
    text = path.read_text("utf-8")
    assert text.count(before) == 1, f"{path.name} does not hold what the page shows:\n{before}"
    path.write_text(text.replace(before, after), "utf-8")


def shell(script: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["sh", "-ec", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{script}{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.timeout(400)
def test_every_step_of_the_page_works_in_order(
    page: Document, root: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    folder = tmp_path / "clone"
    shutil.copytree(root / "examples/quickstart", folder / "examples/quickstart")
    outputs = []
    for language, body in FENCE.findall(page.text):
        if language == "diff":
            edit(folder, body)
        elif not language:
            outputs.append(shell(body, folder, environment))
    assert len(outputs) == 5
    assert re.search(r"\d+ passed", outputs[2])
    assert (folder / "runs").is_dir()
    assert list(folder.glob("miles_short-*.whl"))


def test_the_toml_is_the_set_line_beside_it(page: Document, root: Path) -> None:
    (words,) = (words for words in page.commands() if words[0] == "train")
    (snippet,) = page.blocks("toml")
    config = load_config(root / words[1], page.overrides(words)).config.model_dump()
    for expected, table in zip(tomllib.loads(snippet)["rewards"], config["rewards"], strict=True):
        assert expected.items() <= table.items()


def test_the_environment_of_this_test_is_not_ours(environment: dict[str, str], tmp_path: Path) -> None:
    prefix = shell("python -c 'import sys; print(sys.prefix)'", tmp_path, environment).strip()
    assert Path(prefix).is_relative_to(tmp_path)
