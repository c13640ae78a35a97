"""Signatures are checked at load: an error shows what the plugin takes and how it is called."""

from __future__ import annotations

import pytest

from miles_core.api import PluginContext
from miles_core.errors import PluginError

INIT = "def __init__(self, config, context): ..."
REWARD = "scope = 'sample'\n    async def score(self, items): ..."


def load(site, kind: str, source: str):
    site.install("acme-kit", "1.2", {f"miles.{kind}": {"mine": "acme_mod:P"}})
    site.module("acme_mod", source)
    hub = site.hub()
    return hub, hub.resolve(kind, "mine")


def failure(site, kind: str, source: str) -> str:
    hub, ref = load(site, kind, source)
    with pytest.raises(PluginError, match=r"acme-kit 1\.2") as caught:
        hub.load(ref)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "body", "called", "takes"),
    [
        ("reward_models", REWARD, "P(config, context)", "()"),
        (
            "reward_models",
            f"{REWARD}\n    def __init__(self, config): ...",
            "P(config, context), but takes (config)",
            "(self, config, context)",
        ),
        ("reward_models", f"{REWARD}\n    def __init__(self, a, b, c): ...", "P(config, context)", "(a, b, c)"),
        (
            "router_middlewares",
            f"{INIT}\n    async def __call__(self, scope, receive, send): ...",
            "P(app, config, context), but takes (config, context)",
            "(self, app, config, context)",
        ),
        (
            "reward_models",
            f"{INIT}\n    scope = 'sample'\n    async def score(self): ...",
            "score(items), but takes (self)",
            "`def score(self, items)`",
        ),
        (
            "environments",
            f"{INIT}\n    def reset(self, task): ...\n    def step(self, response): ...\n    def close(self): ...",
            "reset(task, seed), but takes (self, task)",
            "`def reset(self, task, seed)`",
        ),
        (
            "losses",
            f"{INIT}\n    needs = ()\n    def loss(self, outputs, batch, scale): ...",
            "loss(outputs, batch), but takes (self, outputs, batch, scale)",
            "other parameters need defaults",
        ),
        (
            "engines",
            f"{INIT}\n    weight_updates = 'miles'\n    def command(self, path, index): ...",
            "command(model_path, index=..., config_path=...)",
            "`def command(self, model_path, *, index, config_path)`",
        ),
    ],
)
def test_what_cannot_be_called_is_refused_with_both_signatures(site, kind, body, called, takes) -> None:
    message = failure(site, kind, f"class P:\n    {body}\n")
    assert called in message
    assert takes in message


@pytest.mark.parametrize(
    "source",
    [
        f"class P:\n    {INIT}\n    scope = 'sample'\n    async def score(self, items, extra=1, *more, **rest): ...",
        f"class P:\n    {INIT}\n    scope = 'sample'\n    async def score(*a, **k): ...",
        f"class P:\n    {INIT}\n    scope = 'sample'\n    @staticmethod\n    async def score(items): ...",
        f"class P:\n    {INIT}\n    scope = 'sample'\n    @classmethod\n    async def score(cls, items): ...",
        f"class P:\n    {INIT}\n    scope = 'sample'\n    def score(self, items): ...",
        f"class B:\n    def __new__(cls, config, context): return super().__new__(cls)\nclass P(B):\n    {REWARD}",
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    config: object\n    context: object\n"
            f"    {REWARD}"
        ),
        f"class P(dict):\n    {REWARD}\n    def __init__(self, *args): ...",
        (
            f"class A:\n    {REWARD}\n    def __init__(self, config, context, *, k): self.k = k\n"
            "from functools import partial\nP = partial(A, k=3)"
        ),
    ],
)
def test_what_can_be_called_is_made(site, source) -> None:
    hub, ref = load(site, "reward_models", source)
    assert hub.create("reward_models", ref, None, PluginContext()).scope == "sample"


