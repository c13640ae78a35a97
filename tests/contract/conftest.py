"""Both engines as the processes that a run starts, on the same checkpoints; each is started once, when first used."""

from __future__ import annotations

import json
import os
import string
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import anyio
import anyio.from_thread
import numpy as np
import pybase64
import pytest
import torch
from anyio.from_thread import BlockingPortal
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from miles_core.api import PluginContext, RoutingSpec
from miles_core.app.processes import child
from miles_core.engine.client import HttpEngineClient
from miles_core.engine.embedded.plugin import Embedded
from miles_core.engine.sglang.cpu.environment import cpu_environment
from miles_core.engine.sglang.plugin import SGLang
from miles_core.errors import EngineError
from miles_core.kinds.engines import EngineCommand

CONTEXT = 2048
RUNNING = 8
START_SECONDS = 540.0
CHARACTERS = ["<pad>", "<eos>", "<unk>", *string.ascii_lowercase, *string.digits, " "]
_SHAPE = {
    "vocab_size": len(CHARACTERS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "max_position_embeddings": CONTEXT,
    "eos_token_id": CHARACTERS.index("<eos>"),
    "pad_token_id": CHARACTERS.index("<pad>"),
    "bos_token_id": None,
    "tie_word_embeddings": False,
}
# SGLang makes every layer of a Qwen3-MoE one with experts, and on a CPU rounds sizes of MLPs up to 32
_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True}
_CONFIG = """
[run]
steps = 1
[model]
path = "unused"
[data]
use = "jsonl"
path = "tasks.jsonl"
[rollout]
groups_per_step = 1
group_size = 2
max_context_tokens = 64
max_response_tokens = 16
[[environments]]
use = "lookup"
[[rewards]]
use = "exact_match"
[train]
replay_routing = {replay}
[engine]
use = "{engine}"
context_length = {context}
max_running_requests = {running}
"""


@dataclass(frozen=True)
class Served:
    """One engine with one model. ``long`` tokens keep it busy for a second or more."""

    engine: str
    model: str
    url: str
    model_path: str
    long: int
    http: aiohttp.ClientSession = field(repr=False, compare=False)
    reference: Any = field(repr=False, compare=False)

    async def post(self, path: str, body: Any = None, *, data: bytes | None = None) -> tuple[int, Any]:
        """Status and JSON (or text) of a POST; without ``body`` and ``data`` it has no body."""
        sent: dict[str, Any] = {"data": data} if body is None else {"json": body}
        async with self.http.post(self.url + path, **sent) as reply:
            return reply.status, _decoded(await reply.read())

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path) as reply:
            return reply.status, _decoded(await reply.read())

    async def generate(self, prompt: Any = (3, 4, 5), sampling: Any = None, **options: Any) -> Any:
        """The reply to a request that must succeed; ``prompt`` is ids, lists of ids, or text."""
        status, reply = await self.post("/generate", _body(prompt, sampling, options))
        assert status == 200, reply
        return reply

    @asynccontextmanager
    async def stream(self, prompt: Any = (3, 4, 5), sampling: Any = None, **options: Any) -> AsyncIterator[Stream]:
        """The events of a request, as they come; leaving the block early disconnects."""
        body = _body(prompt, sampling, options) | {"stream": True}
        async with self.http.post(f"{self.url}/generate", json=body) as reply:
            assert reply.status == 200, await reply.text()
            yield Stream(reply)

    @asynccontextmanager
    async def in_flight(self, **options: Any) -> AsyncIterator[Flight]:
        """A long request that has begun, under a rid of its own; after the block it has its reply."""
        # SGLang aborts the rid of a stream two seconds after its end, whoever has it by then
        flight = Flight(uuid.uuid4().hex)
        sampling = {"max_new_tokens": self.long, "ignore_eos": True}
        async with self.stream(sampling=sampling, rid=flight.rid, return_logprob=True, **options) as events:
            await events.until(3)
            yield flight
            flight.reply = await events.last()

    async def rid_comes_free(self, rid: str) -> bool:
        """Wait until no request of this name is inside, for less time than 2000 tokens of SGLang take."""
        body = {"rid": rid, "input_ids": [3], "sampling_params": {"max_new_tokens": 0}}
        with anyio.move_on_after(15):
            while (await self.post("/generate", body))[0] == 400:
                pass
            return True
        return False

    async def weight_version(self) -> str:
        return str((await self.get("/model_info"))[1]["weight_version"])

    @property
    def routing(self) -> RoutingSpec | None:
        return RoutingSpec(num_layers=2, layer_ids=(0, 1), num_experts=6, top_k=2) if self.model == "moe" else None

    def rows(self, reply: Any) -> np.ndarray[Any, Any]:
        """``[rows, layers, top_k]`` of a reply."""
        return np.frombuffer(pybase64.b64decode(reply["meta_info"]["routed_experts"]), "<i4").reshape(-1, 2, 2)

    def client(self, **options: Any) -> HttpEngineClient:
        options = {"vocab_size": len(CHARACTERS), "context_length": CONTEXT, "routing": self.routing, **options}
        return HttpEngineClient(self.url, self.http, **options)


