"""The functions of a config, checked before a run starts."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from miles_core.app.functions import (
    build_correction,
    build_reduction,
    check_functions,
    session_functions,
    session_options,
    session_renderer,
)
from miles_core.config.load import load_config
from miles_core.errors import ConfigError, MilesError
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.train.correction import tis
from miles_core.train.reduction import token_mean

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart" / "config.toml"


def config(*overrides: str):
    return load_config(QUICKSTART, overrides).config


def test_by_default_nothing_is_corrected_and_the_mean_is_over_tokens() -> None:
    check_functions(config())
    assert build_correction(config()) is None
    assert build_reduction(config()).function is token_mean
    assert {name: function.__name__ for name, function in session_functions(config().session).items()} == {
        "match": "tool_arguments",
        "pick": "leaves",
    }


def test_a_built_in_correction_takes_its_options_from_its_table() -> None:
    plain, capped = (
        build_correction(config("correction.use=tis")),
        build_correction(config("correction.use=tis", "correction.cap=1")),
    )
    assert plain is not None
    assert plain.function is tis
    assert capped is not None
    assert capped.function.keywords == {"cap": 1.0}  # type: ignore[attr-defined]


def test_tis_beside_ratios_against_rollout_logprobs_would_count_twice() -> None:
    with pytest.raises(ConfigError, match='"tis" needs objective.old_logprobs = "proximal"'):
        build_correction(config("correction.use=tis", "objective.old_logprobs=rollout"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.generate=best_of", "rollout.generate = 'best_of' names no function"),
        ("session.match=exat", "Did you mean 'exact'?"),
        ("session.pick=longst", "Did you mean 'longest'?"),
        ("session.renderer=tmplate", "Did you mean 'template'?"),
        ("session.tool_calls=non", "Did you mean 'none'?"),
        ("session.reasoning=os:sep", "session.reasoning = 'os:sep' cannot be called"),
        ("correction.use=tiss", "built in: none, tis"),
        ("correction.cap=2.0", "takes no options; got cap"),
        ("objective.reduction=token_maen", "Did you mean 'token_mean'?"),
    ],
)
def test_each_key_is_checked_before_a_run_starts(override: str, message: str) -> None:
    with pytest.raises(MilesError) as raised:
        check_functions(config(override))
    assert message in str(raised.value)


class Letters:
    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer

    def prompt(self, messages, tools):
        return [7]

    def boundary(self, turn, appended):
        return [8]


def all_calls(text: str):
    return "", [{"name": text, "arguments": "{}"}]


def test_sessions_get_what_the_table_names() -> None:
    chat = ChatTokenizer.load(QUICKSTART.parent / "model")
    plain = session_options(config().session, chat)
    assert plain["renderer"] is None
    assert plain["clock"] is None
    own = session_options(
        config(
            f"session.renderer={__name__}:Letters",
            f"session.tool_calls={__name__}:all_calls",
            "session.reasoning=none",
            "session.clock=2025-07-10T12:00:00",
        ).session,
        chat,
    )
    assert own["renderer"].prompt((), ()) == [7]
    message = own["parser"].message("<think>a</think>b", calls=True, call_id=str)
    assert [call["function"]["name"] for call in message.tool_calls] == ["<think>a</think>b"]
    assert own["clock"].year == 2025


def test_a_tokenizer_without_a_template_serves_where_nothing_needs_one() -> None:
    loaded = ChatTokenizer.load(QUICKSTART.parent / "model")
    inner = copy.deepcopy(loaded.tokenizer)
    inner.chat_template = None
    bare = ChatTokenizer(inner, loaded.stop_token_ids)
    with pytest.raises(ConfigError, match="no chat template"):
        session_options(config().session, bare)
    own = [f"session.renderer={__name__}:Letters", "session.tool_calls=none", "session.reasoning=none"]
    table = config(*own).session
    assert session_options(table, bare)["renderer"].prompt((), ()) == [7]
    assert session_renderer(table, bare).prompt((), ()) == [7]
