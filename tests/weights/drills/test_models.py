"""Engines that serve another model are refused before the first byte; those of another type get their own bytes."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from miles_core.weights.exchange import RefusedError

from .engines import ready

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


@pytest.fixture
def other_model(facts, checkpoint, tmp_path):
    """``other_model(**changes)``: a checkpoint of the same family with a changed config."""

    def make(**changes):
        folder = tmp_path / "other"
        shutil.copytree(checkpoint, folder)
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        config = json.loads((checkpoint / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        facts.bridge.build(str(folder), dtype="float32", init="random", seed=5).save_pretrained(folder)
        return folder

    return make


@pytest.mark.parametrize(
    "changes",
    [
        lambda config: {"moe_intermediate_size": 2 * config["moe_intermediate_size"]},
        lambda config: {"num_hidden_layers": config["num_hidden_layers"] + 1},
        lambda config: {"num_hidden_layers": config["num_hidden_layers"] - 1},
    ],
    ids=["wrong shape", "missing tensor", "tensor too many"],
)
async def test_an_engine_of_another_model_is_left_behind_untouched(
    rig, start, traffic, facts, other_model, changes
) -> None:
    healthy = rig.engines[0]
    other = start("other", model=other_model(**changes(facts.hf_config)))
    await ready([other], rig.http)
    result = await rig.publish(1, [healthy, other])
    (error,) = result.lost.values()
    assert isinstance(error, RefusedError)
    assert "the trainer's weights do not fit engine" in error.message
    assert (await traffic.ask(healthy)).versions == [1]
    traffic.check(rig.committed, rig.models)
    reply = await traffic.ask(other)
    assert reply is not None
    assert reply.versions == [0], "no byte reached it"


async def test_engines_of_two_types_get_the_same_version_each_in_its_own(rig, start, traffic, models) -> None:
    full, half = rig.engines[0], start("half", "--dtype", "bfloat16")
    await ready([half], rig.http)
    for version in (1, 2):
        assert (await rig.publish(version, [full, half])).lost == {}
        assert (await traffic.ask(full)).versions == [version]
    assert traffic.check(rig.committed, rig.models) == {1, 2}
    traffic.replies.clear()
    assert (await traffic.ask(half)).versions == [2]

    def rounded(version: int) -> torch.nn.Module:
        model = models(version)
        state = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
        made = type(model)._from_config(model.config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
        made.load_state_dict(state)
        return made

    traffic.check({2}, rounded, tolerance=0.05)
    with pytest.raises(AssertionError, match="served other weights"):
        traffic.check({2}, lambda _: rounded(1), tolerance=0.05)
