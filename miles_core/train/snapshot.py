"""A copy of a model in training, and its way into a folder and back."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from miles_core.errors import CheckpointError
from miles_core.train.checkpoint import sync
from miles_core.train.checkpoint_names import by_checkpoint_name, without_aliases
from miles_core.train.optimizer_state import OptimizerState
from miles_core.train.random_states import RandomStates
from miles_core.train.tensor_files import check_tensors, read_tensors

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from miles_core.train.copy_buffers import CopyBuffers
    from miles_core.types import NameMapping

WEIGHTS = "model.safetensors"
OPTIMIZER = "state/optimizer.safetensors"

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


class Snapshot:
    """A copy of a Hugging Face model, its optimizer (``None``: no state) and the random states of this process.

    It shares no memory with them; calling it once writes a Hugging Face directory with ``state/`` in it.
    ``source`` is where tokenizer files come from.
    """

    def __init__(
        self,
        model: Any,
        mapping: NameMapping,
        optimizer: torch.optim.Optimizer | None,
        source: Path,
        buffers: CopyBuffers,
    ) -> None:
        # As save_pretrained does: what config.json must say for the folder to load as this class and type.
        model.config.dtype = str(model.dtype).removeprefix("torch.")
        model.config.architectures = [type(model).__name__]
        self._configs = (model.config, model.generation_config) if model.can_generate() else (model.config,)
        state = OptimizerState.of(optimizer, dict(model.named_parameters()))
        weights = without_aliases(mapping, model.state_dict())
        self._weights = {name: buffers.copy(name, tensor) for name, tensor in weights.items()}
        self._moments = {name: buffers.copy(name, tensor) for name, tensor in state.tensors.items()}
        self._metadata = {"steps": json.dumps(state.steps), "random": RandomStates.capture().to_json()}
        self._mapping = mapping
        self._source = source
        self._buffers = buffers
        self._written = False

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors, about what the folder takes."""
        return sum(tensor.nbytes for tensor in (*self._weights.values(), *self._moments.values()))

    def __call__(self, path: Path) -> None:
        """Write into the folder ``path``, created if need be, in any thread; the copy's memory is then given back.

        Raises:
            CheckpointError: if it was called before.
            OSError, SafetensorError: if a file cannot be written.
        """
        if self._written:
            raise CheckpointError("a snapshot is written once", remedy="Take another one.")
        self._written = True
        try:
            self._write(path)
        finally:
            self._buffers.give_back({**self._weights, **self._moments})

    def _write(self, path: Path) -> None:
        (path / OPTIMIZER).parent.mkdir(parents=True, exist_ok=True)
        for config in self._configs:
            config.save_pretrained(path)
        copy_tokenizer(self._source, path)
        save_file(self._moments, path / OPTIMIZER, metadata=self._metadata)
        with ThreadPoolExecutor(1) as pool:
            synced = pool.submit(sync, path / OPTIMIZER)  # the disk works while the other file is filled
            save_file(by_checkpoint_name(self._mapping, self._weights), path / WEIGHTS, metadata={"format": "pt"})
            synced.result()


def restore_snapshot(path: Path, model: Any, mapping: NameMapping, optimizer: torch.optim.Optimizer) -> None:
    """Load weights in place, the optimizer's state and the random states from what a snapshot wrote.

    Raises:
        CheckpointError: naming the file and the names that do not fit; then nothing was changed.
    """
    weights = _Weights(path, model, mapping)
    parameters = dict(model.named_parameters())
    file = path / OPTIMIZER
    tensors, metadata = read_tensors(file)
    state = OptimizerState.checked(file, metadata.get("steps", ""), tensors, parameters)
    try:
        random = RandomStates.from_json(metadata.get("random", ""))
    except ValueError as error:
        raise CheckpointError(
            f"{file} holds no random states: {error}", remedy="Resume from another checkpoint."
        ) from error
    weights.load()
    state.apply(optimizer, parameters)
    random.apply()


def load_weights(path: Path, model: Any, mapping: NameMapping) -> None:
    """Load the weights of the checkpoint ``path`` in place.

    Raises:
        CheckpointError: naming the file and the names that do not fit; then nothing was changed.
    """
    _Weights(path, model, mapping).load()


def copy_tokenizer(source: Path, path: Path) -> None:
    """Copy the tokenizer files of a Hugging Face directory."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy2(source / name, path / name)


class _Weights:
    """The weights file of a checkpoint, checked against a model."""

    def __init__(self, path: Path, model: Any, mapping: NameMapping) -> None:
        self._found, _ = read_tensors(path / WEIGHTS)
        self._views = by_checkpoint_name(mapping, without_aliases(mapping, model.state_dict()))
        check_tensors(path / WEIGHTS, self._found, self._views)

    def load(self) -> None:
        for name, view in self._views.items():
            view.copy_(self._found[name])
