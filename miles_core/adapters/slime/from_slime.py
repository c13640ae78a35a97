"""From a sample that a slime function filled to one that can be trained to the token, or the reason why it cannot."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from miles_core.adapters.slime.versions import token_versions
from miles_core.errors import RolloutError
from miles_core.types import MAIN_AGENT, Sample, Status, TurnRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.adapters.slime.versions import Run
    from miles_core.kinds.generate import EpisodeHandle


def trainable_sample(sample: Any, status: Status, episode: EpisodeHandle) -> Sample:
    """The training sequence of a filled sample, its trained tokens as turns.

    Raises:
        RolloutError: if lengths differ, or it does not say of each trained token with which logprob and by which
            weights it was generated.
    """
    import numpy as np

    tokens, response = [int(token) for token in sample.tokens], _length(sample)
    prompt = len(tokens) - response
    mask = _mask(sample, response)
    logprobs = _logprobs(sample, mask, response)
    runs = [(prompt + start, prompt + end) for start, end in _runs(mask)]
    last = "length" if status is Status.TRUNCATED else "stop"
    turns = [
        TurnRecord(start, end, _sampling(episode, turn), last if turn == len(runs) - 1 else "stop")
        for turn, (start, end) in enumerate(runs)
    ]
    zeros = [0.0] * prompt
    return Sample(
        task_id=episode.task.id,
        group_id="",  # the host knows it
        trajectory_id=episode.id,
        agent_id=MAIN_AGENT,
        tokens=np.array(tokens, np.int32),
        loss_mask=np.array([0] * prompt + mask, np.uint8),
        logprobs=np.array(zeros + logprobs, np.float32),
        versions=token_versions(sample, runs),
        turns=tuple(turns),
        status=status,
    )


def _length(sample: Any) -> int:
    length = int(sample.response_length)
    if not 0 < length < len(sample.tokens):
        raise RolloutError(
            f"the sample has {len(sample.tokens)} tokens and response_length = {length}",
            remedy="Set tokens to those of prompt and response, and response_length to the number of the latter.",
        )
    return length


def _mask(sample: Any, length: int) -> list[int]:
    mask = [1] * length if sample.loss_mask is None else [int(value) for value in sample.loss_mask]
    if len(mask) != length or not set(mask) <= {0, 1}:
        raise RolloutError(
            f"the sample's loss_mask must have a 0 or 1 for each of its {length} response tokens; it has {len(mask)} "
            f"entries, of {sorted(set(mask))[:5]}"
        )
    if not any(mask):
        raise RolloutError("the sample's loss_mask leaves no token to train")
    return mask


def _logprobs(sample: Any, mask: Sequence[int], length: int) -> list[float]:
    if sample.rollout_log_probs is None:
        raise RolloutError(
            "the sample has no rollout_log_probs, so it cannot be trained",
            remedy='Ask the engine for "return_logprob": True and fill them from meta_info["output_token_logprobs"].',
        )
    logprobs = [float(value) for value in sample.rollout_log_probs]
    if len(logprobs) != length:
        raise RolloutError(f"{length} response tokens need as many rollout_log_probs; the sample has {len(logprobs)}")
    wrong = [value for value, trained in zip(logprobs, mask, strict=True) if trained and not math.isfinite(value)]
    if wrong:
        raise RolloutError(f"every trained token needs a finite entry of rollout_log_probs; one is {wrong[0]}")
    return [value if trained else 0.0 for value, trained in zip(logprobs, mask, strict=True)]


def _runs(mask: Sequence[int]) -> list[Run]:
    runs: list[Run] = []
    for at, trained in enumerate(mask):
        if trained and runs and runs[-1][1] == at:
            runs[-1] = (runs[-1][0], at + 1)
        elif trained:
            runs.append((at, at + 1))
    return runs


def _sampling(episode: EpisodeHandle, turn: int) -> Any:
    return replace(episode.sampling(turn), sampling_seed=episode.sampling(0).sampling_seed)
