"""Building a causal language model from a Hugging Face directory, as every bridge here does it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from miles_core.api import ConfigError
from miles_plugins.bridges.hf_config import check_config

Attention = Literal["sdpa", "eager"]


def build_model(
    architecture: str, model_path: str, *, dtype: str, init: str, seed: int, attention: Attention = "sdpa"
) -> Any:
    """The model in evaluation mode, on the CPU.

    ``init="random"`` draws the weights from ``seed`` and leaves torch's own generators as they were.

    Raises:
        ConfigError: if the directory, its architecture or its weights are not what the bridge builds.
    """
    path = Path(model_path)
    check_config(path, architecture)
    import torch
    import transformers

    model_class = getattr(transformers, architecture)
    torch_dtype = getattr(torch, _one_of("dtype", dtype, ("float32", "bfloat16")))
    pretrained = _one_of("init", init, ("pretrained", "random")) == "pretrained"
    config = _read_config(model_class.config_class, path)
    if pretrained:
        return _load(model_class, config, path, torch_dtype, attention)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed the GPUs, whose generators this scope does not restore.
        torch.default_generator.manual_seed(seed)
        return model_class._from_config(config, dtype=torch_dtype, attn_implementation=attention).eval()


def _read_config(config_class: Any, path: Path) -> Any:
    from huggingface_hub.errors import StrictDataclassError

    try:
        return config_class.from_pretrained(path, local_files_only=True)
    except (StrictDataclassError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path / 'config.json'} does not describe a {config_class.__name__}: {' '.join(str(error).split())}",
            remedy="Use the config.json that belongs to the checkpoint.",
        ) from error


def _load(model_class: Any, config: Any, path: Path, dtype: Any, attention: Attention) -> Any:
    if not any(path.glob("*.safetensors")):
        raise ConfigError(
            f"init = 'pretrained' needs *.safetensors files in {path}; there are none",
            remedy="Download the weights in safetensors format, or set [model] init = 'random'.",
        )
    model, report = model_class.from_pretrained(
        path,
        config=config,
        dtype=dtype,
        attn_implementation=attention,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    report["unexpected_keys"] = [name for name in report["unexpected_keys"] if not _predicts_ahead(config, name)]
    # transformers draws what a checkpoint lacks at random and only logs it.
    wrong = {kind: sorted(map(str, names)) for kind, names in report.items() if names}
    if wrong:
        listed = "; ".join(f"{kind}: {len(names)} ({', '.join(names[:3])})" for kind, names in wrong.items())
        raise ConfigError(
            f"the checkpoint in {path} does not fill {model_class.__name__}: {listed}",
            remedy="Use a whole checkpoint whose config.json belongs to its weights.",
        )
    return model.eval()


def _predicts_ahead(config: Any, name: str) -> bool:
    """Whether a tensor is of a multi-token prediction layer.

    Checkpoints number these layers on after the hidden ones; they are neither loaded nor trained nor written.
    """
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    ahead = getattr(config, "num_nextn_predict_layers", None) or 0
    return layer is not None and 0 <= int(layer[1]) - config.num_hidden_layers < ahead


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(f"model {what} must be one of {', '.join(allowed)}; got {value!r}")
    return value
