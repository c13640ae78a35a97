"""The plugins of the documents work: loaded from the text, through the hub."""

from __future__ import annotations

import logging
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from miles_core.api import ConfigError, Group, Message, PluginContext, PluginError, Reward, Status, Task, Trajectory
from miles_core.config.load import load_config
from miles_core.errors import PluginNotFound
from miles_core.kinds import KINDS
from miles_core.lib.calls import call
from miles_core.plugins import PluginRef
from miles_core.plugins.hub import Hub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Document

TASK = Task("c3", (Message("user", "value of c?"),), label="3")


@pytest.fixture
def hub(first_plugin: Document, readme: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that can import the documents' plugins as a user's modules."""
    files = {**readme.files("python"), **first_plugin.files("python")}
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield Hub.discover()
    for name in files:
        sys.modules.pop(name.removesuffix(".py"), None)


def make(hub: Hub, kind: str, use: str, app: Any = None, **options: Any) -> Any:
    return hub.create(kind, use, hub.configure(kind, use, options), PluginContext(), app)


def trajectory(*turns: str, reward: float = 0.0) -> Trajectory:
    messages = [message for turn in turns for message in (Message("assistant", turn), Message("tool", "3"))]
    return Trajectory("t", TASK, (*TASK.messages, *messages[:-1]), (), Status.COMPLETED, Reward(reward))


def test_the_readme_and_the_page_show_the_same_reward(readme: Document, first_plugin: Document) -> None:
    assert readme.files("python")["my_rewards.py"] == first_plugin.files("python")["my_rewards.py"]


def test_a_plugin_of_the_page_is_as_short_as_it_says(first_plugin: Document) -> None:
    for name, text in first_plugin.files("python").items():
        code = [line for line in text.splitlines() if line and not line.startswith(("#", "import", "from"))]
        assert len(code) <= 20, name


@pytest.mark.anyio
async def test_the_reward_pays_for_the_right_key_only(hub: Hub) -> None:
    reward = make(hub, "reward_models", "my_rewards:right_key")
    scores = await call(reward.score, [trajectory("get c", "3"), trajectory("get a", "3"), trajectory("3")])
    assert [score.value for score in scores] == [1.0, 0.0, 0.0]


def test_the_filter_drops_groups_that_are_nearly_solved_with_its_name_as_reason(hub: Hub) -> None:
    judge = make(hub, "filters", "my_filters:not_too_easy")

    def group(*rewards: float) -> Group:
        return Group("g", 0, TASK, tuple(trajectory("get c", "3", reward=reward) for reward in rewards))

    assert judge.keep(group(1, 1, 0)).keep
    assert not judge.keep(group(1, 1, 1)).keep
    assert judge.keep(group(1, 1, 1)).reason == "not_too_easy"


def test_the_environment_answers_the_right_key_and_refuses_others(hub: Hub) -> None:
    environment = make(hub, "environments", "my_environments:Strict", refusal="no")
    environment.reset(TASK, seed=0)
    answer = environment.step(Message("assistant", "get c"))
    assert (answer.observation.text, answer.observation.role, answer.done) == ("3", "tool", False)
    assert environment.step(Message("assistant", "3")).done
    environment.reset(TASK, seed=0)
    assert environment.step(Message("assistant", "get d")).observation.text == "no"
    environment.reset(TASK, seed=0)
    assert environment.step(Message("assistant", "3")).done


@pytest.mark.anyio
async def test_the_middleware_passes_requests_on_and_logs_slow_ones(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    passed = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    with caplog.at_level(logging.WARNING, "miles"):
        for seconds, kind in ((60.0, "http"), (0.0, "lifespan"), (0.0, "http")):
            middleware = make(hub, "router_middlewares", "my_middlewares:LogSlow", app, seconds=seconds)
            await middleware({"type": kind, "path": "/generate"}, None, None)
    assert passed == ["http", "lifespan", "http"]
    assert [record.getMessage().partition(" took")[0] for record in caplog.records] == ["/generate"]


def test_each_toml_snippet_is_the_set_line_beside_it(first_plugin: Document, root: Path) -> None:
    quickstart = (root / "examples/quickstart/config.toml").read_text("utf-8")
    runs = [words for words in first_plugin.commands() if words[0] == "train"]
    snippets = [tomllib.loads(block) for block in first_plugin.blocks("toml") if not block.startswith("# ")]
    assert len(runs) == len(snippets) == 4
    for words, snippet in zip(runs, snippets, strict=True):
        config = load_config(root / words[1], first_plugin.overrides(words)).config.model_dump()
        assert _contains(config, snippet)
        assert not _contains(tomllib.loads(quickstart), snippet)


def test_the_options_of_the_snippets_are_valid_and_a_typo_is_named(hub: Hub) -> None:
    with pytest.raises(ConfigError, match=r"refusl: unknown key; did you mean 'refusal'\?"):
        hub.configure("environments", "my_environments:Strict", {"refusl": "no"})


def test_the_package_s_entry_points_are_found_by_name_and_load(
    first_plugin: Document, hub: Hub, tmp_path: Path
) -> None:
    project = tomllib.loads(first_plugin.files("toml")["pyproject.toml"])["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", "utf-8"
    )
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", "utf-8")
    installed = Hub.discover(path=[str(tmp_path)])
    assert not installed.problems
    assert len(installed.refs()) == sum(len(entries) for entries in project["entry-points"].values())
    for ref in installed.refs():
        assert installed.resolve(ref.kind, f"{project['name']}/{ref.name}") == ref
        installed.load(ref)


@pytest.mark.parametrize(
    ("kind", "use", "message"),
    [
        ("reward_models", "right_keys", "no reward model is called 'right_keys'; installed: exact_match"),
        ("reward_models", "my_reward:right_key", "cannot be loaded: ModuleNotFoundError: No module named 'my_reward'"),
        ("reward_models", "my_rewards.py:right_key", "No module named 'my_rewards.py'"),
        ("reward_models", "my_rewards:right_kye", "module 'my_rewards' has no attribute 'right_kye'"),
        ("filters", "my_environments:Strict", "filter my_environments:Strict lacks stage, keep"),
        ("environments", "my_rewards:right_key", "environment my_rewards:right_key is a function"),
    ],
)
def test_the_messages_of_the_error_table_are_those_that_come(hub: Hub, kind: str, use: str, message: str) -> None:
    with pytest.raises((PluginError, PluginNotFound)) as raised:
        hub.load(hub.resolve(kind, use))
    assert message in str(raised.value)


class AsyncEstimator:
    needs = ()

    def __init__(self, config: object, context: object) -> None: ...

    async def estimate(self, step_batch: Any) -> Any: ...


class NoItems:
    scope = "sample"

    def __init__(self, config: object, context: object) -> None: ...

    async def score(self) -> Any: ...


class PerToken:
    stage = "token"

    def __init__(self, config: object, context: object) -> None: ...

    def keep(self, item: Any) -> Any: ...


@pytest.mark.parametrize(
    ("kind", "factory"),
    [("advantage_estimators", AsyncEstimator), ("reward_models", NoItems), ("filters", PerToken)],
)
def test_a_wrong_class_gets_a_message_of_the_table(first_plugin: Document, hub: Hub, kind: str, factory: type) -> None:
    with pytest.raises(PluginError) as raised:
        hub.load(PluginRef(kind, "wrong", "my_plugins:Wrong", factory=factory))
    said = [cell for cell in first_plugin.table_cells() if cell in str(raised.value)]
    assert len(said) == 1


def test_functions_are_enough_for_the_kinds_that_the_page_says(first_plugin: Document) -> None:
    rows = [line.split(" | ") for line in first_plugin.text.splitlines() if line.startswith("| ")]
    enough = {row[0].strip("| "): row[2].startswith("yes") for row in rows if len(row) == 4}
    singulars = {kind.singular: kind.adapt is not None for kind in KINDS.values()}
    said = {kind: yes for kind, yes in enough.items() if kind in singulars}
    assert len(said) == 4
    assert said == {kind: singulars[kind] for kind in said}


def _contains(whole: Any, part: Any) -> bool:
    """Whether every key of ``part`` is in ``whole`` with its value; arrays must have the same length."""
    if isinstance(part, dict):
        return all(key in whole and _contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(_contains, whole, part))
    return bool(whole == part)
