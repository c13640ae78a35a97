from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from miles_core.cli.main import main
from miles_core.kinds import KINDS


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exited:
        main(["plugins", "new", *map(str, arguments)])
    return int(exited.value.code or 0)


def test_it_says_what_it_made_and_what_to_type_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reward_model", "short", "--path", tmp_path / "new folder", "--author", "Ann <ann@example.org>") == 0
    said, warned = capsys.readouterr()
    folder = tmp_path / "new folder" / "miles-short"
    made = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    head, *rest = said.splitlines()
    assert head == f"made the reward model 'short' in {folder}:"
    assert rest == [
        *(f"  {path}" for path in made),
        "next:",
        f"  pip install -e '{folder}[test]'",
        f"  pytest '{folder}'",
        "  miles plugins check miles-short/short",
    ]
    assert not warned
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["authors"] == [{"name": "Ann", "email": "ann@example.org"}]


def test_a_name_that_others_offer_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reward_model", "exact_match", "--path", tmp_path) == 0
    warning = "warning: miles-hub offers a reward model 'exact_match' too: where both are installed, "
    assert capsys.readouterr().err == f"{warning}config files must write miles-exact-match/exact_match\n"


def test_a_bridge_that_is_called_like_no_architecture_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("model_bridge", "mine", "--path", tmp_path) == 0
    assert "'mine' is no architecture" in capsys.readouterr().err
    assert run("model_bridge", "Qwen2ForCausalLM", "--path", tmp_path) == 0
    assert not capsys.readouterr().err


def test_a_second_package_of_the_same_name_is_refused_and_the_first_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("filter", "easy", "--path", tmp_path) == 0
    code = tmp_path / "miles-easy/src/miles_easy/easy.py"
    code.write_text("# mine\n")
    assert run("loss", "easy", "--path", tmp_path) == 1
    assert "miles-easy exists" in capsys.readouterr().err
    assert code.read_text() == "# mine\n"


def test_a_mistake_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["rewardmodel", "x"], ["filter", "1x"], ["filter", "x", "--distribution", "numpy"]):
        assert run(*wrong, "--path", tmp_path) == 1
    assert "Did you mean 'reward_model'?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_help_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    said = capsys.readouterr().out
    for kind in KINDS.values():
        assert kind.singular.replace(" ", "_") in said
