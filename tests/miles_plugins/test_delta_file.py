"""The file of one bucket: read back as written, and refused when it is foreign, cut, damaged or of another bucket."""

from __future__ import annotations

import dataclasses
import os

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miles_core.api import Bucket, Placement, TensorSpec, WeightSyncError
from miles_plugins.transports.delta_file import FULL, NO_BASE, OVERWRITE, XOR, Head, read_file, write_file

SPEC = TensorSpec("a.weight", "bfloat16", (8, 64))
BUCKET = Bucket(3, (Placement(SPEC, SPEC.whole, "a.weight", 0),), SPEC.nbytes, stream=1)
RESULT = xxhash.xxh3_128_digest(b"result")
HEAD = Head(XOR, 2, 7, RESULT)
BODY = bytes(range(200))
HEADER = 90


def test_head_and_body_come_back_and_the_size_is_told(tmp_path):
    path = tmp_path / "file"
    assert write_file(path, BUCKET, HEAD, [BODY[:50], memoryview(BODY[50:])]) == path.stat().st_size == HEADER + 200
    assert read_file(path, BUCKET) == (HEAD, BODY)


def test_a_full_file_holds_the_bucket_as_it_is(tmp_path):
    path, payload = tmp_path / "file", os.urandom(BUCKET.nbytes)
    head = Head(FULL, 2, NO_BASE, RESULT)
    write_file(path, BUCKET, head, [payload])
    assert path.read_bytes().endswith(payload)
    assert read_file(path, BUCKET) == (head, payload)


def test_no_file_is_written_over(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        write_file(path, BUCKET, HEAD, [BODY])
    assert path.read_bytes() == b"mine"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, HEADER + 199), bit=st.integers(0, 7))
def test_any_flipped_bit_is_refused_with_the_name_of_the_file(tmp_path, at, bit):
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    write_file(path, BUCKET, HEAD, [BODY])
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(WeightSyncError, match=str(path)):
        read_file(path, BUCKET)


@pytest.mark.parametrize("size", [0, 1, HEADER - 1, HEADER, HEADER + 199, HEADER + 201])
def test_a_file_of_another_size_is_refused(tmp_path, size):
    path = tmp_path / "file"
    write_file(path, BUCKET, HEAD, [BODY])
    os.truncate(path, size)
    with pytest.raises(WeightSyncError, match=rf"must have .* bytes.*; it has {size}"):
        read_file(path, BUCKET)


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\x80\x04" + bytes(1000))
    with pytest.raises(WeightSyncError, match="must begin with b'milesWD"):
        read_file(path, BUCKET)


OTHER = Placement(SPEC, ((0, 4), (0, 64)), "a.weight", 0)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(BUCKET, index=4),
        dataclasses.replace(BUCKET, stream=0),
        dataclasses.replace(BUCKET, nbytes=2),
        dataclasses.replace(BUCKET, placements=(OTHER, OTHER)),
    ],
)
def test_the_file_of_another_bucket_is_refused(tmp_path, other):
    path = tmp_path / "file"
    write_file(path, BUCKET, HEAD, [BODY])
    with pytest.raises(WeightSyncError, match=rf"must hold bucket {other.index} of stream {other.stream} "):
        read_file(path, other)


@pytest.mark.parametrize(
    ("head", "count"),
    [
        (Head(3, 2, 7, RESULT), 200),
        (Head(XOR, 3, 7, RESULT), 200),
        (Head(XOR, 2, NO_BASE, RESULT), 200),
        (Head(OVERWRITE, 2, 7, RESULT), BUCKET.nbytes),
        (Head(FULL, 2, 7, RESULT), BUCKET.nbytes),
        (Head(FULL, 2, NO_BASE, RESULT), BUCKET.nbytes - 1),
    ],
)
def test_a_header_that_no_sender_writes_is_refused(tmp_path, head, count):
    path = tmp_path / "file"
    write_file(path, BUCKET, head, [bytes(count)])
    with pytest.raises(WeightSyncError, match="has a header that cannot be"):
        read_file(path, BUCKET)


def test_a_body_larger_than_the_bucket_is_refused_before_room_is_made(tmp_path):
    path = tmp_path / "file"
    write_file(path, BUCKET, HEAD, [BODY])
    data = bytearray(path.read_bytes())
    data[50:58] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(data)
    os.truncate(path, HEADER + (1 << 40))
    with pytest.raises(WeightSyncError, match=f"{1 << 40} bytes for 1024"):
        read_file(path, BUCKET)
