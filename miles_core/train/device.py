"""Where the torch backend computes."""

from __future__ import annotations

from typing import Literal

import torch

from miles_core.errors import ConfigError

DeviceName = Literal["auto", "cpu", "cuda"]


def pick_device(name: DeviceName) -> torch.device:
    """The device of a name; ``auto`` is ``cuda`` where torch sees a GPU. ``cuda`` is the first GPU that is visible.

    Raises:
        ConfigError: if there is no GPU and one is asked for.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a build for CPUs"
        raise ConfigError(
            f"train.device = 'cuda', but torch {torch.__version__} ({build}) sees no GPU",
            remedy="Install a CUDA build of torch, look at nvidia-smi and CUDA_VISIBLE_DEVICES, or set "
            "train.device = 'cpu'.",
        )
    return torch.device("cuda", 0)
