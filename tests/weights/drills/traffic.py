"""Requests all the time, and the proof that each reply comes from weights that were committed, and from no others."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import anyio
import numpy as np
import torch
from transformers import DynamicCache

from miles_core.engine.client import HttpEngineClient
from miles_core.errors import EngineError
from miles_core.types import GenerateRequest, Generation, SamplingParams

from .engines import Engine

REQUEST_SECONDS = 2.0
_numbers = itertools.count()


@dataclass(frozen=True, eq=False)
class Reply:
    """What one engine generated for a prompt."""

    engine: str
    prompt: tuple[int, ...]
    generation: Generation

    @property
    def versions(self) -> list[int]:
        return [span.version for span in self.generation.versions]


@dataclass(eq=False)
class Traffic:
    """Asks engines directly, those that are left behind too: none may answer with torn weights.

    ``recomputed``: updates retract requests, whose keys and values are then computed anew by the new weights.
    """

    http: aiohttp.ClientSession
    facts: Any
    replies: list[Reply] = field(default_factory=list)
    refused: int = 0
    recomputed: bool = False

    async def ask(self, engine: Engine, tokens: int = 6) -> Reply | None:
        """One generation; ``None`` if the engine refuses, is paused or stopped."""
        client = HttpEngineClient(
            engine.url,
            self.http,
            vocab_size=self.facts.vocab_size,
            context_length=self.facts.context_length,
            routing=None,
        )
        prompt = tuple(random.choices(range(5, self.facts.vocab_size), k=7))
        sampling = SamplingParams(temperature=1.0, max_new_tokens=tokens)
        reply = None
        with anyio.move_on_after(REQUEST_SECONDS):
            try:
                generation = await client.generate(GenerateRequest(prompt, sampling, f"drill-{next(_numbers)}"))
            except EngineError:
                generation = None
            if generation is not None and len(generation.output_ids):
                reply = Reply(engine.name, prompt, generation)
        if reply is None:
            self.refused += 1
        else:
            self.replies.append(reply)
        return reply

    async def flow(self, engine: Engine) -> None:
        """Ask for ever, one request after the other."""
        for number in itertools.count():
            if await self.ask(engine, tokens=4 + 20 * (number % 2)) is None:
                await anyio.sleep(0.01)

    def check(
        self, committed: set[int], models: Callable[[int], torch.nn.Module], *, tolerance: float = 1e-3
    ) -> set[int]:
        """Hold every reply against the weights of the versions that it names; the versions seen."""
        for reply in self.replies:
            assert set(reply.versions) <= committed, f"{reply.engine} served {reply.versions}, committed: {committed}"
            expected = logprobs(reply, models, recomputed=self.recomputed)
            worst = float(np.abs(expected - reply.generation.logprobs).max())
            assert worst < tolerance, f"{reply.engine} served other weights than those of {reply.versions}: {worst:g}"
        return {version for reply in self.replies for version in reply.versions}


def logprobs(reply: Reply, models: Callable[[int], torch.nn.Module], *, recomputed: bool) -> np.ndarray:
    """Those of the reply's tokens by the weights of its spans.

    Keys and values before a span stay what they were, unless they are ``recomputed`` by the span's weights.
    """
    generation = reply.generation
    ids = torch.tensor([[*reply.prompt, *generation.output_ids.tolist()]])
    cache, rows, done = DynamicCache(), [], 0
    spans: Sequence[Any] = generation.versions
    with torch.no_grad():
        for span in spans:
            end = len(reply.prompt) + span.end - 1  # the last token of a span is fed by whoever generates the next
            if recomputed:
                rows.append(models(span.version)(ids[:, :end]).logits[0, done:].float())
            else:
                output = models(span.version)(ids[:, done:end], cache=cache, use_cache=True)
                rows.append(output.logits[0].float())
            done = end
    predicted = torch.cat(rows)[len(reply.prompt) - 1 :].log_softmax(-1)
    chosen = torch.tensor(generation.output_ids.tolist())
    return predicted.gather(-1, chosen[:, None])[:, 0].numpy()
