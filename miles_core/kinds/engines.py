"""Engines: inference servers that speak SGLang's HTTP API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from miles_core.kinds.base import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from miles_core.types import GenerateRequest, Generation


WeightUpdates: TypeAlias = Literal["miles", "sglang"]


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How to start one engine server, or a process that watches one that runs already.

    The process writes lines of JSON to the file descriptor in the environment variable ``MILES_READY_FD``: any number
    of ``{"progress": text}`` while it starts, then ``{"url": ...}`` once the engine serves. ``"foreign_weights": true``
    beside the URL says that the engine may serve other weights than the checkpoint of its command: it gets no request
    before a weight update. The process exits when its standard input closes.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Engine(Protocol):
    """One kind of inference server.

    ``weight_updates`` says who takes a weight update: ``"miles"``: a receiver of ours (``/weights/*``); ``"sglang"``:
    SGLang's own endpoints too (transports that have ``sglang_update``).

    A ``Config`` that has ``context_length`` (tokens of prompt and output, ``None`` for the model's own) is held against
    ``rollout.max_context_tokens`` before a run starts, less the six tokens that SGLang keeps back. A method
    ``check()``, where there is one, is called then too: it raises what can be known before a server starts.
    """

    weight_updates: WeightUpdates

    def command(self, model_path: str, *, index: int, config_path: str) -> EngineCommand:
        """The command that serves ``model_path`` as engine number ``index`` of a run.

        The config file at ``config_path`` holds all else: bridge, seed, the ``[weights]`` transport that updates arrive
        by, blocked plugins.
        """


class EngineClient(Protocol):
    """What sessions generate with; it is connected to the router, never to one engine."""

    async def generate(
        self, request: GenerateRequest, *, on_tokens: Callable[[Sequence[int]], None] | None = None
    ) -> Generation:
        """Generate from token ids; ``on_tokens`` gets the output ids as they come, each once and in order.

        Where it got some and the request fails, the request is not made again.

        Raises:
            EngineRequestError: if the request is invalid, such as a prompt longer than the context.
            EngineError: if the engine failed.
        """


KIND = Kind(
    plural="engines",
    singular="engine",
    summary="an inference server that speaks SGLang's HTTP API",
    table="[engine]",
    protocol=Engine,
    members=("weight_updates", "command"),
    choices={"weight_updates": ("miles", "sglang")},
)
