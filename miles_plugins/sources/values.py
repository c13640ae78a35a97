"""The plain values of a row: label, id, images, tools, metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_plugins.sources.row_error import RowError, shown

if TYPE_CHECKING:
    from pathlib import Path

_URLS = ("data:", "http://", "https://")


def label_text(value: Any) -> str | None:
    """A label as text, exactly: integers keep all their digits.

    Raises:
        RowError: if it is neither text nor a number.
    """
    value = _plain(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal | np.integer | np.floating):
        raise RowError(
            f"`label` must be text or a number; got {shown(value)}", remedy="Correct `label`, or leave it out."
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise RowError(f"`label` is not a finite number ({value})", remedy="Write null where a row has no label.")
    return str(value)


def id_text(value: Any, default: str) -> str:
    """An id as text; ``default`` where there is none.

    Raises:
        RowError: if it is neither text nor an integer.
    """
    value = _plain(value)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer) or value == "":
        raise RowError(f"`id` must be text or an integer; got {shown(value)}", remedy="Correct `id`, or leave it out.")
    return str(value)


def environment_name(value: Any) -> str | None:
    """The name of an environment.

    Raises:
        RowError: if it is no text.
    """
    if value is None or isinstance(value, str):
        return value
    raise RowError(
        f"`environment` must be text; got {shown(value)}", remedy="Write the `name` of one of [[environments]]."
    )


def image_paths(value: Any, folder: Path) -> tuple[str, ...]:
    """Absolute paths and URLs of a row's images.

    Raises:
        RowError: if it is no list of text, or a file is missing.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise RowError(f"`images` must be a list of paths or URLs; got {shown(value)}", remedy="Write a list.")
    return tuple(image_path(image, folder) for image in value)


def image_path(image: Any, folder: Path) -> str:
    """The absolute path of an image whose path counts from ``folder``; URLs stay.

    Raises:
        RowError: if it is no text, or the file is missing.
    """
    if not isinstance(image, str):
        raise RowError(
            f"an image must be a path or URL; got {shown(image)}", remedy="Write images to files of their own."
        )
    if image.startswith(_URLS):
        return image
    path = folder / image
    if not path.is_file():
        raise RowError(
            f"there is no image file {image}", remedy=f"Paths of images count from the data's folder, {folder}."
        )
    return str(path.absolute())


def tool_schemas(value: Any) -> tuple[Mapping[str, Any], ...]:
    """The tools of a row.

    Raises:
        RowError: if they are no list of objects.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(tool, Mapping) for tool in value):
        raise RowError(
            f"`tools` must be a list of objects; got {shown(value)}", remedy="Write one JSON schema per tool."
        )
    return tuple(value)


def metadata_of(value: Any) -> Mapping[str, Any]:
    """The metadata of a row.

    Raises:
        RowError: if it is no object.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RowError(f"`metadata` must be an object; got {shown(value)}", remedy="Write {key: value, ...}.")
    return value


def from_json_text(key: str, value: Any) -> Any:
    """The value of a cell that holds JSON as text, as columnar files must where rows differ; others stay.

    Raises:
        RowError: if the text is no JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError(
            f"`{key}` must be JSON where it is text: {error}; got {shown(value)}", remedy=f"Write `{key}` as JSON."
        ) from None


def without_nulls(value: Any) -> Any:
    """The value without keys that are null: columnar files give every row all keys of all rows."""
    if isinstance(value, Mapping):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """A Python value for an Arrow scalar."""
    return value.as_py() if hasattr(value, "as_py") else value
