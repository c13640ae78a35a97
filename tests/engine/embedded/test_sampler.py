"""Sampling: the distribution is the softmax, and a row's noise depends on its own seed and position only."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.engine.embedded.columns import Columns
from miles_core.engine.embedded.noise import gumbel
from miles_core.engine.embedded.sampler import sample
from miles_core.engine.embedded.sampling_params import SamplingOptions
from miles_core.errors import EngineError

SEEDS = st.integers(-(1 << 63), (1 << 63) - 1)
CHI_SQUARE_9_DF_P_1E_6 = 45.1


def columns_of(rows: list[tuple[SamplingOptions, int]], *, vocab_size: int, outputs: int = 0) -> Columns:
    columns = Columns(len(rows))
    for slot, (options, seed) in enumerate(rows):
        progress = SimpleNamespace(output_ids=range(outputs))
        spec = SimpleNamespace(sampling=options, prompt=range(5))
        request = SimpleNamespace(slot=slot, spec=spec, seed=seed, progress=progress)
        columns.set(request, context_length=1000, vocab_size=vocab_size, eos=(1,))  # type: ignore[arg-type]
    return columns


def draws(options: SamplingOptions, logits: torch.Tensor, count: int, outputs: int = 0) -> np.ndarray:
    columns = columns_of([(options, seed) for seed in range(count)], vocab_size=len(logits), outputs=outputs)
    ids, _ = sample(logits.expand(count, -1), columns, np.arange(count))
    return np.bincount(ids, minlength=len(logits))


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_draws_over_seeds_follow_the_softmax(temperature: float) -> None:
    logits = torch.linspace(-2, 2, 10)
    counts = draws(SamplingOptions(temperature=temperature), logits, 20_000)
    expected = 20_000 * (logits / temperature).softmax(-1).numpy()
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE_9_DF_P_1E_6


def test_draws_over_positions_of_one_seed_follow_the_softmax() -> None:
    logits = torch.linspace(-2, 2, 10)
    noise = gumbel(torch.full((20_000,), 7), torch.arange(20_000), 10)
    counts = np.bincount((logits + noise).argmax(-1).numpy(), minlength=10)
    expected = 20_000 * logits.softmax(-1).numpy()
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE_9_DF_P_1E_6


def test_neighbouring_seeds_and_positions_are_uncorrelated() -> None:
    noise = gumbel(torch.arange(200), torch.zeros(200, dtype=torch.int64), 500)
    later = gumbel(torch.arange(200), torch.ones(200, dtype=torch.int64), 500)
    for left, right in [(noise[:-1], noise[1:]), (noise, later), (noise[:, :-1], noise[:, 1:])]:
        pair = torch.stack([left.flatten(), right.flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.02


@given(rows=st.lists(st.tuples(SEEDS, st.integers(0, 5000)), min_size=1, max_size=8), pick=st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_noise_of_a_row_is_the_same_in_every_batch(rows: list[tuple[int, int]], pick: int) -> None:
    seeds, positions = (torch.tensor(column) for column in zip(*rows, strict=True))
    row = pick % len(rows)
    batch = gumbel(seeds, positions, 50)
    alone = gumbel(seeds[row : row + 1], positions[row : row + 1], 80)
    assert torch.equal(batch[row], alone[0, :50])
    assert bool(batch.isfinite().all())


@given(temperature=st.floats(0.05, 5), seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_logprob_is_that_of_scaled_logits_without_the_filters(temperature: float, seed: int) -> None:
    logits = torch.linspace(-1, 1, 12)[None]
    options = SamplingOptions(temperature=temperature, top_k=3, top_p=0.9, min_p=0.1)
    ids, logprobs = sample(logits, columns_of([(options, seed)], vocab_size=12), np.array([0]))
    assert logprobs[0] == pytest.approx(float((logits / temperature).log_softmax(-1)[0, ids[0]]), abs=1e-5)


def test_temperature_zero_is_greedy_with_raw_logprobs() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    columns = columns_of([(SamplingOptions(temperature=0.0), 5)], vocab_size=3)
    ids, logprobs = sample(logits, columns, np.array([0]))
    assert ids[0] == 1
    assert logprobs[0] == pytest.approx(float(logits.log_softmax(-1)[0, 1]))


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        (SamplingOptions(top_k=2), {8, 9}),
        (SamplingOptions(top_p=0.5), {8, 9}),
        (SamplingOptions(min_p=0.3), {7, 8, 9}),
        (SamplingOptions(top_k=3, min_p=0.5), {8, 9}),
    ],
)
def test_filters_keep_the_tokens_that_sglang_keeps(options: SamplingOptions, allowed: set[int]) -> None:
    # probabilities fall by a factor of e^-0.5 = 0.61 from token 9 down: 0.40, 0.24, 0.15, ...
    counts = draws(options, torch.arange(10) * 0.5, 3000)
    assert set(np.flatnonzero(counts)) == allowed


def test_filters_of_one_row_leave_the_others_alone() -> None:
    logits = (torch.arange(10) * 0.5).expand(400, -1)
    free, narrow = SamplingOptions(), SamplingOptions(top_k=1)
    mixed = columns_of([(narrow if seed % 2 else free, seed) for seed in range(400)], vocab_size=10)
    plain = columns_of([(free, seed) for seed in range(400)], vocab_size=10)
    slots = np.arange(400)
    ids, reference = sample(logits, mixed, slots)[0], sample(logits, plain, slots)[0]
    assert (ids[1::2] == 9).all()
    assert (ids[::2] == reference[::2]).all()


def test_stop_tokens_cannot_be_drawn_before_min_new_tokens() -> None:
    logits = torch.tensor([0.0, 5.0, 5.0, 0.0])
    options = SamplingOptions(min_new_tokens=3, stop_token_ids=(2,))
    assert draws(options, logits, 500, outputs=2)[[1, 2]].sum() == 0
    assert draws(options, logits, 500, outputs=3)[[1, 2]].sum() > 400


def test_broken_weights_are_an_error_and_not_a_token() -> None:
    logits = torch.tensor([[0.0, float("nan")]])
    with pytest.raises(EngineError, match="not finite"):
        sample(logits, columns_of([(SamplingOptions(), 0)], vocab_size=2), np.array([0]))
