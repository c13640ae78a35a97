"""The context that a plugin is made with, as tests give it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.kinds import PluginContext

if TYPE_CHECKING:
    from pathlib import Path


class Services(dict[str, Any]):
    """Services by name; ``tokenizer`` is the toy tokenizer, which is made when it is first asked for."""

    def __missing__(self, name: str) -> Any:
        """Make the tokenizer, and nothing else."""
        if name != "tokenizer":
            raise KeyError(name)
        from miles_core.testing.toy_tokenizer import toy_tokenizer  # here, since it imports transformers

        self[name] = toy_tokenizer().tokenizer
        return self[name]


def make_context(run_dir: Path, *, seed: int = 0, **services: Any) -> PluginContext:
    """A context as a run gives it to environments: with a run folder, the toy tokenizer, and ``services``."""
    return PluginContext(run_dir=run_dir, seed=seed, services=Services(base_dir=run_dir, **services))
