"""Whether a saved position belongs to the data at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.api import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_fingerprint(now: Mapping[str, Any], saved: object) -> None:
    """Refuse a state of other data, or of another order of it.

    Raises:
        DataError: saying what differs.
    """
    if not isinstance(saved, dict):
        raise DataError("the saved data position holds no fingerprint: it is not one of this source")
    if differences := [line for key in {**now, **saved} if (line := _difference(key, now.get(key), saved.get(key)))]:
        raise DataError(
            f"the saved data position belongs to other data: {'; '.join(differences)}",
            remedy="Restore the data and the [data] table of the run, or start a new run from its last checkpoint.",
        )


def _difference(key: str, now: Any, saved: Any) -> str | None:
    if now == saved:
        return None
    if key == "files" and isinstance(saved, list):
        return _changed_files(dict(now or ()), dict(saved))
    return f"{key} was {_shown(saved)}, is {_shown(now)}"


def _changed_files(now: Mapping[str, Any], saved: Mapping[str, Any]) -> str:
    """``files`` are pairs of name and size, in order."""
    names = [name for name in {**saved, **now} if now.get(name) != saved.get(name)]
    first = ", ".join(f"{name}: {_size(saved, name)} then, {_size(now, name)} now" for name in names[:3])
    return f"{first}{', ...' if len(names) > 3 else ''}" if names else "the files stand in another order"


def _size(files: Mapping[str, Any], name: str) -> str:
    return f"size {files[name]}" if name in files else "absent"


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)
