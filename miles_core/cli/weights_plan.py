"""``miles weights plan``: who would send what to whom, for a trainer and engines that need not exist."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from miles_core.cli.sizes import engine_grid, links, trainer_grid
from miles_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.weights.planning.model import PlannedModel
    from miles_core.weights.planning.predict import EngineGroup

Dtype = Literal["bfloat16", "float16", "float32"]
_NAMINGS = {"sglang": "sglang", "embedded": "torch"}


def plan(
    model: Path,
    /,
    *,
    trainer: str = "",
    engines: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ("1x",),
    engine: Literal["sglang", "embedded"] = "sglang",
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    engine_dtype: Dtype | None = None,
    bucket_bytes: Annotated[int, Parameter(validator=Number(gte=1))] = 1 << 30,
    link: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    node_gpus: Annotated[int, Parameter(validator=Number(gte=1))] = 8,
    colocate: Annotated[bool, Parameter(negative=())] = False,
    bridge: str | None = None,
    json: Path | None = None,
) -> int:
    """Plan a weight update between a trainer and engines that exist only on paper.

    MODEL needs a config.json and no weights: shapes come from the model's modules, built without memory, and the
    shares of the ranks from its bridge. Each receiver gets each byte once, from one sender; ranks of the trainer that
    hold the same share the work. The exit code is 1 if some engines cannot be updated; the reason is printed.

        miles weights plan models/Qwen3-30B-A3B --trainer tp=4,ep=8,dp=4 --engines 4xtp=4,ep=4

    Predicted seconds: the slowest rank's bytes over its rates, when all ranks work at once, and the latency of each
    bucket. Measure your own rates; the defaults are those of 400 Gbit/s per GPU.

    Parameters
    ----------
    model
        A model directory.
    trainer
        Sizes of the trainer as in Megatron: tp, pp, ep, etp, dp. What is left out is 1.
    engines
        How many engines, and sizes of each as in SGLang: 4xtp=8,ep=8, of tp, pp and ep; may be repeated for others.
    engine
        sglang, or the embedded engine, whose ranks are not divided: --engines 4x.
    dtype
        The type that the trainer sends.
    engine_dtype
        The type of the engines, if it is another one.
    bucket_bytes
        Bytes that travel together to one receiver.
    link
        rdma=50,node=300,latency=20us: 10^9 bytes per second of a rank between machines and within one, and what each
        bucket costs on top.
    node_gpus
        Ranks on one machine.
    colocate
        Engines run on the trainer's machines; a sender on the receiver's machine is preferred.
    bridge
        The bridge; by default that of the architecture in config.json.
    json
        A file for the plan: senders, receivers and buckets, with their bytes.
    """
    from rich.console import Console

    from miles_core.cli.weights_plan_text import as_dict, describe
    from miles_core.weights.planning.predict import Placing, predict_plan
    from miles_core.weights.planning.traffic import traffic

    grid, rates = trainer_grid(trainer), links(link)
    groups = _groups(engines, _NAMINGS[engine], engine_dtype)
    console = Console(file=sys.stderr)
    with console.status("") as status:
        status.update(f"building {model.name} without memory")
        outline = _outline(model, bridge, dtype)
        found = predict_plan(outline, grid, groups, bucket_bytes, Placing(node_gpus, colocate), status.update)
    moved = traffic(found.plan, found.nodes)
    sys.stdout.write(describe(outline, grid, groups, found, moved, rates))
    if json is not None:
        try:
            json.write_text(json_module.dumps(as_dict(outline, found, moved, rates), indent=2) + "\n", "utf-8")
        except OSError as error:
            raise ConfigError(f"--json cannot write {json}: {error}", remedy="Name a file in a folder.") from error
    return 1 if found.problems else 0


def _groups(texts: Sequence[str], naming: str, dtype: str | None) -> list[EngineGroup]:
    from miles_core.weights.planning.predict import EngineGroup

    if len(set(texts)) < len(texts):
        raise ConfigError("--engines has the same engines twice", remedy="Write their number once, such as 8xtp=8.")
    return [EngineGroup(text, grid, count, naming, dtype) for text in texts for count, grid in [engine_grid(text)]]


def _outline(path: Path, bridge: str | None, dtype: str) -> PlannedModel:
    from miles_core.app.wiring import read_model
    from miles_core.plugins.hub import Hub
    from miles_core.weights.planning.model import plan_model

    facts = read_model(Hub.discover(), path, bridge)
    return plan_model(facts.bridge, path, facts.bridge_name, facts.hf_config, dtype)
