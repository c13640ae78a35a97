"""Building a causal language model from a Hugging Face directory, as every bridge here does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from miles_core.api import ConfigError

EMBEDDINGS = {"lm_head.weight": "model.embed_tokens.weight"}
"""The output projection that shares the input embeddings where ``tie_word_embeddings`` holds."""


def build_model(architecture: str, model_path: str, *, dtype: str, init: str, seed: int) -> Any:
    """The model in evaluation mode, on the CPU.

    ``init="random"`` draws the weights from ``seed`` and leaves torch's own generators as they were.

    Raises:
        ConfigError: if the directory, its architecture or its weights are not what the bridge builds.
    """
    path = Path(model_path)
    _check_architecture(path, architecture)
    import torch
    import transformers

    model_class = getattr(transformers, architecture)
    torch_dtype = getattr(torch, _one_of("dtype", dtype, ("float32", "bfloat16")))
    if _one_of("init", init, ("pretrained", "random")) == "pretrained":
        return _load(model_class, path, torch_dtype)
    config = model_class.config_class.from_pretrained(path, local_files_only=True)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed the GPUs, whose generators this scope does not restore.
        torch.default_generator.manual_seed(seed)
        return model_class._from_config(config, dtype=torch_dtype, attn_implementation="sdpa").eval()


def config_int(hf_config: Any, *names: str) -> int:
    """The first of ``names`` that ``config.json`` holds.

    Raises:
        ConfigError: if none of them is there as an integer.
    """
    for name in names:
        if isinstance(hf_config.get(name), int):
            return int(hf_config[name])
    raise ConfigError(
        f"config.json must hold {' or '.join(names)} as an integer; it has neither: {', '.join(sorted(hf_config))}"
        if len(names) > 1
        else f"config.json must hold {names[0]} as an integer; got {hf_config.get(names[0])!r}",
        remedy="Set [model] path to a whole checkpoint of this architecture.",
    )


def _load(model_class: Any, path: Path, dtype: Any) -> Any:
    if not any(path.glob("*.safetensors")):
        raise ConfigError(
            f"init = 'pretrained' needs *.safetensors files in {path}; there are none",
            remedy="Download the weights in safetensors format, or set [model] init = 'random'.",
        )
    model, report = model_class.from_pretrained(
        path,
        dtype=dtype,
        attn_implementation="sdpa",
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    # transformers draws what a checkpoint lacks at random and only logs it.
    wrong = {kind: sorted(map(str, names)) for kind, names in report.items() if names}
    if wrong:
        listed = "; ".join(f"{kind}: {len(names)} ({', '.join(names[:3])})" for kind, names in wrong.items())
        raise ConfigError(
            f"the checkpoint in {path} does not fill {model_class.__name__}: {listed}",
            remedy="Use a whole checkpoint whose config.json belongs to its weights.",
        )
    return model.eval()


def _check_architecture(path: Path, architecture: str) -> None:
    file = path / "config.json"
    try:
        found = json.loads(file.read_text("utf-8")).get("architectures")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the model directory {path} must hold a readable config.json: {error}",
            remedy="Set [model] path to a local Hugging Face directory; nothing is downloaded.",
        ) from error
    if found != [architecture]:
        raise ConfigError(
            f"this bridge builds {architecture}; {file} names architectures {found}",
            remedy="Choose the [model] bridge of that architecture, or another [model] path.",
        )


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(f"model {what} must be one of {', '.join(allowed)}; got {value!r}")
    return value
