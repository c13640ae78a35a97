"""One SGLang server on a GPU, as a colocated run starts it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import torch

from miles_core.api import PluginContext
from miles_core.app.processes import child
from miles_core.engine.client import HttpEngineClient
from miles_core.engine.sglang.plugin import SGLang
from miles_core.errors import EngineError
from miles_core.train.torch_backend import TorchBackend
from miles_core.types import GenerateRequest, SamplingParams

pytestmark = pytest.mark.anyio
TOKENS = 1 << 20  # of 1 KiB each in the key-value pool of the model
ENGINE = """
[engine]
use = "sglang"
[train]
replay_routing = true
"""


@pytest.fixture
async def server(
    make_backend: Callable[..., TorchBackend],
    write_config: Callable[..., Path],
    large_model: Path,
    sglang_python: str,
    tmp_path: Path,
) -> AsyncIterator[Any]:
    backend = make_backend(device="cuda", path=large_model)
    backend.snapshot()(tmp_path / "checkpoint")
    config = write_config(("steps = 3", 'steps = 3\nplacement = "colocated"'), extra=ENGINE)
    options = SGLang.Config(
        python=sglang_python, device="cuda", dtype="bfloat16", mem_fraction_static=0.3, max_total_tokens=TOKENS
    )
    command = SGLang(options, PluginContext()).command(str(tmp_path / "checkpoint"), index=0, config_path=str(config))
    log, timeout = tmp_path / "engine.log", aiohttp.ClientTimeout(total=120)
    async with (
        child(
            "engine", command.argv, environment=command.environment, log=log, error=EngineError, start_timeout=600
        ) as running,
        aiohttp.ClientSession(timeout=timeout) as http,
    ):
        routing = backend._source.routing
        client = HttpEngineClient(running.ready["url"], http, vocab_size=103, context_length=512, routing=routing)
        yield SimpleNamespace(url=running.ready["url"], http=http, client=client, checkpoint=tmp_path / "checkpoint")


async def post(server: Any, path: str, body: Any) -> None:
    async with server.http.post(server.url + path, json=body) as reply:
        assert reply.status == 200, await reply.text()


async def generate(server: Any) -> Any:
    request = GenerateRequest([5, 9, 40, 41], SamplingParams(temperature=1.0, max_new_tokens=8), "r.", True, 0)
    return await server.client.generate(request)


async def test_memory_is_released_and_comes_back_for_a_whole_update(server: Any) -> None:
    before = await generate(server)
    assert before.routed_experts.shape == (4 + len(before.output_ids) - 1, 2, 2)
    held = torch.cuda.mem_get_info()[0]
    await post(server, "/release_memory_occupation", {})
    assert torch.cuda.mem_get_info()[0] - held > TOKENS * 512
    await post(server, "/resume_memory_occupation", {})
    assert torch.cuda.mem_get_info()[0] - held < TOKENS * 512
    await post(server, "/update_weights_from_disk", {"model_path": str(server.checkpoint)})
    after = await generate(server)
    assert after.routed_experts.shape[1:] == (2, 2)
