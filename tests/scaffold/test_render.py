from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from miles_core.config.tables import PluginTable
from miles_core.errors import PluginError
from miles_core.kinds import KINDS
from miles_core.plugins.hub import Hub
from miles_core.plugins.reference import PluginRef
from miles_core.scaffold.names import names_of
from miles_core.scaffold.render import render, requirement, write
from miles_core.testing import SUITES

ROOT = Path(__file__).parents[2]
LONG = f"{'a' * 20}-{'B' * 19}"


def rendered(plural: str, name: str = "example", distribution: str | None = None) -> dict[str, str]:
    return render(names_of(KINDS[plural], name, distribution))


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path / "src")
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "miles_example"]:
        del sys.modules[name]


@pytest.mark.parametrize("plural", KINDS)
def test_the_entry_point_names_a_plugin_of_its_kind_and_the_readme_its_options(plural: str, importable: Path) -> None:
    files = rendered(plural)
    write(files, importable)
    importlib.invalidate_caches()
    project = tomllib.loads(files["pyproject.toml"])["project"]
    ((group, entries),) = project["entry-points"].items()
    assert (group, list(entries)) == (f"miles.{plural}", ["example"])
    hub = Hub.discover()
    ref = PluginRef(plural, "example", entries["example"], "miles-example", "0.1.0")
    model = hub.config_model(ref)
    snippet = tomllib.loads(files["README.md"].split("```toml\n")[1].split("```")[0])
    if plural == "model_bridges":
        assert model is None
        return
    options = PluginTable.model_validate(_table(snippet, KINDS[plural].table)).options
    assert options
    assert hub.configure(plural, ref, options) == model.model_validate(options)
    assert all(field.description for field in model.model_fields.values())


@pytest.mark.parametrize("name", ["example", LONG])
@pytest.mark.parametrize("plural", KINDS)
def test_what_is_written_is_as_ruff_formats_it_and_finds_nothing_in_it(plural: str, name: str, tmp_path: Path) -> None:
    write(rendered(plural, name, "acme-kit"), tmp_path)
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or pytest.skip("ruff is not installed")
    config = ["--config", str(ROOT / "pyproject.toml")]
    ours = [*config, "--config", f"src = ['{tmp_path / 'src'}']"]  # the package is its author's first party
    for command in (["check", "--no-cache", *ours], ["format", "--no-cache", "--diff", *config]):
        done = subprocess.run([ruff, *command, str(tmp_path)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_templates_leave_nothing_unfilled_and_every_kind_has_three() -> None:
    templates = {path.name for path in (ROOT / "miles_core/scaffold/templates/kinds").iterdir()}
    assert templates == {f"{plural}{suffix}.jinja" for plural in KINDS for suffix in (".py", ".test.py", ".toml")}
    for plural in KINDS:
        for path, text in rendered(plural).items():
            assert "{%" not in text, path
            assert "{{" not in text or path.endswith("test.yml"), path


@pytest.mark.parametrize("plural", KINDS)
def test_the_test_runs_the_suite_of_its_kind_where_there_is_one(plural: str) -> None:
    files = rendered(plural, "suite")  # a name that must not be taken for one
    test = files["tests/test_suite.py"]
    assert re.findall(r"from miles_core.testing import (\w+)", test) == ([SUITES[plural]] if plural in SUITES else [])
    assert ("runs the rules of the plugin's kind" in files["README.md"]) == (plural in SUITES)


@pytest.mark.parametrize(
    ("plural", "name", "class_name"),
    [
        ("environments", "task", "TaskEnvironment"),
        ("environments", "step", "StepEnvironment"),
        ("filters", "config", "ConfigFilter"),
        ("losses", "none", "NoneLoss"),
        ("trackers", "exception", "ExceptionTracker"),
        ("reward_models", "task", "Task"),
        ("environments", "guess", "Guess"),
    ],
)
def test_the_class_hides_no_name_that_its_module_uses(plural: str, name: str, class_name: str) -> None:
    files = rendered(plural, name)
    tree = ast.parse(files[f"src/miles_{name}/{name}.py"])
    assert [node.name for node in tree.body if isinstance(node, ast.ClassDef)] == [class_name]
    assert f".{name}:{class_name}" in files["pyproject.toml"]


def test_an_author_is_quoted_as_toml() -> None:
    files = render(names_of(KINDS["filters"], "example"), 'Ann "A" Böhm \\ <ann@example.org>')
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["authors"] == [{"name": 'Ann "A" Böhm \\', "email": "ann@example.org"}]


@pytest.mark.parametrize("author", ["", "<>", "Ann <ann>", "Ann > <a@b>", "Ann\nx = 1"])
def test_an_author_that_is_none_is_refused(author: str) -> None:
    with pytest.raises(PluginError, match="an author is"):
        render(names_of(KINDS["filters"], "example"), author)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.1.0", "miles-hub>=0.1,<0.2"),
        ("0.12.3", "miles-hub>=0.12,<0.13"),
        ("1.4.2", "miles-hub>=1.4,<2"),
        ("0.2.0rc1", "miles-hub>=0.2.0rc1,<0.3"),
        ("2.0.0.dev3+local", "miles-hub>=2.0.0.dev3,<3"),
    ],
)
def test_the_package_asks_for_a_version_that_it_was_written_for(version: str, expected: str) -> None:
    assert requirement(version) == expected


def test_nothing_is_written_over_something(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(PluginError, match="exists; a package is never written over another"):
        write({"README.md": "theirs"}, tmp_path)
    with pytest.raises(PluginError, match="exists"):
        write({"README.md": "theirs"}, tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PluginError, match="cannot be written"):
        write({"README.md": ""}, tmp_path / "file" / "package")


def _table(snippet: dict[str, object], table: str) -> dict[str, object]:
    """The table of a config that the kind names, such as ``[[router.middleware]]``."""
    found: object = snippet
    for key in table.strip("[]").split("."):
        assert isinstance(found, dict)
        found = found[key]
    return found[0] if isinstance(found, list) else found  # type: ignore[return-value]
