"""The function that generates episodes: called, with what it returns and raises checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.errors import BudgetSpent, MilesError, RolloutError, leaves_of
from miles_core.kinds.generate import EpisodeResult
from miles_core.kinds.sessions import Turn
from miles_core.lib.calls import call
from miles_core.lib.error_text import error_text, value_text
from miles_core.lib.numbers import is_finite
from miles_core.lib.signatures import is_async
from miles_core.rollout.blocking import BlockingHandle
from miles_core.rollout.turns import play_turns
from miles_core.types import Message, Sample, Status

if TYPE_CHECKING:
    from miles_core.kinds.generate import EpisodeFunction
    from miles_core.rollout.handle import Handle


@dataclass(frozen=True, slots=True)
class Generator:
    """The function, how errors call it, and what its episodes are for.

    ``needs_routing``: samples that the function makes itself must bring their routing trace.
    """

    function: EpisodeFunction
    name: str
    evaluation: bool = False
    needs_routing: bool = False

    async def run(self, handle: Handle) -> EpisodeResult:
        """Generate one episode; what a budget or an abort ended is a result, too.

        Raises:
            MilesError: what failed the episode, from the function or from what it called.
        """
        try:
            result = checked_result(await self._call(handle), f"rollout.generate {self.name}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a plugin raises fails its trajectory only
            result = self._ended(error, handle)
        finally:
            handle.end()
        if handle.aborted is not None:  # also where the function went on
            return EpisodeResult(Status.ABORTED, error=handle.aborted or None)
        return result

    async def _call(self, handle: Handle) -> Any:
        if is_async(self.function):
            return await call(self.function, handle)
        blocking = BlockingHandle(handle)
        try:
            return await call(self.function, blocking)
        finally:
            blocking.cancel()

    def _ended(self, error: BaseException, handle: Handle) -> EpisodeResult:
        leaves = [leaf for leaf in leaves_of(error) if not isinstance(leaf, BudgetSpent)]
        if not leaves:
            return EpisodeResult(Status.TRUNCATED, reason=handle.spent)
        if handle.aborted is not None:
            return EpisodeResult(Status.ABORTED)
        if isinstance(leaves[0], MilesError):
            raise leaves[0]
        raise RolloutError(f"rollout.generate {self.name} raised {error_text(leaves[0])}") from error


def checked_result(result: Any, who: str) -> EpisodeResult:
    """What a function returned, a bare status as a result; ``who`` is how errors call the function.

    Raises:
        RolloutError: if it is something else, or holds what no result holds.
    """
    if isinstance(result, Status):
        return EpisodeResult(result)
    if not isinstance(result, EpisodeResult) or not isinstance(result.status, Status):
        got = type(result).__name__ if not isinstance(result, EpisodeResult) else f"status {value_text(result.status)}"
        raise RolloutError(f"{who} must return a Status or an EpisodeResult; got {got}")
    if result.reward is not None and (isinstance(result.reward, bool) or not is_finite(result.reward)):
        raise RolloutError(f"{who} must give a finite reward, or None; got {value_text(result.reward)}")
    if not isinstance(result.info, Mapping):
        raise RolloutError(f"{who} must give info as a mapping; got {type(result.info).__name__}")
    if result.turn is not None and not isinstance(result.turn, Turn):
        raise RolloutError(f"{who} must give its turn as generate() returned it; got {type(result.turn).__name__}")
    if result.reason and not result.reason.isidentifier():
        raise RolloutError(f"{who} must give its reason as one snake_case word; got {value_text(result.reason)}")
    for name, kind in (("samples", Sample), ("messages", Message)):
        values = getattr(result, name)
        if values is not None and not (isinstance(values, tuple) and all(isinstance(v, kind) for v in values)):
            raise RolloutError(
                f"{who} must give {name} as a tuple of {kind.__name__} objects; got {value_text(values)}"
            )
    return result


TURNS = Generator(play_turns, "turns")
"""What generates episodes unless the config names a function."""
