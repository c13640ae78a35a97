"""The torch backend: logprobs as engines report them, checkpoints that plain transformers loads."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from miles_core.errors import CheckpointError

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


def test_a_checkpoint_loads_in_plain_transformers_with_its_tokenizer(make_backend, tmp_path: Path) -> None:
    backend = make_backend()
    backend.save(tmp_path / "checkpoints" / "step-0")
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoints" / "step-0", output_loading_info=True)
    assert not any(report.values())
    ids = torch.tensor([[5, 9, 40, 41]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, backend.model.eval()(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "checkpoints" / "step-0")
    assert tokenizer.decode(tokenizer.encode("get c")) == "get c"
    assert model.generation_config.eos_token_id == 2


def test_a_checkpoint_is_never_overwritten(make_backend, tmp_path: Path) -> None:
    backend = make_backend(dense=True)
    backend.save(tmp_path / "step-0")
    with pytest.raises(CheckpointError, match="exists already"):
        backend.save(tmp_path / "step-0")


def test_the_name_of_a_checkpoint_is_synced_after_its_files(make_backend, tmp_path: Path, monkeypatch) -> None:
    """After a power cut a folder keeps only the names that were there when it was synced."""
    synced: list[tuple[Path, bool]] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path, (tmp_path / "step-0").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    make_backend(dense=True).save(tmp_path / "step-0")
    assert synced[-2:] == [(tmp_path / ".step-0.partial", False), (tmp_path, True)]
    assert {path.name for path, _ in synced[:-2]} == {path.name for path in (tmp_path / "step-0").iterdir()}


def test_a_save_that_cannot_finish_leaves_nothing_and_harms_no_other(tmp_path: Path) -> None:
    """The file-size limit stands in for a full disk: both fail in the middle of a write."""
    script = f"""
        import resource, signal
        from pathlib import Path
        from transformers import AutoConfig, AutoModelForCausalLM
        from miles_core.errors import CheckpointError
        from miles_core.train.checkpoint import save_model
        source, target = Path({str(Path(__file__).parents[2] / "examples/quickstart/model")!r}), Path({str(tmp_path)!r})
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
        save_model(model, source, target / "step-0")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            save_model(model, source, target / "step-1")
        except CheckpointError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert "cannot save" in done.stdout
    assert "earlier checkpoints are whole" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["step-0"]
    AutoModelForCausalLM.from_pretrained(tmp_path / "step-0")
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
