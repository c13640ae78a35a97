"""Every error that miles raises on purpose.

::

    MilesError
    ├── ConfigError            a config file or --set value is wrong
    ├── PluginError            a plugin cannot be found, loaded or called
    │   └── PluginNotFound     nothing, or more than one thing, answers to a reference
    ├── DataError              a data file is missing or a row is malformed
    ├── EngineError            an inference engine refused, failed or died
    │   └── EngineRequestError one request is invalid; the engine is well
    ├── RouterError            the router cannot start or reach a worker
    ├── SessionError           a conversation cannot be continued token by token
    ├── RoutingError           a routing trace does not fit its tokens
    ├── RolloutError           episodes, rewards or filters cannot go on
    │   └── BudgetSpent        an episode may generate nothing more
    ├── TrainError             the trainer refused, failed or died
    ├── WeightSyncError        a weight update was refused or left torn
    └── CheckpointError        a checkpoint cannot be written or read
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class MilesError(Exception):
    """Base of all errors that miles raises on purpose; its text says what was expected and what came.

    ``remedy`` is one imperative sentence: what the user should do next.
    """

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  -> {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.remedy))


def _rebuild(cls: type[MilesError], message: str, remedy: str | None) -> MilesError:
    return cls(message, remedy=remedy)


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside nested groups, such as those that task groups raise, in order."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves_of(inner)
    else:
        yield error


def cause_of(error: BaseException) -> BaseException:
    """The exception that tells most of a group: the first of ours, else the first."""
    leaves = list(leaves_of(error))
    return next((leaf for leaf in leaves if isinstance(leaf, MilesError)), leaves[0])


class ConfigError(MilesError):
    """A config file or a ``--set`` value is wrong."""


class PluginError(MilesError):
    """A plugin cannot be loaded, configured or called; names its kind, name and distribution."""


class PluginNotFound(PluginError):  # noqa: N818 - reads as in `ModuleNotFoundError` without the suffix
    """Nothing, or more than one thing, answers to a plugin reference."""


class DataError(MilesError):
    """A data file is missing or a row is malformed; names file and line."""


class EngineError(MilesError):
    """An inference engine refused, failed or died."""


class EngineRequestError(EngineError):
    """One request is invalid (for example a prompt longer than the context); the engine is well."""


class RouterError(MilesError):
    """The router cannot start or reach a worker."""


class SessionError(MilesError):
    """A conversation cannot be continued token by token."""


class RoutingError(MilesError):
    """A routing trace does not fit its tokens."""


class RolloutError(MilesError):
    """Episodes, rewards or filters cannot go on."""


class BudgetSpent(RolloutError):  # noqa: N818 - no error of anybody: the episode ends as truncated
    """An episode may generate nothing more."""


class TrainError(MilesError):
    """The trainer refused, failed or died."""


class WeightSyncError(MilesError):
    """A weight update was refused or left an engine torn."""


class CheckpointError(MilesError):
    """A checkpoint cannot be written or read."""
