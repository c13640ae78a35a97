"""Tiny models, a character tokenizer and served engines."""

from __future__ import annotations

import string
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio
import anyio.to_thread
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from miles_core.engine.embedded.engine import EmbeddedEngine
from miles_core.engine.embedded.server import create_app
from miles_core.engine.embedded.settings import EngineSettings
from miles_core.kinds.model_bridges import ReplayPoint
from miles_core.types import RoutingSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

CHARACTERS = ["<pad>", "<eos>", "<unk>", *string.ascii_lowercase, *string.digits, " "]
VOCAB = len(CHARACTERS)
EOS = 1
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "max_position_embeddings": 256,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "bos_token_id": None,
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({text: i for i, text in enumerate(CHARACTERS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")


def moe_model(**changes: Any) -> Qwen3MoeForCausalLM:
    """Layer 0 is dense, layers 1 and 2 are MoE."""
    shape = {
        **_SHAPE,
        "num_hidden_layers": 3,
        "mlp_only_layers": [0],
        "moe_intermediate_size": 24,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        **changes,
    }
    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape)).eval()


def dense_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**_SHAPE, num_hidden_layers=2, tie_word_embeddings=True)).eval()


def replay_points(model: Any) -> list[ReplayPoint]:
    return [
        ReplayPoint(number, layer.mlp.gate, layer.mlp.experts, lambda logits, indices: logits.gather(-1, indices))
        for number, layer in enumerate(model.model.layers)
        if hasattr(layer.mlp, "experts")
    ]


ROUTING = RoutingSpec(num_layers=3, layer_ids=(1, 2), num_experts=6, top_k=2)


@pytest.fixture(scope="session")
def moe() -> Qwen3MoeForCausalLM:
    """Shared by tests that leave its weights alone."""
    return moe_model()


@pytest.fixture(scope="session")
def dense() -> Qwen3ForCausalLM:
    return dense_model()


@pytest.fixture
def own_moe() -> Qwen3MoeForCausalLM:
    """For tests that change weights."""
    return moe_model()


@pytest.fixture
def make_engine(tokenizer: Any) -> Callable[..., EmbeddedEngine]:
    """``make_engine(model, **settings)``, for 8 running requests and 128 tokens of context."""

    def make(model: Any, **settings: Any) -> EmbeddedEngine:
        points = replay_points(model)
        options = {"context_length": 128, "max_running_requests": 8, **settings}
        return EmbeddedEngine(
            model, tokenizer, EngineSettings(**options), replay_points=points, routing=ROUTING if points else None
        )

    return make


@pytest.fixture(scope="session")
def routing_spec() -> RoutingSpec:
    return ROUTING


class Reference:
    """Logprobs and routing of a sequence by one plain forward pass of the model."""

    def __init__(self, model: Any, ids: list[int], temperature: float = 1.0) -> None:
        indices: list[torch.Tensor] = []
        hooks = [
            point.router.register_forward_hook(lambda module, args, output: indices.append(output[2]))
            for point in replay_points(model)
        ]
        with torch.no_grad():
            self.logits = model(torch.tensor([ids])).logits[0]
        for hook in hooks:
            hook.remove()
        scaled = (self.logits.float() / temperature).log_softmax(-1)
        following = torch.tensor(ids[1:])
        self.logprobs = scaled[:-1].gather(-1, following[:, None])[:, 0].numpy()
        """``[T-1]``: of tokens 1 and on."""
        self.routing = torch.stack(indices, 1).numpy() if indices else None
        """``[T, moe_layers, top_k]``."""


@pytest.fixture(scope="session")
def reference() -> type[Reference]:
    return Reference


async def _post(http: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, Any]:
    """Status and JSON (or text) of a POST."""
    async with http.post(url, json=body) as response:
        if response.content_type == "application/json":
            return response.status, await response.json()
        return response.status, await response.text()


class Gate:
    """Holds forward passes of an engine's model and counts them, so that tests decide when a step happens."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.entered = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)
        runner = engine._scheduler._runner
        forward = runner.forward

        def held(*args: Any) -> Any:
            self.entered.release()
            assert self.permits.acquire(timeout=20)
            return forward(*args)

        runner.forward = held  # type: ignore[method-assign]

    async def at_forward(self) -> None:
        """Wait until the engine is about to run a forward pass."""
        assert await anyio.to_thread.run_sync(lambda: self.entered.acquire(timeout=20))

    def permit(self, count: int = 1) -> None:
        """Let ``count`` forward passes run."""
        self.permits.release(count)

    def open(self) -> None:
        """Let all later passes run."""
        self.permits.release(100_000)


@pytest.fixture
def serve(serving: Callable[..., Any]) -> Callable[..., Any]:
    """``async with serve(app) as url``."""

    @asynccontextmanager
    async def serve(app: Any) -> AsyncIterator[str]:
        async with serving(app) as server:
            yield server.url

    return serve


@pytest.fixture
def served(serve: Callable[..., Any]) -> Callable[..., Any]:
    """``async with served(engine) as (url, http)``: an engine on loopback and an HTTP session."""

    @asynccontextmanager
    async def served(engine: EmbeddedEngine) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
        connector = aiohttp.TCPConnector(limit=0)
        async with serve(create_app(engine)) as url, aiohttp.ClientSession(connector=connector) as http:
            yield url, http

    return served


@pytest.fixture
def post() -> Callable[..., Any]:
    """``status, body = await post(http, url, json)``."""
    return _post


@pytest.fixture
def gate() -> type[Gate]:
    """``gate(engine)`` holds its forward passes."""
    return Gate
