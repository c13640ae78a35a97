"""Tables of parameters: what an engine of another version, or a broken one, sends is no table."""

from __future__ import annotations

import pytest

from miles_core.types import Parameter, ParameterTable, Shard

TABLE = ParameterTable((Parameter("a", "bfloat16", (2, 3)), Parameter("b", "bool", (), shares="a")), Shard(1, 2))


def changed(row=None, **more):
    data = TABLE.to_json()
    rows = [{**one, **(row or {})} for one in data["parameters"][:1]]
    return {**data, "parameters": [*rows, *data["parameters"][1:]], **more}


@pytest.mark.parametrize(
    "data",
    [
        changed({"name": 3}),
        changed({"name": "b"}),
        changed({"dtype": ["bfloat16"]}),
        changed({"dtype": None}),
        changed({"shape": [-1, 3]}),
        changed({"shape": ["2", 3]}),
        changed({"shape": [2.0, 3]}),
        changed({"shape": [True, 3]}),
        changed({"shares": ["b"]}),
        changed(naming=["sglang"]),
        changed(shard={"tp_rank": 2, "tp_size": 2}),
        changed(shard={"pp_rank": -1}),
        changed(shard={"ep_size": 0}),
        changed(shard={"etp_size": "1"}),
    ],
)
def test_a_table_of_another_form_is_refused(data) -> None:
    assert ParameterTable.from_json(TABLE.to_json()) == TABLE
    with pytest.raises(ValueError, match=r"must be|one name|is none"):
        ParameterTable.from_json(data)
