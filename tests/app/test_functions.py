"""The functions of a config, checked before a run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from miles_core.app.functions import build_correction, build_reduction, check_functions, session_functions
from miles_core.config.load import load_config
from miles_core.errors import ConfigError, MilesError
from miles_core.train.correction import tis
from miles_core.train.reduction import token_mean

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart" / "config.toml"


def config(*overrides: str):
    return load_config(QUICKSTART, overrides).config


def test_by_default_nothing_is_corrected_and_the_mean_is_over_tokens() -> None:
    check_functions(config())
    assert build_correction(config()) is None
    assert build_reduction(config()).function is token_mean
    assert {name: function.__name__ for name, function in session_functions(config()).items()} == {
        "match": "exact",
        "pick": "last",
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
        ("correction.use=tiss", "built in: none, tis"),
        ("correction.cap=2.0", "takes no options; got cap"),
        ("objective.reduction=token_maen", "Did you mean 'token_mean'?"),
    ],
)
def test_each_key_is_checked_before_a_run_starts(override: str, message: str) -> None:
    with pytest.raises(MilesError) as raised:
        check_functions(config(override))
    assert message in str(raised.value)
