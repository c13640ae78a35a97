"""`[[engine.groups]]`: servers with options of their own."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from miles_core.config.serving import EngineTable


def table(**keys: object) -> EngineTable:
    return EngineTable.model_validate(keys)


def test_without_groups_all_servers_are_alike() -> None:
    assert [server.options for server in table(count=2, threads=3).servers] == [{"threads": 3}] * 2


def test_a_group_s_options_replace_those_of_the_engine() -> None:
    made = table(use="other", pause_mode="retract", threads=1, port=7, groups=[{"count": 2, "threads": 4}, {}])
    assert [server.options for server in made.servers] == [{"threads": 4, "port": 7}] * 2 + [{"threads": 1, "port": 7}]
    assert {(server.use, server.pause_mode, server.count) for server in made.servers} == {("other", "retract", 1)}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"count": 2, "groups": [{}]}, "give each group its own count"),
        ({"groups": [{"pause_mode": "retract"}]}, "pause_mode cannot differ between groups"),
        ({"groups": [{"count": 0}]}, "greater than or equal to 1"),
    ],
)
def test_what_groups_cannot_say_is_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        table(**keys)
