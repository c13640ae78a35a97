from __future__ import annotations

import json

import pytest

from miles_core.errors import PluginError
from miles_core.plugins.lock import PluginLock, lock_of, lock_of_again, lock_of_all

FILTERS = "filters"


@pytest.fixture
def hub(site):
    site.install("kit", "1.0", {"miles.filters": {"hard": "kit_mod:hard"}, "miles": {"watch": "kit_hooks"}})
    site.module("kit_hooks", "def miles_register(registry): registry.add('filters', 'made', lambda group: True)")
    return site.hub()


def test_a_lock_holds_what_answered_and_the_modules_that_act_unnamed(hub):
    uses = [(FILTERS, "hard"), (FILTERS, "hard"), (FILTERS, "my.mod:fn"), (FILTERS, "kit/made")]
    rows = lock_of(hub, uses).to_json()
    assert rows[0] == {
        "kind": FILTERS, "use": "hard", "name": "hard", "target": "kit_mod:hard", "distribution": "kit",
        "version": "1.0",
    }  # fmt: skip
    assert [row["use"] for row in rows] == ["hard", "my.mod:fn", "kit/made", "kit/watch"]
    assert rows[1]["distribution"] is None


def test_a_lock_survives_json(hub):
    lock = lock_of(hub, [(FILTERS, "hard"), (FILTERS, "my.mod:fn")])
    assert PluginLock.from_json(json.loads(json.dumps(lock.to_json()))) == lock


def test_another_version_target_or_set_is_one_line_each(site, hub):
    before = lock_of(hub, [(FILTERS, "hard")])
    assert before.differences(before) == []
    (site.folder / "kit-1.0.dist-info" / "METADATA").write_text("Name: kit\nVersion: 2.0\n")
    lines = before.differences(lock_of(site.hub(), [(FILTERS, "hard"), (FILTERS, "m:f")]))
    assert lines == [
        "plugin filters hard: kit 1.0 (kit_mod:hard) -> kit 2.0 (kit_mod:hard)",
        "plugin filters m:f: not used -> by import path (m:f)",
        "plugin hooks kit/watch: kit 1.0 (kit_hooks) -> kit 2.0 (kit_hooks)",
    ]


def test_rows_of_another_version_are_read_as_far_as_they_go():
    lock = PluginLock.from_json([{"kind": FILTERS, "use": "a", "target": "m:f", "location": "/gone"}])
    assert (lock.rows[0].use, lock.rows[0].name, lock.rows[0].version) == ("a", "", None)
    assert PluginLock.from_json(()) == PluginLock()


@pytest.mark.parametrize("value", [{"kind": FILTERS}, ["a"], None, 3])
def test_what_is_no_lock_is_an_error_that_says_how_to_write_one(value):
    with pytest.raises(PluginError, match="list of objects") as caught:
        PluginLock.from_json(value)
    assert "miles plugins lock" in str(caught.value)


def test_a_name_that_a_distribution_offers_twice_is_the_same_again(site):
    info = site.install("twice", "1.0", {})
    (info / "entry_points.txt").write_text("[miles.filters]\nhard = m:a\nhard = m:b\n")
    before = lock_of_all(site.hub())
    assert [row.target for row in before.rows] == ["m:a", "m:b"]
    assert before.differences(lock_of_again(site.hub(), before)) == []


def test_a_kind_of_a_later_version_is_a_difference(site):
    before = PluginLock.from_json([{"kind": "painters", "use": "kit/blue", "target": "m:blue"}])
    assert before.differences(lock_of_again(site.hub(), before)) == [
        "plugin painters kit/blue: by import path (m:blue) -> not used"
    ]
