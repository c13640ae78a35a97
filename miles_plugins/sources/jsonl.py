"""Tasks from a JSON Lines file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import DataError, Message, Task

if TYPE_CHECKING:
    from miles_core.api import PluginContext

KNOWN = ("id", "prompt", "messages", "label", "images", "tools", "environment", "metadata")
_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "id": ((str, int), "text or an integer"),
    "label": ((str, int, float), "text or a number"),
    "messages": (list, "an array of messages"),
    "images": (list, "an array"),
    "tools": (list, "an array"),
    "environment": (str, "text"),
    "metadata": (dict, "an object"),
}


class JsonlConfig(BaseModel):
    """Options of ``[data] use = "jsonl"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(min_length=1, description="the file; relative to the config file")
    shuffle: bool = Field(True, description="shuffle each epoch, by (seed, epoch)")


class Jsonl:
    """One task per line: ``{id, prompt | messages, label, images, tools, environment, metadata}``.

    A ``prompt`` becomes a user message; a missing id is a hash of file name and line; ``images`` and ``tools`` must be
    empty, because this version passes none on. The order of an epoch is a function of the seed and the epoch alone.
    """

    Config = JsonlConfig

    def __init__(self, config: JsonlConfig, context: PluginContext) -> None:
        self._path = Path(context.service("base_dir")) / config.path
        self._shuffle = config.shuffle
        self._seed = context.seed
        self._tasks = _read(self._path)
        self._position = 0
        self._shuffled: tuple[int, list[int]] | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def take(self, count: int) -> list[tuple[int, Task]]:
        """The next ``count`` tasks, each with its epoch; epochs follow one another."""
        taken = []
        for position in range(self._position, self._position + count):
            epoch, index = divmod(position, len(self._tasks))
            taken.append((epoch, self._tasks[self._order(epoch)[index]]))
        self._position += count
        return taken

    def _order(self, epoch: int) -> list[int]:
        if self._shuffled is None or self._shuffled[0] != epoch:
            order = list(range(len(self._tasks)))
            if self._shuffle:
                order = np.random.default_rng([self._seed, epoch]).permutation(len(order)).tolist()
            self._shuffled = epoch, order
        return self._shuffled[1]


def _read(path: Path) -> list[Task]:
    if not path.is_file():
        raise DataError(f"no data file {path}", remedy="Correct data.path; it is relative to the config file.")
    tasks = []
    lines: dict[str, int] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            task = _task(line, f"{path}:{number}", f"{path.name}:{number}")
            first = lines.setdefault(task.id, number)
            if first != number:
                raise DataError(
                    f"{path}:{number}: the id {task.id!r} is that of line {first} too",
                    remedy="Give each task an id of its own, or leave ids out.",
                )
            tasks.append(task)
    if not tasks:
        raise DataError(f"{path} holds no task", remedy="Write one JSON object per line.")
    return tasks


def _task(line: bytes, where: str, key: str) -> Task:
    row = _row(line, where)
    _check_types(row, where)
    for unsupported in ("images", "tools"):
        if row.get(unsupported):
            raise DataError(
                f"{where}: `{unsupported}` is not empty, but this version passes no {unsupported} to the model",
                remedy=f"Leave `{unsupported}` out; put what the model must know into the messages.",
            )
    return Task(
        id=str(row["id"]) if row.get("id") is not None else xxhash.xxh3_64_hexdigest(key.encode()),
        messages=_messages(row, where),
        label=None if row.get("label") is None else str(row["label"]),
        environment=row.get("environment"),
        metadata=row.get("metadata") or {},
    )


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 text: {error}", remedy="Save the file as UTF-8.") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}", remedy="Write one JSON object per line.") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(row).__name__}")
    if unknown := sorted(set(row) - set(KNOWN)):
        raise DataError(f"{where}: unknown key {unknown[0]!r}", remedy=f"Known keys: {', '.join(KNOWN)}.")
    return row


def _check_types(row: dict[str, Any], where: str) -> None:
    for key, (kind, words) in _TYPES.items():
        value = row.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            raise DataError(
                f"{where}: `{key}` must be {words}; got {json.dumps(value)[:60]}",
                remedy=f"Correct `{key}`, or leave it out.",
            )


def _messages(row: dict[str, Any], where: str) -> tuple[Message, ...]:
    if ("prompt" in row) == ("messages" in row):
        raise DataError(f"{where}: expected exactly one of `prompt` and `messages`")
    try:
        chats = [{"role": "user", "content": row["prompt"]}] if "prompt" in row else row["messages"]
        messages = tuple(Message.from_chat(chat) for chat in chats)
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: {error}") from None
    if not messages:
        raise DataError(f"{where}: `messages` is empty")
    for message in messages:
        if not _is_text(message.text):
            raise DataError(f"{where}: a message holds a lone surrogate, which is no text", remedy="Remove it.")
    return messages


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
