"""Rollout data as plain records, for files that outlive the program that wrote them.

A record is a mapping of field names with the class under ``"$"``. Reading skips fields that it does not know and leaves
missing ones at their defaults, so files of older and newer versions load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

from miles_core.types.generation import SamplingParams, VersionSpan
from miles_core.types.message import ImagePart, Message, TextPart
from miles_core.types.routing import RoutingTrace
from miles_core.types.sample import Group, MediaSpan, Reward, Sample, Status, Trajectory, TurnRecord
from miles_core.types.task import Task

Recorded = TypeVar("Recorded")

CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        Group, ImagePart, MediaSpan, Message, Reward, RoutingTrace, Sample, SamplingParams, Task, TextPart, Trajectory,
        TurnRecord, VersionSpan,
    )
}  # fmt: skip
_CLASS = "$"


def to_record(value: Any) -> Any:
    """Mappings, lists, scalars and numpy arrays for a value made of the classes above; others become their ``repr``.

    What plugins put into ``info`` or ``metadata`` may be anything, and must not keep a run from being saved.
    """
    import numpy as np

    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float | bool | np.ndarray):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and type(value).__name__ in CLASSES:
        record = {field.name: to_record(getattr(value, field.name)) for field in fields(value)}
        return {_CLASS: type(value).__name__, **record}
    if isinstance(value, Mapping):
        return {str(key): to_record(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_record(inner) for inner in value]
    return repr(value)


def from_record(record: Any, expected: type[Recorded]) -> Recorded:
    """The ``expected`` object of a record.

    Raises:
        ValueError: if the record holds something else, or lacks a field that has no default.
    """
    value = _read(record)
    if not isinstance(value, expected):
        raise ValueError(f"the record must hold a {expected.__name__}; it holds a {type(value).__name__}")
    return value


def _read(record: Any) -> Any:
    if isinstance(record, list):
        return tuple(_read(inner) for inner in record)
    if not isinstance(record, dict):
        return record
    values = {key: _read(inner) for key, inner in record.items() if key != _CLASS}
    cls = CLASSES.get(record.get(_CLASS, ""))
    if cls is None:
        return values
    known = {field.name for field in fields(cls)}
    values = {key: inner for key, inner in values.items() if key in known}
    if "status" in values:
        values["status"] = Status(values["status"])
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"a record of {cls.__name__} is incomplete: {error}") from None
