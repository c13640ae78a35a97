from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from miles_core.config.describe import default_words, table_model, type_words
from miles_core.config.reference import reference
from miles_core.config.schema import Config


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    size: int = 1


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "integer"),
        (float | None, "number"),
        (bool, "true or false"),
        (str | int, "text or integer"),
        (Literal["a", "b"], '"a" or "b"'),
        (tuple[float, float], "array of number"),
        (list[str], "array of text"),
        (list, "array"),
        (list[Annotated[int, Field(ge=0)]], "array of integer"),
        (dict[str, int], "table"),
        (Inner | None, "table"),
        (Colour, '"red" or "blue"'),
        (Any, "any value"),
    ],
)
def test_types_are_told_in_the_words_of_toml(annotation, words):
    assert type_words(annotation) == words


def test_defaults_are_told_as_toml():
    class Options(BaseModel):
        must: int
        maybe: str | None = None
        flag: bool = False
        pair: tuple[float, str] = (0.5, 'a "b"')
        inner: Inner = Inner(size=2)
        made: list[int] = Field(default_factory=list)

    words = {name: default_words(field) for name, field in Options.model_fields.items()}
    assert words == {
        "must": "required",
        "maybe": "unset",
        "flag": "false",
        "pair": '[0.5, "a \\"b\\""]',
        "inner": "{ size = 2 }",
        "made": "computed",
    }


def _keys(model, prefix=""):
    for name, field in model.model_fields.items():
        table = table_model(field.annotation)
        yield from _keys(table, f"{prefix}{name}.") if table else [f"{prefix}{name}"]


def test_the_reference_has_one_line_for_every_key_of_the_schema():
    described = [line.split()[0] for line in reference().splitlines() if line.startswith("  ")]
    keys = list(_keys(Config))
    assert "router.middleware.use" in keys
    assert [key for key in described if not key.endswith("*")] == sorted(keys, key=described.index)
    assert set(keys) == {key for key in described if not key.endswith("*")}


def test_the_reference_shows_type_default_and_description():
    (line,) = [line for line in reference().splitlines() if line.startswith("  rollout.max_staleness ")]
    assert line.split(None, 3)[1:3] == ["integer", "0"]
    assert "policy versions" in line
    assert "[[losses]]" in reference()
    assert '[{ use = "ppo_clip" }]' in reference()
