"""The page about slime and Miles: its functions run, its names are those of the adapter, its options exist."""

from __future__ import annotations

import re
import sys
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from miles_core.adapters.slime.arguments import FIXED, FROM_CONFIG, arguments
from miles_core.config.load import load_config
from miles_core.kinds import PluginContext
from miles_core.plugins.functions.episode import load_episode_function
from miles_core.plugins.hub import Hub
from miles_core.plugins.lifecycle import hookspecs
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.testing.builders import make_group, make_task, make_trajectory
from miles_core.types import Message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Document

DERIVED = {
    "global_batch_size",
    "over_sampling_batch_size",
    "colocate",
    "save",
    "sglang_router_ip",
    "sglang_router_port",
}


@pytest.fixture
def hub(migrating: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that can import the page's modules."""
    files = migrating.files("python")
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Hub.discover()
    for name in files:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.fixture
def built(migrating: Document, hub: Hub, root: Path) -> dict[str, Any]:
    """The plugins that the page's first command line names, by function, as a run makes them."""
    words = migrating.commands()[0]
    config = load_config(root / words[1], migrating.overrides(words)).config
    context = PluginContext(services={"config": config.model_dump(mode="json")})
    tables = [("environments", config.environments), ("reward_models", config.rewards), ("filters", config.filters)]
    return {table.use: hub.build(kind, table, context) for kind, found in tables for table in found}


@pytest.mark.anyio
async def test_the_reward_of_the_page_scores(built: dict[str, Any]) -> None:
    task = make_task("value of c?", "7")
    (reward,) = await built["my_slime:custom_rm"].score([make_trajectory("get c", "7", task=task)])
    assert reward.value == pytest.approx(0.05)


def test_the_filters_of_the_page_judge(built: dict[str, Any]) -> None:
    assert not built["my_slime:any_difference"].keep(make_group(1.0, 1.0)).keep
    assert built["my_slime:any_difference"].keep(make_group(1.0, 0.0)).keep
    assert not built["my_slime:drop_short"].keep(make_trajectory("a", length=5)).keep
    assert built["my_slime:drop_short"].keep(make_trajectory("a", length=6)).keep


@pytest.mark.anyio
async def test_the_environment_of_the_page_plays(built: dict[str, Any]) -> None:
    runner = EnvironmentRunner(built["my_slime:build_env"], "tool", 5.0)
    assert await runner.reset(make_task(label="7"), 0) is None
    step = await runner.step(Message("assistant", "get c"))
    assert await runner.message(step.observation) == Message("tool", "7")
    assert (await runner.step(Message("assistant", "7"))).done
    await runner.close()


@pytest.mark.anyio
async def test_the_generate_function_of_the_page_loads_and_its_reward_scores(
    hub: Hub, migrating: Document, root: Path
) -> None:
    words = migrating.commands()[1]
    config = load_config(root / words[1], migrating.overrides(words)).config
    assert config.rollout.generate is not None
    assert callable(load_episode_function(config.rollout.generate, {}))
    reward = hub.build("reward_models", config.rewards[0], PluginContext())
    task = make_task("value of c?")
    scores = [await reward.score([make_trajectory(call, task=task)]) for call in ("get c", "get d")]
    assert [score.value for (score,) in scores] == [1.0, 0.0]


def test_each_toml_snippet_is_the_set_line_beside_it(migrating: Document, root: Path) -> None:
    for words, block in zip(migrating.commands()[:2], migrating.blocks("toml"), strict=True):
        config = load_config(root / words[1], migrating.overrides(words)).config.model_dump()
        for key, value in tomllib.loads(block).items():
            found = config[key]
            pairs = zip(value, found, strict=True) if isinstance(value, list) else [(value, found)]
            for wanted, got in pairs:
                assert wanted.items() <= got.items()


def test_the_table_of_arguments_names_exactly_what_args_has(migrating: Document) -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| (.*) \|$", _section(migrating, "`args`"), re.MULTILINE)
    values = {name: value for names, value in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(values) == {*FROM_CONFIG, *FIXED, *DERIVED}
    for name, key in FROM_CONFIG.items():
        assert values[name].startswith(f"`{key}`"), name
    constants = {name: value for name, value in values.items() if value in ("false", "empty", "1.0, -1")}
    spelled = {"false": (False,), "empty": ({},), "1.0, -1": (1.0, -1)}
    for name, value in constants.items():
        assert FIXED[name] in spelled[value], name
    assert {name for name, value in FIXED.items() if value is None} == {
        name for name, value in values.items() if value.startswith("`None`")
    }


def test_every_name_that_the_table_promises_is_there_in_a_run(migrating: Document, root: Path, tmp_path: Path) -> None:
    config = load_config(root / "examples/quickstart/config.toml", []).config.model_dump(mode="json")
    services = {"config": config, "router_url": "http://127.0.0.1:1", "base_dir": root}
    args = arguments(PluginContext(run_dir=tmp_path, services=services), {})
    assert set(vars(args)) == {*FROM_CONFIG, *FIXED, *DERIVED}


def test_the_options_of_plugins_that_the_page_names_exist(migrating: Document, hub: Hub) -> None:
    named = {
        ("advantage_estimators", "grpo"): ["divide_by_std"],
        ("losses", "ppo_clip"): ["clip_low", "clip_high", "kl_coefficient"],
        ("engines", "sglang"): ["tp_size", "urls", "args"],
        ("data_sources", "jsonl"): ["path", "columns", "shuffle"],
    }
    for (kind, name), options in named.items():
        model = hub.config_model(hub.resolve(kind, name))
        assert model is not None
        for option in options:
            assert f"`{option}" in migrating.text
            assert option in model.model_fields


def test_every_hook_that_the_page_names_exists(migrating: Document) -> None:
    hooks = set(re.findall(r"`(miles_[a-z_]+)`", migrating.text))
    assert len(hooks) == 7
    assert all(hasattr(hookspecs, hook) for hook in hooks)


def test_the_fields_that_the_page_names_are_those_of_sample(migrating: Document) -> None:
    from miles_core.adapters.slime.sample import Sample

    named = set(re.findall(r"`([a-z_]+)`", _section(migrating, "`sample`")))
    assert named <= set(vars(Sample()))
    assert len(named) > 10


def _section(page: Document, title: str) -> str:
    text: str = page.text
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
