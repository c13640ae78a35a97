"""Several sources as one, in exact proportions."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import DataError
from miles_plugins.sources.fingerprint import check_fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from miles_core.api import DataSource, InspectedRow, PluginContext, Task


class SourceTable(BaseModel):
    """One of ``[[data.sources]]``: a table like ``[data]``, with a weight."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    use: str = Field(min_length=1, description="the data source")
    weight: float = Field(1.0, gt=0, description="share of the tasks, relative to the other weights")

    @property
    def table(self) -> dict[str, Any]:
        """The table without what is the mixture's own."""
        return self.model_dump(exclude={"weight"})


class MixtureConfig(BaseModel):
    """Options of ``[data] use = "mixture"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sources: tuple[SourceTable, ...] = Field(min_length=1, description="tables like [data], each with a `weight`")


class Mixture:
    """Tasks of several sources: the one most behind its share comes next, so shares are exact in the long run.

    Each task keeps the epoch of its own source. The mixture ends with the first source that ends.
    """

    Config = MixtureConfig

    def __init__(self, config: MixtureConfig, context: PluginContext) -> None:
        build = context.service("build_source")
        self._sources: list[DataSource] = [build(entry.table) for entry in config.sources]
        self._weights = whole_weights([entry.weight for entry in config.sources])
        self._taken = [0] * len(self._sources)
        self._fingerprint = {"sources": [entry.use for entry in config.sources], "weights": self._weights}

    def take(self, count: int) -> list[tuple[int, Task]]:
        """The next ``count`` tasks; fewer where a source has ended."""
        taken: list[tuple[int, Task]] = []
        while len(taken) < count:
            index = most_behind(self._weights, self._taken)
            fresh = self._sources[index].take(1)
            if not fresh:
                break
            taken += fresh
            self._taken[index] += 1
        return taken

    def state(self) -> dict[str, Any]:
        """The states of the sources, and how many tasks came from each."""
        return {
            "sources": [dict(source.state()) for source in self._sources],
            "taken": list(self._taken),
            "fingerprint": self._fingerprint,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            DataError: if it belongs to other sources, weights or data.
        """
        check_fingerprint(self._fingerprint, state.get("fingerprint"))
        for number, (source, inner) in enumerate(zip(self._sources, state["sources"], strict=True)):
            try:
                source.restore(inner)
            except DataError as error:
                error.add_note(f"while restoring data.sources.{number}")
                raise
        self._taken = list(state["taken"])

    def metrics(self) -> dict[str, float]:
        """The counters of all sources, added."""
        total: Counter[str] = Counter()
        for source in self._sources:
            total.update(source.metrics())
        return dict(total)

    @classmethod
    def inspect(cls, config: MixtureConfig, context: PluginContext) -> Iterator[InspectedRow]:
        """Every row of every source, one source after the other, for ``miles data check``."""
        inspect = context.service("inspect_source")
        for entry in config.sources:
            yield from inspect(entry.table)


def whole_weights(weights: Sequence[float]) -> list[int]:
    """The weights as whole numbers in the same proportions, read as they are written: 0.1 is one tenth."""
    fractions = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(fraction.denominator for fraction in fractions))
    return [int(fraction * scale) for fraction in fractions]


def most_behind(weights: Sequence[int], taken: Sequence[int]) -> int:
    """The index whose share of the next total exceeds what was taken of it by most; the first of equal ones."""
    total, after = sum(weights), sum(taken) + 1
    deficits = [weight * after - total * count for weight, count in zip(weights, taken, strict=True)]
    return deficits.index(max(deficits))
