"""The states of the process's random generators: torch (CPU and present GPU), numpy's global one, and Python's."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class RandomStates:
    """States as :meth:`capture` found them; :meth:`apply` puts them in force.

    ``cuda_state`` is ``None`` in a process that uses no GPU; where only one side has it, a GPU goes on as it is.
    """

    torch_state: torch.Tensor
    numpy_state: dict[str, Any]
    python_state: tuple[Any, ...]
    cuda_state: torch.Tensor | None = None

    @classmethod
    def capture(cls) -> RandomStates:
        """The present states."""
        state: Any = np.random.get_state(legacy=False)
        cuda_state = torch.cuda.get_rng_state() if _uses_gpu() else None
        return cls(torch.get_rng_state(), state, random.getstate(), cuda_state)

    def apply(self) -> None:
        """Continue every generator from here."""
        torch.set_rng_state(self.torch_state)
        if self.cuda_state is not None and _uses_gpu():
            torch.cuda.set_rng_state(self.cuda_state)
        np.random.set_state(self.numpy_state)
        random.setstate(self.python_state)

    def to_json(self) -> str:
        """A JSON text; :meth:`from_json` reads it."""
        numpy_state = {**self.numpy_state, "state": {**self.numpy_state["state"]}}
        numpy_state["state"]["key"] = self.numpy_state["state"]["key"].tolist()
        data = {"torch": _encoded(self.torch_state), "numpy": numpy_state, "python": self.python_state}
        if self.cuda_state is not None:
            data["cuda"] = _encoded(self.cuda_state)
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> RandomStates:
        """What :meth:`to_json` wrote, tried on generators of its own.

        Raises:
            ValueError: if a generator does not take its state.
        """
        try:
            data = json.loads(text)
            version, words, gauss = data["python"]
            cuda_state = _decoded(data["cuda"]) if "cuda" in data else None
            states = cls(_decoded(data["torch"]), data["numpy"], (version, tuple(words), gauss), cuda_state)
            torch.Generator().set_state(states.torch_state)
            if cuda_state is not None and _uses_gpu():
                torch.Generator("cuda").set_state(cuda_state)
            np.random.RandomState(0).set_state(states.numpy_state)
            random.Random(0).setstate(states.python_state)  # noqa: S311 - no secret is drawn
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return states


def _uses_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _encoded(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decoded(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
