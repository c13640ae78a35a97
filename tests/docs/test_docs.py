"""The documents say what is true: links, commands, config keys, metric names, and a snippet that loads a model."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel

from miles_core.cli.main import app
from miles_core.config.load import load_config
from miles_core.config.schema import Config
from miles_core.config.tables import PluginTable
from miles_core.plugins.hub import Hub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Document

METRIC = re.compile(r"(rollout|session|data|train|replay|weights|eval|perf)/[a-z_@/<>]+")
KINDS = {"engine": "engines", "train": "train_backends", "weights": "weight_transports", "data": "data_sources"}


def test_every_relative_link_leads_to_a_file(document: Document) -> None:
    assert [file for file, _ in _relative_links(document) if not (document.path.parent / file).is_file()] == []


def test_every_link_into_a_page_leads_to_a_heading(document: Document) -> None:
    for file, anchor in _relative_links(document):
        if anchor and file.endswith(".md"):
            headings = re.findall(r"^#+ (.+)$", (document.path.parent / file).read_text("utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_every_path_of_the_source_that_a_document_names_exists(document: Document, root: Path) -> None:
    named = set(re.findall(r"`((?:miles_core|docs|examples|tests)/[\w./-]+)`", document.text))
    named |= {
        f"miles_core/{path}" for path in re.findall(r"`((?:app|rollout|train|weights|types)/\w+\.py)`", document.text)
    }
    assert [path for path in sorted(named) if not (root / path).exists()] == []


def test_the_readme_is_short(readme: Document) -> None:
    assert len(readme.text.splitlines()) < 150


def test_every_command_line_is_one_that_miles_takes(document: Document) -> None:
    for words in document.commands():
        if "--help" not in words:
            app.parse_args(words, exit_on_error=False, print_error=False)


def test_there_are_commands_to_check(readme: Document, first_plugin: Document) -> None:
    assert ["plugins", "list"] in readme.commands()
    assert any("my_environments:Strict" in " ".join(words) for words in first_plugin.commands())


def test_every_make_target_is_in_the_makefile(document: Document, root: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (root / "Makefile").read_text("utf-8"), re.MULTILINE))
    asked = set(re.findall(r"^make ([\w-]+)", "\n".join(document.blocks("")), re.MULTILINE))
    assert asked <= targets


def test_every_set_of_a_train_command_fits_the_quickstart(document: Document, root: Path) -> None:
    for words in document.commands():
        if words[0] == "train" and words[1].startswith("examples/"):
            load_config(root / words[1], document.overrides(words))


def test_every_form_of_set_in_the_config_page_fits_the_quickstart(config: Document, root: Path) -> None:
    forms = [cell.removeprefix("--set ") for cell in config.table_cells() if cell.startswith("--set ")]
    assert len(forms) >= 5
    for form in forms:
        load_config(root / "examples/quickstart/config.toml", [form])


def test_every_config_key_in_a_table_or_a_sentence_is_in_the_schema(document: Document) -> None:
    known = set(_schema_keys(Config)) | set(_plugin_keys())
    tables = "|".join(Config.model_fields)
    named = set(re.findall(rf"`((?:{tables})\.[a-z_.]+[a-z])(?: = [^`]+)?`", document.text))
    files = {name for name in named if name.endswith((".json", ".jsonl", ".toml", ".py", ".lock"))}
    assert sorted(named - files - known) == []


def test_the_config_page_lists_every_table_and_every_required_key(config: Document) -> None:
    cells = config.table_cells()
    tables = {cell.strip("[]") for cell in cells if cell.startswith("[")}
    assert tables == set(Config.model_fields)
    required = {key for key, is_required in _required_keys() if is_required}
    assert required <= set(cells)


def test_the_metrics_page_lists_exactly_the_metrics_that_the_code_writes(runs: Document, root: Path) -> None:
    documented = {cell for cell in runs.table_cells() if METRIC.fullmatch(cell)}
    assert documented == set(_written_metrics(root))


def test_the_loading_snippet_loads_a_checkpoint(runs: Document, root: Path, tmp_path: Path) -> None:
    save = (
        "import sys, torch, transformers as t; torch.manual_seed(1); model, to = sys.argv[1:];"
        "t.Qwen3MoeForCausalLM(t.AutoConfig.from_pretrained(model)).save_pretrained(to);"
        "t.AutoTokenizer.from_pretrained(model).save_pretrained(to)"
    )
    model = root / "examples/quickstart/model"
    snippet, count = re.subn(r'"runs/[^"]+"', repr(str(tmp_path)), runs.blocks("python")[0])
    assert count == 1
    script = f"import sys\nsys.argv = ['', {str(model)!r}, {str(tmp_path)!r}]\nexec({save!r})\n{snippet}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip("\n")


def _relative_links(document: Document) -> list[tuple[str, str]]:
    """File and anchor of each link; a link within the page has the page's own name."""
    links = re.findall(r"\]\(([^)]+)\)", document.text)
    parted = [link.partition("#") for link in links if "://" not in link]
    return [(file or document.path.name, anchor) for file, _, anchor in parted]


def _schema_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for inner in _models(field.annotation):
            yield from _schema_keys(inner, f"{prefix}{name}.")


def _required_keys() -> Iterator[tuple[str, bool]]:
    for name, field in Config.model_fields.items():
        for inner in _models(field.annotation) if field.is_required() else ():
            for key, inner_field in inner.model_fields.items():
                yield f"{name}.{key}", inner_field.is_required()


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _plugin_keys() -> Iterator[str]:
    """Options of the built-in plugins of tables that name one plugin, such as ``engine.threads``."""
    hub = Hub.discover()
    for table, kind in KINDS.items():
        assert issubclass(_models(Config.model_fields[table].annotation)[0], PluginTable)
        for ref in hub.refs(kind):
            model = hub.config_model(ref)
            yield from (f"{table}.{key}" for key in (model.model_fields if model else ()))


def _written_metrics(root: Path) -> Iterator[str]:
    """Metric names in the source: whole texts, and texts with a blank such as ``rollout/dropped/{reason}``."""
    for package in ("miles_core", "miles_plugins"):
        for path in (root / package).rglob("*.py"):
            if not {"cli", "report"}.intersection(path.parts):  # these read metrics
                tree = ast.parse(path.read_text("utf-8"))
                yield from _metrics_of(tree, losses=path.parent.name == "losses")


def _metrics_of(tree: ast.AST, *, losses: bool) -> Iterator[str]:
    blanks = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in blanks:
            if METRIC.fullmatch(node.value):
                yield node.value
        elif isinstance(node, ast.JoinedStr) and (name := _with_blank(node)):
            yield name
        elif losses and isinstance(node, ast.Dict):
            yield from (f"train/{key.value}" for key in node.keys if isinstance(key, ast.Constant))
        elif losses and isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield from [f"train/{node.slice.value}"] if ast.unparse(node.value) == "metrics" else []


def _with_blank(node: ast.JoinedStr) -> str | None:
    match node.values:
        # `train/{name}` is the losses' own, which are listed by name
        case [ast.Constant(value=str(text)), ast.FormattedValue(value=blank)] if METRIC.fullmatch(f"{text}x"):
            name = {"trajectory.stop_reason": "reason"}.get(ast.unparse(blank), ast.unparse(blank))
            name = "phase" if text == "perf/phase/" else name
            return None if text == "train/" else f"{text}<{name}>"
    return None
