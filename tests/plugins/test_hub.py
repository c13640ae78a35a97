from __future__ import annotations

import pytest

from miles_core.api import PluginContext
from miles_core.config.schema import RewardTable
from miles_core.config.serving import EngineTable
from miles_core.config.tables import PluginTable
from miles_core.errors import ConfigError, DataError, PluginError

SOURCE = '''
from pydantic import BaseModel, Field, model_validator

from miles_core.api import DataError


class Judge:
    """Asks a judge."""

    class Config(BaseModel, extra="forbid"):
        threshold: float = Field(0.5, description="what counts as right")
        model: str

    scope = "sample"

    def __init__(self, config, context):
        self.config, self.context = config, context

    async def score(self, items): ...


class Bare(Judge):
    Config = None


class Greedy(Judge):
    class Config(BaseModel):
        weight: float = 1.0


class Lax(Judge):
    class Config(BaseModel):
        threshold: float = 0.5


class Open(Judge):
    class Config(BaseModel, extra="allow"):
        pass


class Crashing(Judge):
    class Config(BaseModel):
        @model_validator(mode="before")
        @classmethod
        def crash(cls, options):
            return options["no such key"]


class NotPydantic(Judge):
    class Config:
        pass


class Fails(Bare):
    def __init__(self, config, context):
        raise ValueError("no network")


class NoData(Bare):
    def __init__(self, config, context):
        raise DataError("no file", remedy="make one")


class Late:
    scope: str

    def __init__(self, config, context): ...

    async def score(self, items): ...


class Choosing(Late):
    def __init__(self, config, context):
        self.scope = "step"


class Wrapping(Late):
    scope = "group"

    def __init__(self, config, context):
        self.score = lambda: []


class Layer:
    def __init__(self, app, config, context):
        self.app, self.config, self.context = app, config, context

    async def __call__(self, scope, receive, send): ...


class Engine:
    class Config(BaseModel):
        count: int = 1

    weight_updates = "miles"

    def __init__(self, config, context): ...

    def command(self, model_path, *, index, config_path): ...
'''

CONTEXT = PluginContext(seed=3)
REWARDS = "reward_models"
NAMES = (
    "Judge",
    "Bare",
    "Greedy",
    "Lax",
    "Open",
    "Crashing",
    "NotPydantic",
    "Fails",
    "NoData",
    "Late",
    "Choosing",
    "Wrapping",
)


@pytest.fixture
def hub(site):
    groups = {
        "miles.reward_models": {name.lower(): f"kit_mod:{name}" for name in NAMES},
        "miles.router_middlewares": {"layer": "kit_mod:Layer"},
        "miles.engines": {"engine": "kit_mod:Engine"},
    }
    site.install("kit", "1.0", groups)
    site.module("kit_mod", SOURCE)
    return site.hub()


def test_build_makes_the_plugin_with_its_config_and_context(hub):
    table = RewardTable(use="judge", name="right", weight=2.0, threshold=0.75, model="tiny")
    judge = hub.build(REWARDS, table, CONTEXT)
    assert judge.config.model_dump() == {"threshold": 0.75, "model": "tiny"}
    assert judge.context is CONTEXT


def test_a_middleware_wraps_the_app(hub):
    app = object()
    layer = hub.build("router_middlewares", PluginTable(use="layer"), CONTEXT, app)
    assert (layer.app, layer.config, layer.context) == (app, None, CONTEXT)


def test_configure_takes_a_reference_or_a_name_and_options(hub):
    ref = hub.resolve(REWARDS, "judge")
    options = {"model": "tiny"}
    assert hub.configure(REWARDS, ref, options) == hub.configure(REWARDS, "judge", options)


def test_a_mistyped_option_names_table_plugin_nearest_and_known_keys(hub):
    with pytest.raises(ConfigError) as caught:
        hub.configure(REWARDS, "judge", {"treshold": 0.5, "model": 3})
    text = caught.value.message
    for part in ("[[rewards]]", 'use = "judge"', "kit 1.0", "treshold: unknown key; did you mean 'threshold'?"):
        assert part in text
    assert "known keys: threshold, model" in text
    assert "model: expected text; got 3" in text


def test_a_config_that_forgot_to_forbid_extra_keys_still_refuses_typos(hub):
    with pytest.raises(ConfigError, match="did you mean 'threshold'"):
        hub.configure(REWARDS, "lax", {"treshold": 0.5})
    assert hub.configure(REWARDS, "lax", {"threshold": 0.25}).threshold == 0.25


def test_all_mistakes_are_listed_once_each(hub):
    with pytest.raises(ConfigError) as caught:
        hub.configure(REWARDS, "lax", {"treshold": 0.5, "threshold": "high"})
    assert caught.value.message.count("treshold: unknown") == 1
    assert "threshold: expected number" in caught.value.message


def test_a_config_may_take_any_key_on_purpose(hub):
    assert hub.configure(REWARDS, "open", {"anything": 1}).anything == 1


def test_a_plugin_without_config_takes_no_options(hub):
    assert hub.configure(REWARDS, "bare", {}) is None
    with pytest.raises(ConfigError, match=r"unknown keys threshold; .*takes no options"):
        hub.configure(REWARDS, "bare", {"threshold": 0.5})


def test_keys_of_the_host_may_not_be_declared(hub):
    with pytest.raises(PluginError, match="declares weight, which belongs to the host"):
        hub.configure(REWARDS, "greedy", {})
    with pytest.raises(PluginError, match="declares count"):
        hub.configure("engines", EngineTable(use="engine"))


def test_a_config_that_is_no_pydantic_model_is_refused(hub):
    with pytest.raises(PluginError, match="Config of reward model 'notpydantic'"):
        hub.configure(REWARDS, "notpydantic", {})


def test_a_config_whose_validator_crashes_is_attributed(hub):
    with pytest.raises(
        PluginError, match=r"reward model 'crashing' .*kit 1.0.*its Config failed: KeyError: 'no such key'"
    ):
        hub.configure(REWARDS, "crashing", {})


def test_a_factory_that_fails_is_attributed_with_its_cause(hub):
    with pytest.raises(PluginError, match=r"reward model 'fails' .*kit 1.0.*ValueError: no network") as caught:
        hub.create(REWARDS, "fails", None, CONTEXT)
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_of_miles_keeps_its_type_and_is_attributed_in_a_note(hub):
    with pytest.raises(DataError, match="no file") as caught:
        hub.create(REWARDS, "nodata", None, CONTEXT)
    assert "kit_mod:NoData" in caught.value.__notes__[0]


def test_an_object_that_never_got_a_declared_member_is_refused(hub):
    with pytest.raises(PluginError, match="made an object without scope"):
        hub.create(REWARDS, "late", None, CONTEXT)


def test_an_object_is_held_to_what_its_init_set(hub):
    with pytest.raises(PluginError, match="scope = 'step'; this version runs 'sample' or 'group'"):
        hub.create(REWARDS, "choosing", None, CONTEXT)
    with pytest.raises(PluginError, match="'wrapping' .*score is called as score"):
        hub.create(REWARDS, "wrapping", None, CONTEXT)
