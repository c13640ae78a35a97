"""The states of the process's random generators: torch (CPU), numpy's global one, and Python's."""

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
    """States as :meth:`capture` found them; :meth:`apply` puts them in force."""

    torch_state: torch.Tensor
    numpy_state: dict[str, Any]
    python_state: tuple[Any, ...]

    @classmethod
    def capture(cls) -> RandomStates:
        """The present states."""
        state: Any = np.random.get_state(legacy=False)
        return cls(torch.get_rng_state(), state, random.getstate())

    def apply(self) -> None:
        """Continue every generator from here."""
        torch.set_rng_state(self.torch_state)
        np.random.set_state(self.numpy_state)
        random.setstate(self.python_state)

    def to_json(self) -> str:
        """A JSON text; :meth:`from_json` reads it."""
        numpy_state = {**self.numpy_state, "state": {**self.numpy_state["state"]}}
        numpy_state["state"]["key"] = self.numpy_state["state"]["key"].tolist()
        encoded = base64.b64encode(self.torch_state.numpy().tobytes()).decode("ascii")
        return json.dumps({"torch": encoded, "numpy": numpy_state, "python": self.python_state})

    @classmethod
    def from_json(cls, text: str) -> RandomStates:
        """What :meth:`to_json` wrote, tried on generators of its own.

        Raises:
            ValueError: if a generator does not take its state.
        """
        try:
            data = json.loads(text)
            torch_state = torch.frombuffer(bytearray(base64.b64decode(data["torch"])), dtype=torch.uint8)
            version, words, gauss = data["python"]
            states = cls(torch_state, data["numpy"], (version, tuple(words), gauss))
            torch.Generator().set_state(states.torch_state)
            np.random.RandomState(0).set_state(states.numpy_state)
            random.Random(0).setstate(states.python_state)  # noqa: S311 - no secret is drawn
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return states
