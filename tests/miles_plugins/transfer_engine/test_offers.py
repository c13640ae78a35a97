from __future__ import annotations

import json

import pytest

from miles_core.api import Placement, TensorSpec, WeightSyncError
from miles_plugins.transports.transfer_engine.offers import Offer, check_ends, ends_of

OFFER = Offer("127.0.0.1:1", "tcp", {"w": 4096, "v": 8192}, {"w": 32, "v": 8})


def test_an_offer_survives_json():
    assert Offer.from_json(json.loads(json.dumps(OFFER.to_json())), "receiver 0") == OFFER


@pytest.mark.parametrize("key", ["session", "protocol", "addresses", "nbytes"])
@pytest.mark.parametrize("value", [None, 1, {"w": "4096"}, {"w": True}])
def test_what_is_no_offer_is_refused(key, value):
    with pytest.raises(WeightSyncError, match="receiver 3 offered no session"):
        Offer.from_json({**OFFER.to_json(), key: value}, "receiver 3")


def test_the_end_of_a_parameter_is_that_of_its_last_box():
    spec = TensorSpec("t", "bfloat16", (2, 4))
    boxes = [Placement(spec, spec.whole, "w", offset) for offset in (16, 0)]
    empty = Placement(TensorSpec("e", "bfloat16", (0,)), ((0, 0),), "none", 0)
    assert ends_of([*boxes, empty]) == {"w": 32}


@pytest.mark.parametrize(
    ("ends", "said"),
    [({"w": 33}, "up to byte 33; the engine holds 32 bytes"), ({"u": 1}, "up to byte 1; the engine did not offer it")],
)
def test_nothing_is_written_beside_a_parameter(ends, said):
    check_ends({"w": 32, "v": 8}, OFFER, "the engine")
    with pytest.raises(WeightSyncError, match=said):
        check_ends(ends, OFFER, "the engine")
