"""Reading safetensors files: everything is checked before anything is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from miles_core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import torch

_REMEDY = "Resume from another checkpoint, or with the model and the options that this one was written with."


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a file, mapped and not yet read, and its metadata.

    Raises:
        CheckpointError: if the file is missing, cut short or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return file.get_tensors(), file.metadata() or {}
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing", remedy="Resume from another checkpoint.") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is cut short, damaged or not readable: {error}", remedy="Resume from another checkpoint."
        ) from error


def check_tensors(path: Path, found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Raise unless ``found`` has the names, shapes and types of ``expected``.

    Raises:
        CheckpointError: naming the file and what differs.
    """
    other = [
        f"{name}: {_kind(found[name])} instead of {_kind(expected[name])}"
        for name in expected.keys() & found.keys()
        if _kind(found[name]) != _kind(expected[name])
    ]
    raise_unless_equal(path, found.keys(), expected.keys(), other)


def raise_unless_equal(path: Path, found: Iterable[str], expected: Iterable[str], other: Iterable[str] = ()) -> None:
    """Raise if names are missing or unexpected, or ``other`` differences were found.

    Raises:
        CheckpointError: naming the file and what differs.
    """
    missing, unexpected = set(expected) - set(found), set(found) - set(expected)
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape or type": other}
    wrong = "; ".join(f"{kind}: {_shortened(names)}" for kind, names in kinds.items() if names)
    if wrong:
        raise CheckpointError(f"{path} does not fit the model; {wrong}", remedy=_REMEDY)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _shortened(names: Iterable[str]) -> str:
    listed = sorted(names)
    rest = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    return ", ".join(listed[:4]) + rest
