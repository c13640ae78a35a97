"""The supervised warm-up: declared in the config and in the output, and over before the first checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from miles_core.errors import DataError
from miles_core.kinds.sessions import GeneratedTurn
from miles_core.kinds.train_backends import OptimizerSettings
from miles_core.train.batching import DEMONSTRATION
from miles_core.types import Message, Sample, SamplingParams, Status, TurnRecord, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from miles_core.app.trainer_client import TrainerClient
    from miles_core.config.schema import WarmupTable
    from miles_core.kinds.sessions import Renderer
    from miles_core.session.tokenizer import ChatTokenizer


async def warm_up(
    table: WarmupTable,
    path: Path,
    trainer: TrainerClient,
    tokenizer: ChatTokenizer,
    renderer: Renderer,
    *,
    seed: int,
    on_step: Callable[[int, float], None],
) -> float:
    """Run the stage; returns the last step's negative log-likelihood per token.

    Raises:
        DataError: if the conversations are missing or malformed.
    """
    conversations = read_conversations(path)
    samples = [
        supervised_sample(tokenizer, renderer, messages, f"warmup-{i}") for i, messages in enumerate(conversations)
    ]
    rng = np.random.default_rng([seed, 1])
    await trainer.begin_supervised(OptimizerSettings(learning_rate=table.learning_rate))
    loss = float("nan")
    for step in range(table.steps):
        rows = rng.choice(len(samples), size=table.batch_size, replace=table.batch_size > len(samples))
        metrics = await trainer.supervised_step([samples[row] for row in rows], table.learning_rate)
        loss = metrics["train/nll"]
        on_step(step + 1, loss)
    return loss


def read_conversations(path: Path) -> list[list[Message]]:
    """The conversations of a JSONL file of ``{"messages": [...]}``.

    Raises:
        DataError: naming the line that is wrong.
    """
    if not path.is_file():
        raise DataError(f"no warm-up file {path}", remedy="Correct warmup.data; it is relative to the config file.")
    conversations = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            messages = [Message.from_chat(message) for message in json.loads(line.decode("utf-8"))["messages"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}:{number}: expected {{messages: [...]}} in UTF-8: {error}",
                remedy="Write one conversation per line.",
            ) from None
        if not any(message.role == "assistant" for message in messages) or messages[0].role == "assistant":
            raise DataError(f"{path}:{number}: a conversation begins with a prompt and holds an assistant's turn")
        conversations.append(messages)
    if not conversations:
        raise DataError(f"{path} holds no conversation", remedy="Write one JSON object per line.")
    return conversations


def supervised_sample(tokenizer: ChatTokenizer, renderer: Renderer, messages: list[Message], name: str) -> Sample:
    """A conversation tokenized as a session would have: the assistant's turns and their stop tokens are trained."""
    stop = tokenizer.stop_token_ids[0]
    tokens: list[int] = []
    mask: list[int] = []
    turns: list[TurnRecord] = []
    said: GeneratedTurn | None = None
    begin = 0
    for end, message in enumerate(messages):
        if message.role != "assistant":
            continue
        context = list(renderer.boundary(said, messages[begin:end]) if said else renderer.prompt(messages[:end], ()))
        output = [*tokenizer.encode(message.text), stop]
        said = GeneratedTurn(tuple(messages[:end]), message, tuple(output), stop)
        start = len(tokens) + len(context)
        tokens += context + output
        mask += [0] * len(context) + [1] * len(output)
        turns.append(TurnRecord(start, len(tokens), SamplingParams(), "stop"))
        begin = end + 1
    return Sample(
        task_id=name,
        group_id=name,
        trajectory_id=name,
        agent_id=DEMONSTRATION,
        tokens=np.array(tokens, np.int32),
        loss_mask=np.array(mask, np.uint8),
        logprobs=np.zeros(len(tokens), np.float32),
        versions=tuple(VersionSpan(0, turn.start, turn.end) for turn in turns),
        turns=tuple(turns),
        status=Status.COMPLETED,
    )
