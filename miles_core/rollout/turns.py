"""How episodes are generated unless the config names a function: generate, act, observe, until something ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import RolloutError
from miles_core.kinds.generate import EpisodeResult
from miles_core.types import Status

if TYPE_CHECKING:
    from miles_core.kinds.generate import EpisodeHandle


async def play_turns(episode: EpisodeHandle) -> EpisodeResult:
    """Take turns with the environment.

    An observation that no turn follows is not part of the sample: nothing in it is trained.
    """
    if episode.task.images or episode.task.tools:
        raise RolloutError(
            f"task {episode.task.id} brings images or tools, which this version does not pass to the model",
            remedy="Describe tools in the task's messages, and leave images out.",
        )
    messages = await episode.reset()
    while True:
        turn = await episode.generate(messages)
        step = await episode.step(turn)
        if step.done:
            return EpisodeResult(Status.COMPLETED, reason="done")
        if step.truncated:
            return EpisodeResult(Status.TRUNCATED, reason="environment")
        if episode.turns_left <= 0:
            return EpisodeResult(Status.TRUNCATED, reason="max_turns")
        messages.append(turn.message)
        if step.observation is not None:
            messages.append(await episode.message(step.observation))
