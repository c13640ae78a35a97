"""Files of JSON-like data with numpy arrays in it: a zip of ``.npy`` files, without pickle."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

_DOCUMENT = "document"
_ARRAY = "$array"


def dump_archive(tree: Any, *, compress: bool = True) -> bytes:
    """The bytes of an archive; ``tree`` holds mappings with text keys, lists, tuples, scalars and numpy arrays.

    Raises:
        TypeError: for any other value.
        ValueError: for an array of objects.
    """
    import numpy as np

    arrays: list[np.ndarray[Any, Any]] = []
    document = json.dumps(_without_arrays(tree, arrays), ensure_ascii=False, separators=(",", ":"))
    named = {f"a{index}": array for index, array in enumerate(arrays)}
    # utf-8 cannot hold the lone surrogates that a byte-level tokenizer may give back
    named[_DOCUMENT] = np.frombuffer(document.encode("utf-8", "surrogatepass"), np.uint8)
    buffer = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(buffer, allow_pickle=False, **named)
    return buffer.getvalue()


def load_archive(source: Path | bytes) -> Any:
    """What was dumped; tuples come back as lists.

    Raises:
        ValueError: if the file is cut short, damaged or no archive.
    """
    import numpy as np

    try:
        opened = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
        with opened, np.load(opened, allow_pickle=False) as stored:
            document = json.loads(stored[_DOCUMENT].tobytes().decode("utf-8", "surrogatepass"))
            return _with_arrays(document, stored)
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"not a whole archive: {type(error).__name__}: {error}") from error


def _without_arrays(tree: Any, arrays: list[Any]) -> Any:
    import numpy as np

    if isinstance(tree, np.ndarray):
        arrays.append(tree)
        return {_ARRAY: len(arrays) - 1}
    if isinstance(tree, dict):
        return {_key(key): _without_arrays(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_arrays(value, arrays) for value in tree]
    if isinstance(tree, np.generic):
        return tree.item()
    if tree is None or isinstance(tree, str | int | float | bool):
        return tree
    raise TypeError(f"an archive holds mappings, lists, scalars and arrays; got {type(tree).__name__}")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"an archive's mappings have text keys; got {key!r}")
    return key


def _with_arrays(tree: Any, arrays: Any) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {_ARRAY}:
            return arrays[f"a{tree[_ARRAY]}"]
        return {key: _with_arrays(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_arrays(value, arrays) for value in tree]
    return tree
