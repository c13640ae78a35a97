"""The OpenAI SDK against the server in front of a real engine: model, HTTP, streams, aborts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import anyio
import openai
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from miles_core.engine.client import HttpEngineClient
from miles_core.engine.embedded.engine import EmbeddedEngine
from miles_core.engine.embedded.server import create_app
from miles_core.engine.embedded.settings import EngineSettings
from miles_core.session.tokenizer import ChatTokenizer

pytestmark = pytest.mark.anyio
CONTEXT = 1024


@pytest.fixture
async def client(serving: Callable[..., Any], tokenizer: ChatTokenizer) -> AsyncIterator[HttpEngineClient]:
    """Of an engine with a tiny model of random weights."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3Config(
        vocab_size=tokenizer.vocab_size, num_hidden_layers=2, head_dim=8, max_position_embeddings=CONTEXT, **shape
    )
    settings = EngineSettings(context_length=CONTEXT, max_running_requests=4)
    model = Qwen3ForCausalLM(config).eval()
    engine = EmbeddedEngine(model, tokenizer.tokenizer, settings, replay_points=[], routing=None)
    async with serving(create_app(engine)) as server, aiohttp.ClientSession() as http:
        options = {"vocab_size": tokenizer.vocab_size, "context_length": CONTEXT, "routing": None}
        yield HttpEngineClient(server.url, http, **options)


async def test_turns_are_continued_whether_they_stream_or_not(room: Any, client: HttpEngineClient) -> None:
    async with room(client=client, context_length=CONTEXT) as here:
        sdk = openai.AsyncOpenAI(base_url=here.base_url, api_key="any", max_retries=0)
        messages: list[Any] = [{"role": "user", "content": "hello"}]
        for turn in range(4):
            ask: Any = {"model": "toy", "messages": messages, "max_tokens": 24, "seed": turn}
            if turn % 2:
                stream = await sdk.chat.completions.create(**ask, stream=True)
                said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            else:
                said = (await sdk.chat.completions.create(**ask)).choices[0].message.content or ""
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
        await sdk.close()
        nodes = here.session.tree.nodes
        assert [node.parent for node in nodes] == [None, *nodes[:3]]
        assert all(len(node.logprobs) == len(node.output_ids) > 0 for node in nodes)
        (sample,) = here.session.samples(status="completed")
        assert sample.trained_tokens == sum(len(node.output_ids) for node in nodes)


async def test_a_client_that_leaves_a_stream_frees_the_engine(room: Any, client: HttpEngineClient) -> None:
    async with room(client=client, context_length=CONTEXT) as here:
        sdk = openai.AsyncOpenAI(base_url=here.base_url, api_key="any", max_retries=0)
        ask: Any = {"model": "toy", "messages": [{"role": "user", "content": "hello"}]}
        for _ in range(8):  # twice as many as the engine runs at once
            stream = await sdk.chat.completions.create(**ask, stream=True, max_tokens=900)
            async for _chunk in stream:
                break
            await stream.close()
        with anyio.fail_after(30):
            await sdk.chat.completions.create(**ask, max_tokens=4)
        await sdk.close()
        assert len(here.session.tree.nodes) < 8


async def test_what_the_engine_cannot_do_is_a_400(room: Any, client: HttpEngineClient) -> None:
    async with room(client=client, context_length=CONTEXT) as here:
        sdk = openai.AsyncOpenAI(base_url=here.base_url, api_key="any", max_retries=0)
        with pytest.raises(openai.BadRequestError, match="json_schema"):
            await sdk.chat.completions.create(
                model="toy", messages=[{"role": "user", "content": "hi"}], response_format={"type": "json_object"}
            )
        await sdk.close()
        assert not here.session.tree.nodes
