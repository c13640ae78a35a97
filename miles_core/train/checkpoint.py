"""Model checkpoints: Hugging Face directories that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from miles_core.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

# What makes a directory loadable beside config and weights; copied, so that it stays as it was to the byte.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
)


def save_model(model: Any, source: Path, path: Path) -> None:
    """Write ``model`` (a Hugging Face model) and the tokenizer files of ``source`` to the new directory ``path``.

    The files are written beside it, synced and renamed, so a full disk, a kill or a power cut never leaves half a
    checkpoint and never harms another one.

    Raises:
        CheckpointError: if ``path`` exists, or the files cannot be written; half a checkpoint is removed.
    """
    if path.exists():
        raise CheckpointError(f"{path} exists already", remedy="Give the run another id, or remove the folder.")
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        model.save_pretrained(partial)
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copy2(source / name, partial / name)
        for file in [*partial.iterdir(), partial]:
            _sync(file)
        partial.rename(path)
        _sync(path.parent)  # without it the name may be lost although the files are safe
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"cannot save {path}: {error}", remedy=_remedy(error, path)) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remedy(error: Exception, path: Path) -> str:
    text = str(error)
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text
    if full:
        return f"Free space on the disk of {path.parent}, or set run.dir to another one; earlier checkpoints are whole."
    return f"Check that {path.parent} is a writable folder; earlier checkpoints are whole."
