"""What can be wrong with a run is found before it has a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from miles_core.app.checks import check_run
from miles_core.app.wiring import wire
from miles_core.config.load import LoadedConfig
from miles_core.errors import ConfigError, DataError, MilesError, PluginError

Quickstart = Callable[..., LoadedConfig]


def check(loaded: LoadedConfig) -> list[dict[str, object]]:
    return check_run(wire(loaded, Path()))


def test_a_run_that_may_start_gets_a_lock_of_every_plugin(quickstart: Quickstart) -> None:
    lock = check(quickstart("engine.context_length=102", "weights.use=memory"))
    assert [row["use"] for row in lock[:4]] == ["Qwen3MoeForCausalLM", "jsonl", "lookup", "exact_match"]
    assert {row["kind"] for row in lock} >= {"engines", "train_backends", "weight_transports", "trackers"}


def test_more_tokens_than_the_model_has_are_cut_down_to_what_engines_use_of_it(quickstart: Quickstart) -> None:
    check(quickstart("rollout.max_context_tokens=9999", "engine.context_length=512"))
    with pytest.raises(ConfigError, match="511 leaves 505 tokens .*may have 506 tokens"):
        check(quickstart("rollout.max_context_tokens=9999", "engine.context_length=511"))


@pytest.mark.parametrize(
    ("override", "kind", "message"),
    [
        ("data.path=none.jsonl", DataError, "no data file .*none.jsonl"),
        ("warmup.data=none.jsonl", DataError, "no warm-up file .*none.jsonl"),
        ("warmup.data=tasks.jsonl", DataError, r"tasks\.jsonl:1: expected"),
        ("engine.context_length=101", ConfigError, "101 leaves 95 tokens .*may have 96 tokens"),
        ("engine.groups=[{}, {context_length = 101}]", ConfigError, "101 leaves 95 tokens .*may have 96 tokens"),
        ("engine.groups=[{}, {thread = 2}]", ConfigError, "thread: unknown key; did you mean 'threads'"),
        (
            "weights.use=miles_plugins.transports.tensor:Tensor",
            ConfigError,
            "transport .*Tensor feeds endpoints of SGLang only, which .* embedded",
        ),
        ("weights.dirr=x", ConfigError, r"weights\.dirr is an option of no transport; they have .*dir"),
        (["weights.use=memory", "weights.dir=x"], ConfigError, "unknown keys dir; it takes no options"),
        ("weights.use=nothing", PluginError, "nothing"),
        ("filters.0.use=miles_core.api:Group", PluginError, "lacks stage, keep"),
    ],
)
def test_what_is_wrong_is_named(
    quickstart: Quickstart, override: str | list[str], kind: type[MilesError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        check(quickstart(*([override] if isinstance(override, str) else override)))
    assert caught.value.remedy


def test_an_environment_of_slime_without_any_reward_is_refused_before_the_run(
    quickstart: Quickstart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "foreign_env.py").write_text("def build_env(sample, args): raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    environment = 'environments=[{use="foreign_env:build_env", adapter="slime"}]'
    check(quickstart(environment))
    with pytest.raises(ConfigError, match=r"give no rewards, and the config has no \[\[rewards\]\]"):
        check(quickstart(environment, "rewards=[]"))


@pytest.mark.parametrize("engine", ["embedded", "sglang"])
@pytest.mark.parametrize("transport", ["memory", "disk", "disk_delta"])
def test_engines_and_transports_that_fit_are_taken(quickstart: Quickstart, engine: str, transport: str) -> None:
    lock = check(quickstart(f"engine.use={engine}", f"weights.use={transport}"))
    assert [row["name"] for row in lock if row["kind"] == "weight_transports"] == [transport]


@pytest.mark.parametrize("engine", ["embedded", "sglang"])
def test_without_a_transport_the_first_update_chooses_one_among_all(quickstart: Quickstart, engine: str) -> None:
    lock = check(quickstart(f"engine.use={engine}", "weights.dir=/tmp"))
    assert [row["name"] for row in lock if row["kind"] == "weight_transports"] == []
