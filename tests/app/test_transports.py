"""The transports of a config: their options, what may start, and what a third party adds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from miles_core.app import serving
from miles_core.app.checks import check_run
from miles_core.app.transports import transport_names, transport_table, update_choice, usable_transports
from miles_core.app.wiring import Wiring, wire
from miles_core.config.load import LoadedConfig
from miles_core.errors import ConfigError, MilesError
from miles_core.testing.plugin import install_plugin  # noqa: F401 - a fixture
from miles_core.weights.auto_choice import AutoChoice
from miles_core.weights.choice import NamedChoice
from miles_core.weights.transport_facts import OPTIONS_VARIABLE

if TYPE_CHECKING:
    from miles_core.testing.site import Site

Quickstart = Callable[..., LoadedConfig]
PIGEON = """
import pydantic

class Pigeon:
    reach = "folder"
    why = None

    class Config(pydantic.BaseModel):
        loft: str = "here"
        level: int = 3

    def __init__(self, config, context):
        self.config = config

    @classmethod
    def unavailable(cls):
        return cls.why

    def send(self, bucket, payload): return {}
    def release(self, delivery): pass
    def receive(self, delivery, bucket, held): return b""
    def close(self): pass
"""


@pytest.fixture
def wired(quickstart: Quickstart) -> Callable[..., Wiring]:
    """``wired("weights.dir=/tmp")``: the quickstart's parts with values set."""
    return lambda *overrides: wire(quickstart(*overrides), Path())


def options(wiring: Wiring, name: str) -> dict[str, Any]:
    return dict(transport_table(wiring.hub, wiring.config.weights, name).options)


def test_under_auto_each_transport_gets_the_options_that_it_has(wired: Any) -> None:
    wiring = wired("weights.dir=/tmp", "weights.level=5")
    assert options(wiring, "disk") == {"dir": "/tmp"}
    assert options(wiring, "disk_delta") == {"dir": "/tmp", "level": 5}
    assert options(wiring, "memory") == {}


