from __future__ import annotations

import pytest

from miles_core.plugins.installed.compatibility import Compatibility, compatibility


@pytest.mark.parametrize(
    ("line", "unmet"),
    [
        ("miles-hub", ()),
        ("Miles_Hub>=0.3", ()),
        ("miles.hub[trackers] (>=0.3,<1)", ()),
        ("miles-hub>=1", ("miles-hub>=1",)),
        ("miles-hub<0.4 ; python_version >= '3'", ("miles-hub<0.4",)),
        ("miles-hub @ https://example.org/miles_hub.whl", ()),
    ],
)
def test_a_declared_version_is_compared_with_the_running_one(line, unmet):
    found = compatibility(["numpy>=99", line], running="0.4.1")
    assert (len(found.declared), found.unmet, found.malformed) == (1, unmet, ())


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["numpy>=2", "miles-hub-extras>=9"],
        ["miles-hub>=9; extra == 'dev'"],
        ["miles-hub>=9; python_version < '3'"],
    ],
)
def test_without_a_requirement_that_applies_nothing_is_declared(lines):
    assert compatibility(lines, running="0.4.1") == Compatibility()


def test_every_requirement_has_to_be_met():
    found = compatibility(["miles-hub>=0.1", "miles-hub<0.3", "miles-hub!=0.4.1"], running="0.4.1")
    assert found.unmet == ("miles-hub<0.3", "miles-hub!=0.4.1")


@pytest.mark.parametrize("running", ["0.4.1.dev1", "0.5rc1", "0.5+local"])
def test_a_development_version_is_judged_like_any_other(running):
    assert compatibility(["miles-hub>=0.4"], running=running).unmet == ()


@pytest.mark.parametrize("line", ["miles-hub>=banana", "miles-hub ; colour == 'red'", "miles-hub >> 3"])
def test_a_malformed_requirement_is_kept_apart(line):
    assert compatibility([line, "miles-hub>=0.1"], running="0.4.1") == Compatibility(
        ("miles-hub>=0.1",), malformed=(line,)
    )
