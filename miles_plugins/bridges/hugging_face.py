"""The bridge that transformers' own names suffice for; others derive from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from miles_core.api import NameMapping
from miles_plugins.bridges.build import build_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.api import PluginContext, ReplayPoint, RoutingSpec
    from miles_plugins.bridges.build import Attention

EMBEDDINGS = {"lm_head.weight": "model.embed_tokens.weight"}
"""The output projection that shares the input embeddings where ``tie_word_embeddings`` holds."""


class HuggingFaceBridge:
    """A dense model of class ``architecture`` in transformers, whose modules and checkpoint have the same names.

    Subclasses state what differs: ``attention`` is the implementation that transformers has for the model on CPU and
    GPU alike.
    """

    architecture: ClassVar[str]
    attention: ClassVar[Attention] = "sdpa"
    mapping = NameMapping(tied=EMBEDDINGS)

    def __init__(self, config: object, context: PluginContext) -> None:
        """Take no options."""

    def routing_spec(self, hf_config: Mapping[str, Any]) -> RoutingSpec | None:
        """``None``: nothing is routed."""
        return None

    def build(self, model_path: str, *, dtype: str, init: str, seed: int) -> Any:
        """The model; see :func:`~miles_plugins.bridges.build.build_model`."""
        return build_model(self.architecture, model_path, dtype=dtype, init=init, seed=seed, attention=self.attention)

    def replay_points(self, model: Any) -> Sequence[ReplayPoint]:
        """Empty: nothing is routed."""
        return ()
