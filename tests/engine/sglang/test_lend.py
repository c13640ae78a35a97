"""Our packages in the environment of a server that has them not, or has others of the same name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from miles_core.engine.sglang.lend import lend, lent_environment

LOOK = """
import importlib.metadata, json, miles_core
found = importlib.metadata.entry_points(group="sglang.srt.plugins")
named = importlib.metadata.entry_points(group="miles.weight_transports")
print(json.dumps([[f"{e.name} = {e.value}" for e in found], [e.name for e in named], miles_core.__file__]))
"""


def look(folder: Path, site: Path | None = None) -> tuple[list[str], list[str], str]:
    """What a program finds; ``site`` comes behind the lent folder, as installed packages do."""
    environment = lent_environment(folder, {} if site is None else {"PYTHONPATH": str(site)})
    told = subprocess.run(
        [sys.executable, "-S", "-c", LOOK], env=environment, cwd=folder, capture_output=True, check=True
    )
    plugins, transports, file = json.loads(told.stdout)
    return plugins, transports, file


def test_a_program_without_our_package_finds_plugin_transports_and_code(tmp_path: Path) -> None:
    lend(tmp_path / "lent")
    plugins, transports, file = look(tmp_path / "lent")
    assert plugins == ["miles = miles_core.app.sglang_receiver:install"]
    assert {"disk", "memory"} <= set(transports)
    assert file.startswith(str(tmp_path / "lent"))


def test_of_two_versions_of_ours_the_lent_one_is_found_and_only_it(tmp_path: Path) -> None:
    info = tmp_path / "site" / "miles_hub-0.0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: miles-hub\nVersion: 0.0.1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nmiles = old:install\n")
    lend(tmp_path / "lent")
    plugins, _, _ = look(tmp_path / "lent", tmp_path / "site")
    assert plugins == ["miles = miles_core.app.sglang_receiver:install"]


def test_plugins_that_the_user_chose_stay_chosen_and_ours_joins_them(tmp_path: Path) -> None:
    assert lent_environment(tmp_path, {"SGLANG_PLUGINS": "mine,other"})["SGLANG_PLUGINS"] == "mine,other,miles"
    assert "SGLANG_PLUGINS" not in lent_environment(tmp_path, {})


def test_the_users_own_path_stays_behind_ours(tmp_path: Path) -> None:
    assert lent_environment(tmp_path, {"PYTHONPATH": "/mine"})["PYTHONPATH"] == f"{tmp_path}:/mine"
