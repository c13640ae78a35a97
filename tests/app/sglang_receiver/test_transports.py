"""Transports by name, without the hub."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from miles_core.app.sglang_receiver import transports
from miles_core.app.sglang_receiver.transports import make_transport, usable_transports
from miles_core.errors import WeightSyncError
from miles_core.weights.transport_facts import OPTIONS_VARIABLE
from miles_plugins.transports.disk import Disk
from miles_plugins.transports.memory import Memory


def test_built_in_transports_are_made() -> None:
    for name, kind in (("memory", Memory), ("disk", Disk)):
        transport = make_transport(name)
        assert isinstance(transport, kind)
        transport.close()


def test_options_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS_VARIABLE, json.dumps({"disk": {"dirr": str(tmp_path)}}))
    with pytest.raises(WeightSyncError, match="dirr"):
        make_transport("disk")
    make_transport("memory").close()


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"disk": 3}'])
def test_options_of_a_wrong_form_are_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS_VARIABLE, text)
    with pytest.raises(WeightSyncError, match=OPTIONS_VARIABLE):
        make_transport("disk")


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(WeightSyncError, match=r"no transport 'pigeon'; it has .*memory"):
        make_transport("pigeon")


def test_what_cannot_be_used_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*, group: str) -> list[EntryPoint]:
        return [
            EntryPoint("gone", "no_such_module:X", group),
            EntryPoint("memory", Memory.__module__ + ":Memory", group),
        ]

    monkeypatch.setattr(transports, "entry_points", found)
    usable = usable_transports()
    assert usable["memory"] is None
    assert "no_such_module" in (usable["gone"] or "")
    with pytest.raises(WeightSyncError, match="no_such_module"):
        make_transport("gone")


def test_a_transport_whose_library_is_missing_here_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miles_plugins.transports.mooncake.Mooncake.unavailable", lambda: "no libibverbs")
    assert usable_transports()["mooncake"] == "no libibverbs"