@dataclass
class Flight:
    """A request in flight; ``reply`` is that of its end."""

    rid: str
    reply: Any = None


class Stream:
    """Server-sent events of ``/generate``, each with all there is so far, although SGLang sends what is new."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self._reply = reply
        self._so_far: dict[int, Any] = {}
        self.latest: Any = None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._events()

    async def _events(self) -> AsyncIterator[Any]:
        async for line in self._reply.content:
            if line.strip() == b"data: [DONE]":
                return
            if line.startswith(b"data: "):
                self.latest = self._whole(json.loads(line.removeprefix(b"data: ")))
                yield self.latest
        raise AssertionError(f"the stream ended without [DONE], after {self.latest}")

    def _whole(self, event: Any) -> Any:
        ids, meta = event["output_ids"], event["meta_info"]
        before = self._so_far.get(event.get("index", 0))
        if before is not None and len(ids) < meta["completion_tokens"]:
            event["text"] = before["text"] + event["text"]
            event["output_ids"] = before["output_ids"] + ids
            if "output_token_logprobs" in meta:
                meta["output_token_logprobs"] = (
                    before["meta_info"]["output_token_logprobs"] + meta["output_token_logprobs"]
                )
        self._so_far[event.get("index", 0)] = event
        return event

    async def until(self, tokens: int) -> None:
        """Read on until there are so many tokens."""
        async for event in self:
            if len(event["output_ids"]) >= tokens:
                assert event["meta_info"]["finish_reason"] is None
                return

    async def last(self) -> Any:
        async for _ in self:
            pass
        return self.latest


class Reference:
    """A checkpoint in Hugging Face transformers."""

    def __init__(self, path: Path) -> None:
        kind = Qwen3MoeForCausalLM if path.name.startswith("moe") else Qwen3ForCausalLM
        self.model = kind.from_pretrained(path, dtype=torch.float32).eval()

    def logprobs(
        self, prompt: Sequence[int], output: Sequence[int], temperature: float = 1.0, *, never: Sequence[int] = ()
    ) -> np.ndarray[Any, Any]:
        """Of each output token, ``[output]``; ``never`` are tokens that cannot be drawn."""
        with torch.no_grad():
            logits = self.model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1]
        logits[:, list(never)] = -torch.inf
        scaled = (logits / temperature).log_softmax(-1)
        return scaled.gather(-1, torch.tensor(output)[:, None])[:, 0].numpy()

    def routes(self, ids: Sequence[int]) -> np.ndarray[Any, Any]:
        """``[len(ids), layers, top_k]``."""
        with torch.no_grad():
            routers = self.model(torch.tensor([list(ids)]), output_router_logits=True).router_logits
        return np.stack([logits.topk(2, -1).indices.numpy() for logits in routers], 1)


def _body(prompt: Any, sampling: Any, options: dict[str, Any]) -> dict[str, Any]:
    is_text = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], str))
    given = {"text": prompt} if is_text else {"input_ids": list(prompt)}
    return {**given, "sampling_params": {} if sampling is None else sampling, **options}


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each model its checkpoint ``NAME``, and ``NAME-2`` with other weights."""
    folder = tmp_path_factory.mktemp("checkpoints")
    torch.set_num_threads(1)
    backend = Tokenizer(models.WordLevel({text: i for i, text in enumerate(CHARACTERS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    special = {"eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    for suffix, seed in (("", 0), ("-2", 1)):
        torch.manual_seed(seed)
        built = {"moe": Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SHAPE, **_EXPERTS))}
        built["dense"] = Qwen3ForCausalLM(Qwen3Config(**_SHAPE))
        for name, model in built.items():
            model.save_pretrained(folder / f"{name}{suffix}")
            tokenizer.save_pretrained(folder / f"{name}{suffix}")
    return folder


STARTED: pytest.StashKey[Engines] = pytest.StashKey()
"""Those of this folder's tests; other folders may use the fixtures."""


class Engines:
    """The processes of the session, each started when it is first needed, together with others that will be."""

    def __init__(self, checkpoints: Path, wanted: set[tuple[str, str]], portal: BlockingPortal) -> None:
        self._checkpoints, self._wanted, self._portal = checkpoints, wanted, portal
        self._urls: dict[tuple[str, str], Future[str]] = {}
        self._end: anyio.Event = portal.call(anyio.Event)

    def url(self, engine: str, model: str) -> str:
        """That of an engine that serves; skips where SGLang is not set up."""
        if engine == "sglang":
            _require_sglang()
        for pair in sorted({(engine, model), *(pair for pair in self._wanted if pair[0] == engine)}):
            if pair not in self._urls:
                self._urls[pair] = Future()
                self._portal.start_task_soon(self._serve, *pair, self._urls[pair])
        return self._urls[engine, model].result()

    def close(self) -> None:
        self._portal.call(self._end.set)

    async def _serve(self, engine: str, model: str, url: Future[str]) -> None:
        command = self._command(engine, model)
        log = self._checkpoints / f"{engine}-{model}.log"
        options: Any = {"log": log, "error": EngineError, "start_timeout": START_SECONDS}
        try:
            async with child(engine, command.argv, environment=command.environment, **options) as running:
                url.set_result(running.ready["url"])
                await self._end.wait()
        except EngineError as error:
            url.set_exception(error)

    def _command(self, engine: str, model: str) -> EngineCommand:
        config = self._checkpoints / f"{engine}-{model}.toml"
        replay = "true" if model == "moe" else "false"
        config.write_text(_CONFIG.format(engine=engine, replay=replay, context=CONTEXT, running=RUNNING))
        kind: Any = {"embedded": Embedded, "sglang": SGLang}[engine]
        options = kind.Config(context_length=CONTEXT, max_running_requests=RUNNING)
        plugin = kind(options, PluginContext())
        command: EngineCommand = plugin.command(str(self._checkpoints / model), index=0, config_path=str(config))
        return command


def _is_ours(item: pytest.Item) -> bool:
    return Path(__file__).parent in item.path.parents


def _require_sglang() -> None:
    if cpu_environment() is not None:
        return
    message = "SGLang is not set up for this machine: run `make sglang-cpu`"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of an engine waits for its start."""
    for item in items:
        if _is_ours(item):
            item.add_marker(pytest.mark.timeout(START_SECONDS + 60))


@pytest.fixture(scope="session")
def engines(checkpoints: Path, request: pytest.FixtureRequest) -> Iterator[Engines]:
    wanted: set[tuple[str, str]] = set()
    for item in request.session.items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if "model" in parameters:
            wanted.add((parameters.get("engine", "sglang"), parameters["model"]))
    with anyio.from_thread.start_blocking_portal() as portal:
        engines = Engines(checkpoints, wanted, portal)
        request.session.stash.setdefault(STARTED, engines)
        yield engines
        if request.session.stash.get(STARTED, None) is engines:
            del request.session.stash[STARTED]  # the very last test ends it here, before its own hook
        engines.close()


@pytest.hookimpl(trylast=True)  # after the test's own fixtures, which still ask the engines
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """The processes end with the last test that needs them: the other tests want their memory and cores."""
    # The last of all: parameters of session scope sort other folders' tests in between.
    last = next(each for each in reversed(item.session.items) if _is_ours(each))
    if item is last and (engines := item.session.stash.get(STARTED, None)):
        engines.close()


@pytest.fixture(scope="session")
def references(checkpoints: Path) -> Callable[[str], Reference]:
    """``references("moe")``, or ``"moe-2"``."""
    return cache(lambda name: Reference(checkpoints / name))


@pytest.fixture(scope="session", params=["embedded", "sglang"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", params=["moe", "dense"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sglang(engines: Engines, model: str, checkpoints: Path) -> Any:
    """SGLang's server of a model, for tests that bring their own client and put everything back."""
    return SimpleNamespace(url=engines.url("sglang", model), model_path=str(checkpoints / model))


@pytest.fixture
async def served(
    engines: Engines, engine: str, model: str, checkpoints: Path, references: Callable[[str], Reference]
) -> AsyncIterator[Served]:
    """One engine with one model, with the weights of its checkpoint as version 0."""
    url, path = engines.url(engine, model), str(checkpoints / model)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        long = 400 if engine == "sglang" else 250
        served = Served(engine, model, url, path, long, http, references(model))
        yield served
        await served.post("/abort_request", {"abort_all": True})
        await served.post("/continue_generation", {})
        if engine == "sglang":
            await served.post("/end_weight_update", {})
        if engine == "sglang" and (await served.get("/model_info"))[1]["model_path"] != path:
            await served.post("/update_weights_from_disk", {"model_path": path})
        await served.post("/update_weight_version", {"new_version": "0"})
