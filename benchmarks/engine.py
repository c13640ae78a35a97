"""The embedded engine over HTTP against Hugging Face ``generate()`` on the same prompts."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import torch
from anyio import to_thread

from benchmarks import serving
from benchmarks.load import client, post, wave
from benchmarks.report import Report, Value
from benchmarks.timing import Timings
from benchmarks.training import CONFIG
from miles_core.app.wiring import wire
from miles_core.config.load import load_config
from miles_core.session.tito import TemplateRenderer
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.train.snapshot import copy_tokenizer

if TYPE_CHECKING:
    import aiohttp

    from miles_core.app.wiring import Wiring

ENGINE, YARDSTICK = "embedded engine", "generate()"
REQUESTS = (1, 16, 256)
GROUP_SIZE = 16


def run(*, new_tokens: int = 6, repeats: int = 7) -> Report:
    """Tokens per second of the embedded engine against Hugging Face generate().

    1, 16 and 256 concurrent requests of the quickstart, in groups of 16 that share a prompt. The engine answers over
    HTTP with logprobs and routing, and its prefix cache is empty before each wave. The yardstick is plain
    generate() of the same prompts as one batch: no HTTP, no logprobs. Both use one thread and a random model.

    Parameters
    ----------
    new_tokens
        Tokens that every request generates; end-of-sequence is ignored.
    repeats
        Waves of each kind, in turns.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="miles-engine-") as folder:
        rows = anyio.run(_run, Path(folder), new_tokens, repeats)
    return Report(
        "engine",
        rows,
        notes=(
            f"{new_tokens} tokens a request, {repeats} waves of each kind in turns, one thread.",
            "Yardstick: plain Hugging Face generate() of the same prompts in one batch, in process.",
            "The engine's figure includes HTTP, logprobs and routed experts; its prefix cache starts empty.",
        ),
    )


async def _run(folder: Path, new_tokens: int, repeats: int) -> list[dict[str, Value]]:
    wiring = wire(load_config(CONFIG), folder)
    model = wiring.model.bridge.build(str(wiring.model.path), dtype="float32", init="random", seed=0)
    checkpoint = folder / "model"
    model.save_pretrained(checkpoint)
    copy_tokenizer(wiring.model.path, checkpoint)
    prompts = _prompts(wiring, max(REQUESTS))
    rows: list[dict[str, Value]] = []
    async with serving.engine(checkpoint, dtype="float32", log=folder / "engine.log") as url, client() as http:
        for count in REQUESTS:
            work = _Work(url, http, model, prompts[:count], new_tokens)
            timings = Timings([YARDSTICK, ENGINE], YARDSTICK)
            for case in (YARDSTICK, ENGINE):  # allocations and lazy set-up are not what is compared
                await work.seconds(case)
            for case in timings.rounds(repeats):
                timings.add(case, await work.seconds(case))
            rows += [
                {"requests": count, **timings.rate_row(case, count * new_tokens, "tokens_per_s")}
                for case in (YARDSTICK, ENGINE)
            ]
    return rows


def _prompts(wiring: Wiring, count: int) -> list[list[int]]:
    """The first prompts of a quickstart step, each for a group of requests."""
    renderer = TemplateRenderer(ChatTokenizer.load(wiring.model.path))
    tasks = wiring.build("data_sources", wiring.config.data).take(count // GROUP_SIZE)
    return [renderer.prompt(task.messages, task.tools) for _, task in tasks for _ in range(GROUP_SIZE)]


@dataclass(frozen=True, eq=False)
class _Work:
    """The same prompts for both sides."""

    url: str
    http: aiohttp.ClientSession
    model: Any
    prompts: list[list[int]]
    new_tokens: int

    async def seconds(self, case: str) -> float:
        """Generate once."""
        if case == YARDSTICK:
            return await to_thread.run_sync(self._generate)
        await post(self.http, f"{self.url}/flush_cache")
        return await wave(self.http, f"{self.url}/generate", self._bodies(), len(self.prompts))

    def _bodies(self) -> list[bytes]:
        options = {"temperature": 1.0, "max_new_tokens": self.new_tokens, "ignore_eos": True}
        rest = {"sampling_params": options, "return_logprob": True, "return_routed_experts": True}
        return [json.dumps({"input_ids": prompt, **rest}).encode() for prompt in self.prompts]

    def _generate(self) -> float:
        ids = torch.tensor(self.prompts)
        limits = {"min_new_tokens": self.new_tokens, "max_new_tokens": self.new_tokens}
        started = time.perf_counter()
        self.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, pad_token_id=0, **limits)
        return time.perf_counter() - started
