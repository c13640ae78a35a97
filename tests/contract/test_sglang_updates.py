"""The ways in which SGLang itself takes weights, and what it does where they are used wrongly.

The publisher uses the one from disk (test_weight_updates.py); the others are what transports of tensors build on.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from miles_core.engine.sglang.cpu.environment import SERVER_ENVIRONMENT, SERVER_FILE, cpu_environment

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("engine", ["sglang"], indirect=True)]
PROMPT = [3, 4, 5, 6, 7]
SAMPLING = {"max_new_tokens": 8, "ignore_eos": True}
SCRIPT = Path(__file__).with_name("sglang_weights.py")


class Sender:
    """The process that packs tensors as SGLang unpacks them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, **asked: str) -> list[Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the sender died: its log is above"
        answers: list[Any] = json.loads(line)
        return answers


@pytest.fixture(scope="session")
def sender() -> Iterator[Sender]:
    python = cpu_environment()
    assert python is not None
    process = subprocess.Popen(
        [python, SCRIPT, SERVER_FILE.parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=SERVER_ENVIRONMENT,
    )  # fmt: skip
    with process:
        yield Sender(process)
        assert process.stdin is not None
        process.stdin.close()


async def distance(served: Any, reference: Any) -> float:
    """The largest difference of a generation's logprobs from a model's; different weights are above 1."""
    # with a salt of its own: an update that did not flush leaves prefixes of older weights
    reply = await served.generate(PROMPT, SAMPLING, return_logprob=True, extra_key=uuid.uuid4().hex)
    found = [entry[0] for entry in reply["meta_info"]["output_token_logprobs"]]
    return float(abs(reference.logprobs(PROMPT, reply["output_ids"]) - found).max())


@pytest.fixture
def other(served: Any, references: Callable[[str], Any]) -> tuple[str, Any]:
    """A checkpoint with other weights, and its model."""
    return f"{served.model_path}-2", references(f"{served.model}-2")


async def test_weights_come_from_disk(served: Any, other: Any) -> None:
    path, reference = other
    assert await distance(served, reference) > 0.1
    body = {"model_path": path, "weight_version": "2"}
    status, reply = await served.post("/update_weights_from_disk", body)
    assert (status, reply["success"]) == (200, True)
    assert await distance(served, reference) < 1e-4
    assert await served.weight_version() == "2"


@pytest.mark.parametrize("way", ["tensor", "bucket", "gloo"])
async def test_weights_come_as_tensors(served: Any, other: Any, sender: Sender, way: str) -> None:
    path, reference = other
    for checkpoint, version, expected in ((path, "3", reference), (served.model_path, "4", served.reference)):
        asked = {"way": way, "url": served.url, "checkpoint": checkpoint, "version": version}
        answers = await anyio.to_thread.run_sync(lambda asked=asked: sender.send(**asked))
        assert [(path, status) for path, status, _ in answers if status != 200] == []
        assert await distance(served, expected) < 1e-4
        assert await served.weight_version() == version


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/update_weights_from_tensor", {"serialized_named_tensors": ["AAAA"]}),
        ("/update_weights_from_distributed", {"names": [], "dtypes": [], "shapes": []}),
        ("/end_weight_update", {}),
    ],
)
async def test_tensors_need_a_begin(served: Any, path: str, body: Any) -> None:
    status, reply = await served.post(path, body)
    assert (status, reply["success"]) == (400, False)
    assert "begin_weight_update" in reply["message"]


async def test_one_update_is_open_at_a_time_and_the_old_weights_serve_meanwhile(served: Any) -> None:
    assert (await served.post("/begin_weight_update", {}))[0] == 200
    status, reply = await served.post("/begin_weight_update", {})
    assert (status, reply["success"]) == (400, False)
    assert await distance(served, served.reference) < 1e-4
    assert (await served.post("/end_weight_update", {}))[0] == 200


async def test_a_checkpoint_that_is_not_there_changes_nothing(served: Any, tmp_path: Path) -> None:
    body = {"model_path": str(tmp_path / "none"), "weight_version": "9"}
    status, reply = await served.post("/update_weights_from_disk", body)
    assert (status, reply["success"]) == (400, False)
    assert await distance(served, served.reference) < 1e-4
    assert await served.weight_version() == "0"


async def test_a_refused_flush_answers_400_although_the_weights_changed(served: Any, other: Any) -> None:
    path, reference = other
    async with served.in_flight() as flight:
        await served.post("/pause_generation", {"mode": "in_place"})
        status, reply = await served.post("/update_weights_from_disk", {"model_path": path, "weight_version": "5"})
        assert status == 400
        assert "Weights were updated" in reply["message"]
        await served.post("/continue_generation", {})
    assert [span["version"] for span in flight.reply["meta_info"]["weight_versions"]] == ["0", "5"]
    assert await distance(served, reference) < 1e-4
    # the information lags behind until a later update succeeds
    assert await served.weight_version() == "0"


@pytest.mark.parametrize(("mode", "flush"), [("in_place", False), ("retract", True)])
async def test_a_request_in_flight_has_a_span_for_each_version(served: Any, other: Any, mode: str, flush: bool) -> None:
    async with served.in_flight() as flight:
        await served.post("/pause_generation", {"mode": mode})
        body = {"model_path": other[0], "weight_version": "6", "flush_cache": flush}
        assert (await served.post("/update_weights_from_disk", body))[0] == 200
        await served.post("/continue_generation", {})
    meta = flight.reply["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": served.long}
    first, second = meta["weight_versions"]
    assert (first["version"], second["version"], second["end"]) == ("0", "6", served.long)


async def test_an_update_waits_for_requests_unless_paused(served: Any) -> None:
    async with served.in_flight() as flight:
        body = {"model_path": served.model_path, "weight_version": "7"}
        assert (await served.post("/update_weights_from_disk", body))[0] == 200
    assert [span["version"] for span in flight.reply["meta_info"]["weight_versions"]] == ["0"]


async def test_what_weights_memory_holds_after_it_came_back_is_what_it_held_on_a_cpu(served: Any) -> None:
    body = {"tags": ["weights", "kv_cache"]}
    assert (await served.post("/release_memory_occupation", body))[0] == 200
    assert (await served.post("/resume_memory_occupation", body))[0] == 200
    assert await distance(served, served.reference) < 1e-4


async def test_checksums_tell_equal_weights_from_others(served: Any, other: Any) -> None:
    async def checksums() -> Any:
        return (await served.post("/weights_checker", {"action": "checksum"}))[1]["ranks"][0]["checksums"]

    before = await checksums()
    await served.post("/update_weights_from_disk", {"model_path": other[0]})
    changed = await checksums()
    assert [name for name in before if before[name] == changed[name] and "norm" not in name] == []
    await served.post("/update_weights_from_disk", {"model_path": served.model_path})
    assert await checksums() == before