def test_a_class_with_some_arguments_given_keeps_its_config_model(site) -> None:
    source = f"""
from functools import partial
from pydantic import BaseModel

class A:
    {REWARD}
    class Config(BaseModel, extra="forbid"):
        size: int = 3
    def __init__(self, config, context, k): ...

P = partial(A, k=3)
"""
    hub, ref = load(site, "reward_models", source)
    assert hub.configure("reward_models", ref, {"size": 4}).size == 4


@pytest.mark.parametrize(
    ("kind", "function", "words"),
    [
        ("reward_models", "def P(): ...", ("called as P(trajectory)", "it takes ()")),
        ("reward_models", "def P(a, b): ...", ("called as P(trajectory)", "it takes (a, b)", "group and task by")),
        ("filters", "def P(item, limit): ...", ("called as P(item)", "it takes (item, limit)")),
        ("advantage_estimators", "def P(a, b): ...", ("called as P(step_batch)",)),
        ("losses", "def P(outputs): ...", ("called as P(outputs, batch)", "it takes (outputs)")),
        ("reward_models", "def P(t):\n    yield 1", ("is a generator",)),
        ("reward_models", "async def P(t):\n    yield 1", ("is a generator",)),
        ("filters", "class F:\n    def __call__(self): ...\nP = F()", ("called as F(item)", "it takes ()")),
    ],
)
def test_a_function_that_takes_other_arguments_is_refused(site, kind, function, words) -> None:
    message = failure(site, kind, function)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("reward_models", "def P(t, group, task): ..."),
        ("reward_models", "def P(t, *, task, more=1): ..."),
        ("reward_models", "from functools import partial\ndef f(k, t): ...\nP = partial(f, 1)"),
        ("reward_models", "class F:\n    async def __call__(self, t): ...\nP = F()"),
        ("reward_models", "P = max"),
        ("filters", "async def P(item): ..."),
        ("losses", "def P(*a): ..."),
    ],
)
def test_a_function_may_take_less_more_with_defaults_or_what_is_offered(site, kind, function) -> None:
    hub, ref = load(site, kind, function)
    assert callable(hub.load(ref))


def test_a_class_that_leaves_methods_abstract_is_refused_by_their_names(site) -> None:
    source = (
        "from abc import ABC, abstractmethod\n"
        f"class P(ABC):\n    {INIT}\n    scope = 'sample'\n    @abstractmethod\n    async def score(self, items): ..."
    )
    assert "leaves score abstract" in failure(site, "reward_models", source)


def test_the_empty_methods_of_an_inherited_protocol_are_no_implementation(site) -> None:
    source = f"from miles_core.api import Filter\nclass P(Filter):\n    {INIT}\n    stage = 'group'"
    assert "lacks keep" in failure(site, "filters", source)


@pytest.mark.parametrize(
    ("kind", "needs", "words"),
    [
        ("advantage_estimators", "('values',)", "needs 'values', which this version does not compute; it computes"),
        ("advantage_estimators", "['teacher_logprobs']", "needs 'teacher_logprobs'"),
        ("losses", "('entropy', 'values')", "it computes 'entropy' or 'reference_logprobs'"),
        ("losses", "'entropy'", "it must be a tuple of"),
    ],
)
def test_needs_that_nothing_computes_are_refused(site, kind, needs, words) -> None:
    method = "estimate(self, step_batch)" if kind == "advantage_estimators" else "loss(self, outputs, batch)"
    source = f"class P:\n    {INIT}\n    needs = {needs}\n    def {method}: ..."
    assert words in failure(site, kind, source)


def test_an_object_is_held_to_signatures_that_its_init_sets(site) -> None:
    source = (
        "class P:\n    scope: str\n    async def score(self, items): ...\n    def __init__(self, config, context):\n"
    )
    hub, ref = load(site, "reward_models", f"{source}        self.scope, self.score = 'group', lambda: []")
    with pytest.raises(PluginError, match=r"score is called as score\(items\), but takes \(\)"):
        hub.create("reward_models", ref, None, PluginContext())
