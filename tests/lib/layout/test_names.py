"""Names with placeholders."""

from __future__ import annotations

import pytest

from miles_core.lib.layout.names import fill_name, match_name


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("layers.{layer}.w", "layers.12.w", {"layer": "12"}),
        ("layers.{layer}.w", "layers.x.w", None),
        ("layers.{layer}.w", "layers.1.w.bias", None),
        ("layers.{layer}.w", "layersx1.w", None),
        ("{layer}.{expert}.{kind}", "1.2.weight", {"layer": "1", "expert": "2", "kind": "weight"}),
        ("{layer}.{kind}", "1.mlp.weight", None),
        ("{layer}.x.{layer}", "1.x.1", {"layer": "1"}),
        ("{layer}.x.{layer}", "1.x.2", None),
        ("plain", "plain", {}),
        ("plain", "plain\n", None),
    ],
)
def test_a_name_fits_its_pattern_whole(pattern: str, name: str, found: dict[str, str] | None) -> None:
    assert match_name(pattern, name) == found
    if found is not None:
        assert fill_name(pattern, found) == name
