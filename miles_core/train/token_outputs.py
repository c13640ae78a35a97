"""Logprobs and entropies of samples: in one pass of a micro-batch or, like a deterministic engine, token by token."""

from __future__ import annotations

from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from miles_core.kinds.losses import TokenOutputs
from miles_core.train.layout import fed_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from miles_core.train.layout import InputLayout
    from miles_core.types import Sample


def batch_outputs(model: Any, samples: Sequence[Sample], layout: InputLayout, *, entropy: bool) -> TokenOutputs:
    """The outputs ``[B, T]`` by one forward pass over the whole layout."""
    fed = fed_tokens(samples)
    device = model.device
    targets = layout.place_tokens(fed.targets, 0).view(-1, 1).to(device)
    scale = layout.place_tokens(fed.temperatures, 1).view(-1, 1).to(device)
    ids = layout.place_tokens(fed.tokens, 0).to(device)
    positions = None if layout.positions is None else layout.positions.to(device)
    output = model(input_ids=ids, position_ids=positions, use_cache=False)
    logits = output.logits.flatten(0, 1).float() / scale
    normaliser = logits.logsumexp(-1)
    logprobs = layout.by_sample(logits.gather(-1, targets)[:, 0] - normaliser)
    if not entropy:
        return TokenOutputs(logprobs)
    return TokenOutputs(logprobs, layout.by_sample(normaliser - (logits.softmax(-1) * logits).sum(-1)))


def one_by_one_outputs(
    model: Any,
    samples: Sequence[Sample],
    layout: InputLayout,
    *,
    entropy: bool,
    routes: Sequence[bytes],
    token_pass: Callable[[int], AbstractContextManager[None]],
) -> TokenOutputs:
    """The outputs ``[B, T]`` by one pass per token over a cache of keys and values.

    Each pass gives the model the shapes, the mask and the types that the embedded engine gives it in deterministic mode
    (docs/decisions/0010), so logprobs are those that the engine sampled from, bit by bit. ``layout`` is packed;
    ``token_pass(n)`` is entered around the pass of fed token ``n``. What samples have in common from their first token
    on, ``routes`` ``[N]`` included, is computed once. The gradient's memory grows with the square of a sample's length.
    """
    fed = fed_tokens(samples)
    keys = list(zip(fed.tokens.tolist(), routes, strict=True))
    logprobs: list[Any] = [None] * layout.fed
    entropies: list[Any] = [None] * layout.fed
    for number, logits in _token_logits(model, keys, layout, token_pass):
        scaled = (logits.float() / torch.from_numpy(fed.temperatures[number : number + 1, None])).log_softmax(-1)
        logprobs[number] = scaled[:, fed.targets[number]]
        if entropy:
            entropies[number] = -(scaled.exp() * scaled).sum(-1)
    outputs = layout.by_sample(torch.cat(logprobs))
    return TokenOutputs(outputs, layout.by_sample(torch.cat(entropies)) if entropy else None)


def _token_logits(
    model: Any,
    keys: list[tuple[int, bytes]],
    layout: InputLayout,
    token_pass: Callable[[int], AbstractContextManager[None]],
) -> Iterator[tuple[int, torch.Tensor]]:
    """Each fed token's number and the logits ``[1, V]`` after it, a sample after the one that it shares most with."""
    spans = sorted(layout.spans, key=lambda span: keys[span])
    shared = [0, *(_common(keys[before], keys[after]) for before, after in pairwise(spans)), 0]
    cache, known = DynamicCache(), list[torch.Tensor]()
    for index, span in enumerate(spans):
        start, keep = shared[index], shared[index + 1]
        cache, known = _cut(cache, start), known[:start]
        for position, number in enumerate(range(span.start, span.stop)):
            if position < start:
                logits = known[position]
            else:
                with token_pass(number):
                    logits = _pass(model, keys[number][0], position, cache)
            if start <= position < keep:
                known.append(logits)
            yield number, logits


def _pass(model: Any, token: int, position: int, cache: DynamicCache) -> torch.Tensor:
    output = model(
        input_ids=torch.tensor([[token]]),
        attention_mask=torch.ones(1, 1, 1, position + 1, dtype=torch.bool),
        position_ids=torch.tensor([[position]]),
        cache=cache,
        use_cache=True,
        logits_to_keep=torch.zeros(1, 1, dtype=torch.int64),
    )
    logits: torch.Tensor = output.logits[:, 0]
    return logits


def _cut(cache: DynamicCache, length: int) -> DynamicCache:
    """The first ``length`` positions of a cache; the next pass copies them into memory of its own."""
    cut = DynamicCache()
    if length:
        layers: Sequence[Any] = cache.layers  # DynamicLayer, as a cache without a config makes them
        for index, layer in enumerate(layers):
            cut.update(layer.keys[:, :, :length], layer.values[:, :, :length], index)
    return cut


def _common(first: Sequence[object], second: Sequence[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
