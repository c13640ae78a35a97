"""Noise that depends on nothing but (seed, output position, vocabulary index)."""

from __future__ import annotations

import torch

# Constants of the splitmix64 generator (Steele, Lea and Flood, OOPSLA 2014), as signed 64-bit integers.
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def gumbel(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Standard Gumbel noise, float64 ``[B, vocab_size]``, for int64 ``seeds`` and ``positions`` ``[B]``.

    Counter-based: a row is the same in every batch and on every machine, so a seeded request can be reproduced
    whatever ran beside it.
    """
    rows = _mix(_mix(seeds) + positions * _GAMMA)
    index = torch.arange(1, vocab_size + 1, dtype=torch.int64)
    bits = _mix(rows[:, None] + index * _GAMMA)
    # 53 random bits, shifted by half a step so that neither 0 nor 1 occurs
    uniform = _logical_shift(bits, 11).to(torch.float64).add_(0.5).mul_(2.0**-53)
    return uniform.log_().neg_().log_().neg_()


def _mix(value: torch.Tensor) -> torch.Tensor:
    value = (value ^ _logical_shift(value, 30)) * _MIX_1
    value = (value ^ _logical_shift(value, 27)) * _MIX_2
    return value ^ _logical_shift(value, 31)


def _logical_shift(value: torch.Tensor, bits: int) -> torch.Tensor:
    return (value >> bits) & ((1 << (64 - bits)) - 1)