def test_servers_without_the_config_are_told_the_options_of_their_transports(wired: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(serving, "child", lambda name, argv, **given: given)
    wirings = wired("weights.level=5"), wired("weights.use=mooncake", "weights.protocol=tcp")
    auto, named = (
        json.loads(serving._launch(one, Path("run.toml"), Path("model"), 0)(print)["environment"][OPTIONS_VARIABLE])
        for one in wirings
    )
    assert (auto["disk_delta"], auto["memory"]) == ({"level": 5}, {})
    assert named == {"mooncake": {"protocol": "tcp"}}


@pytest.mark.parametrize("use", ["auto", "memory"])
def test_what_all_transports_share_stays(wired: Any, use: str) -> None:
    wiring = wired(f"weights.use={use}", "weights.bucket_bytes=77", "weights.timeout=3", "weights.patience=2")
    table = transport_table(wiring.hub, wiring.config.weights, "disk")
    assert (table.use, table.bucket_bytes, table.timeout, table.patience) == ("disk", 77, 3.0, 2.0)


def test_a_named_transport_keeps_its_options_and_others_get_none(wired: Any) -> None:
    wiring = wired("weights.use=disk", "weights.dir=/tmp")
    assert options(wiring, "disk") == {"dir": "/tmp"}
    assert options(wiring, "disk_delta") == {}


def test_an_option_that_no_transport_has_is_refused_with_those_that_there_are(wired: Any) -> None:
    with pytest.raises(ConfigError, match=r"weights\.dri is an option of no transport; they have .*\bdir\b") as caught:
        check_run(wired("weights.dri=/tmp"))
    assert "weights.use" in (caught.value.remedy or "")


@pytest.mark.parametrize("override", ["weights.level=high", "weights.protocol=carrier"])
def test_a_value_that_its_transport_cannot_take_is_refused_under_auto_too(wired: Any, override: str) -> None:
    with pytest.raises(MilesError, match=override.partition("=")[0].partition(".")[2]):
        check_run(wired(override))


def test_a_named_transport_that_cannot_be_used_here_is_refused_before_the_run(wired: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("miles_plugins.transports.mooncake.Mooncake.unavailable", lambda: "libibverbs is not installed")
    with pytest.raises(ConfigError, match="mooncake cannot be used here: libibverbs is not installed") as caught:
        check_run(wired("weights.use=mooncake"))
    assert 'weights.use = "auto"' in (caught.value.remedy or "")
    check_run(wired())  # auto does without it


@pytest.mark.parametrize("name", ["tensor", "distributed"])
def test_one_for_endpoints_of_sglang_is_refused_for_other_engines(wired: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} feeds endpoints of SGLang only, .* the engine embedded"):
        check_run(wired(f"weights.use={name}", "engine.use=embedded"))
    check_run(wired(f"weights.use={name}", "engine.use=sglang"))


def test_the_choice_is_the_named_one_or_among_all(wired: Any) -> None:
    assert isinstance(update_choice(wired("weights.use=memory")), NamedChoice)
    assert isinstance(update_choice(wired()), AutoChoice)


@pytest.mark.parametrize(("engine", "has_tensor"), [("embedded", False), ("sglang", True)])
def test_only_transports_that_fit_the_engine_are_chosen_among(wired: Any, engine: str, has_tensor: bool) -> None:
    choice: Any = update_choice(wired(f"engine.use={engine}"))
    names = {way.transport.name for way in choice._ways}
    assert {"memory", "disk", "disk_delta", "mooncake"} <= names
    assert ("tensor" in names, "distributed" in names) == (has_tensor, has_tensor)


def test_receivers_say_which_transports_they_have_and_why_not(wired: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("miles_plugins.transports.mooncake.Mooncake.unavailable", lambda: "no library")
    usable = usable_transports(wired().hub)
    assert (usable["memory"], usable["mooncake"]) == (None, "no library")
    assert not {"tensor", "distributed"} & set(usable), "receivers of ours take no pickles"


@pytest.fixture
def pigeon(install_plugin: Site) -> str:  # noqa: F811
    """A third party's transport, installed."""
    install_plugin("pigeon-post", source=PIGEON, weight_transports={"pigeon": "pigeon_post:Pigeon"})
    return "pigeon"


def test_a_third_partys_transport_takes_part(pigeon: str, wired: Any) -> None:
    wiring = wired("weights.loft=roof", "weights.level=9", "weights.dir=/tmp")
    check_run(wiring)
    assert options(wiring, pigeon) == {"loft": "roof", "level": 9}
    assert options(wiring, "disk_delta") == {"dir": "/tmp", "level": 9}, "a name that several have is for all of them"
    choice: Any = update_choice(wiring)
    (facts,) = [way.transport for way in choice._ways if way.transport.name == pigeon]
    assert (facts.reach, facts.receivers, facts.sglang_update, facts.unavailable) == ("folder", True, None, None)
    assert pigeon in usable_transports(wiring.hub)
    assert isinstance(update_choice(wired("weights.use=pigeon")), NamedChoice)


def test_one_that_does_not_load_says_why_and_stops_no_run(install_plugin: Site, wired: Any) -> None:  # noqa: F811
    install_plugin("pigeon-post", weight_transports={"pigeon": "absent_module:Pigeon"})
    wiring = wired("weights.dir=/tmp")
    assert "absent_module" in str(usable_transports(wiring.hub)["pigeon"])
    check_run(wiring)
    update_choice(wiring)


def test_of_two_with_one_name_none_takes_part(install_plugin: Site, pigeon: str, wired: Any) -> None:  # noqa: F811
    install_plugin("pigeon-two", weight_transports={"pigeon": "pigeon_post:Pigeon"})
    assert pigeon not in transport_names(wired().hub)
