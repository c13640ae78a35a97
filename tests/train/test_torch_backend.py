"""The torch backend: logprobs as engines report them."""

from __future__ import annotations

import pytest
import torch

from .conftest import make_sample


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dense", [False, True])
def test_logprobs_are_those_of_scaled_logits(make_backend, temperature: float, dense: bool) -> None:
    backend = make_backend(dense=dense)
    samples = [make_sample(length, seed=length, temperature=temperature) for length in (12, 7)]
    outputs = backend.forward(samples, replay=False)
    for row, sample in enumerate(samples):
        ids = torch.tensor(sample.tokens.astype("int64"))[None]
        with torch.no_grad():
            logits = backend.model(input_ids=ids).logits[0, :-1].float()
        scale = torch.ones(len(sample.tokens) - 1)
        scale[2:] = temperature  # tokens from 3 on were generated
        plain = (logits / scale[:, None]).log_softmax(-1)
        expected = plain.gather(-1, ids[0, 1:, None])[:, 0]
        assert (outputs.logprobs[row, 1 : len(ids[0])] - expected).abs().max() < 1e-5
        entropy = -(plain.exp() * plain).sum(-1)
        assert outputs.entropy is not None
        assert (outputs.entropy[row, 1 : len(ids[0])] - entropy).abs().max() < 1e-4
