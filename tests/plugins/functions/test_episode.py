"""``[rollout] generate``: functions, classes and foreign functions, each with its options checked at the start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from miles_core.config.schema import GenerateTable
from miles_core.errors import ConfigError, MilesError, PluginError, PluginNotFound
from miles_core.kinds.base import PluginContext
from miles_core.plugins.functions.episode import load_episode_function

MODULE = """
from pydantic import BaseModel, ConfigDict
number = 3

async def plain(episode, *, tries: int = 2):
    return tries

class Holding:
    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")
        tries: int = 2
    def __init__(self, config, context):
        self.tries, self.url = config.tries, context.service("router_url")
    async def __call__(self, episode):
        return self.tries, self.url

class Open(Holding):
    class Config(BaseModel):
        tries: int = 2

class Wrong(Holding):
    Config = {"tries": 2}

class Taken(Holding):
    class Config(BaseModel):
        adapter: str = ""

class Bare:
    def __init__(self, config, context): ...
    async def __call__(self, episode): return "bare"

class Failing(Bare):
    def __init__(self, config, context): raise ValueError("no key")

class Uncallable:
    def __init__(self, config, context): ...
"""
CONTEXT = PluginContext(services={"router_url": "http://router"})
pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "their_episodes.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("their_episodes", None)


async def turns(episode):
    return "turns"


def load(use: str, **options):
    return load_episode_function(GenerateTable(use=use, **options), {"turns": turns})


@pytest.mark.parametrize(
    ("use", "options", "result"),
    [
        ("turns", {}, "turns"),
        ("their_episodes:plain", {}, 2),
        ("their_episodes:plain", {"tries": 5}, 5),
        ("their_episodes:Holding", {"tries": 3}, (3, "http://router")),
        ("their_episodes:Bare", {}, "bare"),
    ],
)
async def test_functions_get_options_as_arguments_and_classes_as_their_config(use, options, result) -> None:
    assert await load(use, **options)(CONTEXT)(None) == result


@pytest.mark.parametrize(
    ("use", "options", "error", "message"),
    [
        ("trns", {}, PluginNotFound, "rollout.generate = 'trns' names no function; built in: turns"),
        ("their_episodes:plian", {}, PluginError, "Did you mean 'plain'?"),
        ("their_episodes:number", {}, PluginError, "is of type int; it must be a function"),
        ("their_episodes:plain", {"tires": 3}, ConfigError, "tires: unknown key; did you mean 'tries'"),
        ("their_episodes:Holding", {"tries": "x"}, ConfigError, "[rollout.generate] use = 'their_episodes:Holding'"),
        ("their_episodes:Open", {"tires": 3}, ConfigError, "tires: unknown key; did you mean 'tries'"),
        ("their_episodes:Wrong", {}, PluginError, "Make it a subclass of pydantic.BaseModel"),
        ("their_episodes:Taken", {}, PluginError, "declares adapter, which belongs to the host"),
        ("their_episodes:Bare", {"tries": 3}, ConfigError, "unknown keys tries; it takes no options"),
        ("their_episodes:Failing", {}, PluginError, "failed to start: ValueError: no key"),
        ("their_episodes:Uncallable", {}, PluginError, "made an object that cannot be called"),
        ("their_episodes:Bare", {"adapter": "slime"}, PluginError, "adapts functions; Bare is a class"),
    ],
)
def test_what_cannot_generate_is_refused_before_any_episode(use, options, error, message: str) -> None:
    with pytest.raises(MilesError) as raised:
        load(use, **options)(CONTEXT)
    assert type(raised.value) is error
    assert message in str(raised.value)
