"""Archives: what goes in comes out, and a damaged file is never half read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.lib.archive import dump_archive, load_archive

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec=None))
trees = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda k: k != "$array"), inner)
)


@given(trees)
def test_json_like_trees_come_back_as_they_were(tree) -> None:
    assert load_archive(dump_archive(tree)) == tree


@pytest.mark.parametrize("compress", [True, False])
def test_arrays_keep_bits_type_and_shape(compress: bool) -> None:
    arrays = [
        np.arange(6, dtype=np.uint8).reshape(2, 3, 1),
        np.float32([np.nan, -0.0, 1e-45]),
        np.zeros((0, 2), np.int64),
    ]
    for before, after in zip(arrays, load_archive(dump_archive({"x": arrays}, compress=compress))["x"], strict=True):
        assert before.dtype == after.dtype
        assert before.shape == after.shape
        assert before.tobytes() == after.tobytes()


def test_an_archive_cut_at_any_place_is_refused() -> None:
    data = dump_archive({"x": np.arange(100), "y": "text"})
    for length in range(0, len(data), 7):
        with pytest.raises(ValueError, match="not a whole archive"):
            load_archive(data[:length])


def test_objects_are_refused_and_never_pickled() -> None:
    with pytest.raises(TypeError, match="got object"):
        dump_archive({"x": object()})
    with pytest.raises(ValueError, match="allow_pickle"):
        dump_archive({"x": np.array([object()])})
