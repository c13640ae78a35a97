"""What a verification found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["equal", "differs", "replica", "behind", "failed"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor, or a box of one, that is not what was ``expected``: xxh3-128 in hex of both; ``where`` is for a person.

    ``expected`` is empty for what no one is known to have sent, ``found`` for what is missing.
    """

    tensor: str
    where: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class EngineFinding:
    """One engine.

    ``"equal"``: every byte is what the trainer sent. ``"replica"``: it has no receiver of ours, and agrees with the
    other engines of its kind, which is all that can be said. ``"behind"``: it was left behind by an update and serves
    nothing. ``"failed"``: it could not be asked, for the ``reason``.
    """

    name: str
    url: str
    state: State
    tensors: int = 0
    nbytes: int = 0
    differences: tuple[Difference, ...] = ()
    reason: str = ""
    settled: bool = True
    """False where an update seems to go on, so that it is worth asking again."""


@dataclass(frozen=True, slots=True)
class CheckpointFinding:
    """What the trainer sent against the checkpoint of the same version."""

    name: str
    tensors: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The engines of a run against what the trainer sent under ``version``."""

    run: str
    version: int
    transport: str
    path: str
    engines: tuple[EngineFinding, ...]
    checkpoint: CheckpointFinding | None = None

    @property
    def ok(self) -> bool:
        """Whether every engine that serves holds the version, and at least one does."""
        states = {engine.state for engine in self.engines}
        whole = self.checkpoint is None or not self.checkpoint.differences
        return whole and bool(states & {"equal", "replica"}) and states <= {"equal", "replica", "behind"}
