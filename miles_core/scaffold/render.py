"""From names to the files of a package."""

from __future__ import annotations

import ast
import builtins
import json
import re
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from packaging.version import Version

from miles_core import __version__
from miles_core.errors import PluginError
from miles_core.testing import SUITES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Environment

    from miles_core.scaffold.names import Names

_TEMPLATES = Path(__file__).parent / "templates"


def render(names: Names, author: str | None = None) -> dict[str, str]:
    """The package's files: path below its folder to text.

    ``author`` is a name, or ``name <address>``.
    """
    kind, templates = names.kind, _environment()
    skeleton, test = f"kinds/{kind.plural}.py", f"kinds/{kind.plural}.test.py"
    names = _apart(names, _source(skeleton))
    facts = {
        "names": names,
        "kind": kind,
        "a_kind": f"{'an' if kind.singular[0] in 'aeiou' else 'a'} {kind.singular}",
        "author": _author(author),
        "requirement": requirement(__version__),
        "suite": kind.plural in SUITES,
    }

    def rendered(template: str) -> str:
        return templates.get_template(f"{template}.jinja").render(facts)

    facts["config"] = rendered(f"kinds/{kind.plural}.toml").rstrip()
    files = {
        ".github/workflows/test.yml": "package/workflow.yml",
        ".gitignore": "package/gitignore",
        "README.md": "package/README.md",
        "pyproject.toml": "package/pyproject.toml",
        f"src/{names.package}/__init__.py": "package/init.py",
        f"src/{names.package}/{names.module}.py": skeleton,
        f"src/{names.package}/py.typed": "package/py.typed",
        f"tests/test_{names.module}.py": test,
    }
    return {path: rendered(template) for path, template in files.items()}


def write(files: Mapping[str, str], folder: Path) -> None:
    """Write a package into ``folder``, which must be new or empty.

    Raises:
        PluginError: if it holds something, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise PluginError(
                f"{folder} exists; a package is never written over another",
                remedy="Give another --path or --distribution, or remove it.",
            )
        for path, text in files.items():
            file = folder / PurePosixPath(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
    except OSError as error:
        raise PluginError(
            f"{folder} cannot be written: {error}", remedy="Give a --path to a folder that is yours."
        ) from error


def requirement(version: str) -> str:
    """What a package written for this version depends on; before 1.0 a minor version may break it.

    >>> requirement("0.3.1")
    'miles-hub>=0.3,<0.4'
    """
    parsed = Version(version)
    lowest = parsed.public if parsed.is_prerelease else f"{parsed.major}.{parsed.minor}"
    next_one = f"{parsed.major + 1}" if parsed.major else f"0.{parsed.minor + 1}"
    return f"miles-hub>={lowest},<{next_one}"


def _apart(names: Names, template: str) -> Names:
    """The names with a class that hides nothing that its module uses: an environment ``task`` is no ``Task``."""
    tree = ast.parse(re.sub(r"\{\{.*?\}\}", "x", template))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.name for node in ast.walk(tree) if isinstance(node, ast.alias | ast.ClassDef)}
    if names.class_name not in used and not hasattr(builtins, names.class_name):
        return names
    kind = "".join(word.capitalize() for word in names.kind.singular.split())
    return replace(names, class_name=f"{names.class_name}{kind}")


def _author(text: str | None) -> str | None:
    """An inline table of ``[project] authors``."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(?P<name>[^<>\n\r]*?)\s*(<(?P<email>[^<>\s]+@[^<>\s]+)>)?\s*", text)
    keys = {key: value for key, value in match.groupdict().items() if value} if match else {}
    if not keys:
        raise PluginError(f"an author is 'Name' or 'Name <address>'; got {text!r}", remedy="Correct --author.")
    return ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items())


def _source(template: str) -> str:
    return (_TEMPLATES / f"{template}.jinja").read_text("utf-8")


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # here: other commands never need it

    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - what comes out is Python and TOML, not HTML
    )
