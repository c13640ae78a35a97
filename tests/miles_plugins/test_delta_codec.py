"""The codec of changes: exact for any two buffers, small and checked where they differ little, deaf to damage."""

from __future__ import annotations

import struct
import zlib
from unittest import mock

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from miles_plugins.transports import delta_codec
from miles_plugins.transports.delta_codec import FRAME, WIDTHS, decode, encode

frames = st.sampled_from([64, 4096, FRAME])
sizes = st.one_of(st.integers(0, 20), st.integers(0, 20_000))
shares = st.sampled_from([0.0, 0.0001, 0.01, 0.3, 0.49, 0.51, 1.0])


def two(size, share, seed):
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 256, size, dtype=np.uint8)
    changed = rng.random(size) < share
    return old, np.where(changed, rng.integers(0, 256, size, dtype=np.uint8), old)


def coded(old, new, **options):
    return b"".join(encode(old, new, **{"width": 2, "xor": True, "level": 1, **options}))


def decoded(body, old, *, width=2, xor=True):
    data = old.copy()
    decode(memoryview(body), data, width=width, xor=xor)
    return data


@given(sizes, shares, st.integers(0, 2**32), st.sampled_from(WIDTHS), st.booleans(), st.integers(1, 19), frames)
def test_any_two_buffers_of_one_size_come_back(size, share, seed, width, xor, level, frame):
    old, new = two(size, share, seed)
    kept = old.copy(), new.copy()
    with mock.patch.object(delta_codec, "FRAME", frame):
        body = coded(old, new, width=width, xor=xor, level=level)
        assert (decoded(body, old, width=width, xor=xor) == new).all()
    assert (old == kept[0]).all()
    assert (new == kept[1]).all()


@given(st.binary(max_size=50), st.binary(max_size=50), st.sampled_from(WIDTHS), st.booleans())
def test_short_buffers_of_any_bytes_come_back(first, second, width, xor):
    size = min(len(first), len(second))
    old, new = (np.frombuffer(data[:size], np.uint8) for data in (first, second))
    assert (decoded(coded(old, new, width=width, xor=xor), old, width=width, xor=xor) == new).all()


@pytest.mark.parametrize("xor", [True, False])
def test_what_overwrites_may_be_applied_twice_and_what_xors_goes_back(xor):
    old, new = two(10_000, 0.01, seed=1)
    body = coded(old, new, xor=xor)
    again = decoded(body, new, xor=xor)
    assert (again == (old if xor else new)).all()


def test_a_hundredth_of_changed_bfloat16_values_takes_less_than_a_sixtieth():
    rng = np.random.default_rng(0)
    old = rng.integers(0, 65536, FRAME, dtype=np.uint16)  # two frames
    new = old.copy()
    new[rng.choice(old.size, old.size // 100, replace=False)] ^= rng.integers(1, 65536, old.size // 100, np.uint16)
    body = coded(old.view(np.uint8), new.view(np.uint8))
    assert len(body) * 60 < new.nbytes
    assert (decoded(body, old.view(np.uint8)).view(np.uint16) == new).all()


def test_equal_buffers_take_five_bytes_a_frame():
    old, _ = two(3 * FRAME, 0, seed=2)
    assert len(coded(old, old)) == 15


@given(st.integers(0, 2**32), st.integers(0, 7), st.integers(0, 2**32), st.sampled_from([0.01, 0.8]))
def test_a_flipped_bit_is_refused_or_gives_other_bytes_but_never_another_error(place, bit, seed, share):
    old, new = two(5000, share, seed)
    with mock.patch.object(delta_codec, "FRAME", 2048):
        body = bytearray(coded(old, new))
        body[place % len(body)] ^= 1 << bit
        try:
            result = decoded(body, old)
        except ValueError:
            return
    assert result.size == new.size


@given(st.integers(1, 400), st.booleans())
def test_a_body_that_is_cut_or_too_long_is_refused(count, longer):
    old, new = two(5000, 0.05, seed=3)
    body = coded(old, new)
    wrong = body + bytes(count) if longer else body[: -min(count, len(body))]
    with pytest.raises(ValueError, match="follow the last frame" if longer else "a frame ends at byte"):
        decoded(wrong, old)


def frame(mode, count, *streams):
    packed = b"".join(struct.pack("<I", len(stream)) + stream for stream in streams)
    return struct.pack("<BI", mode, count) + packed


def zstd(data, **options):
    return zstandard.ZstdCompressor(**options).compress(data)


ONE = zstd(b"\1")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (frame(2, 1, ONE, ONE), "has mode 2 and 1 changes"),
        (frame(0, 51, ONE, ONE, ONE), "a frame of 50 words has mode 0 and 51 changes"),
        (frame(0, 1, zstd(bytes(1 << 26)), ONE, ONE), "claims 67108864 bytes where 1 to 1 belong"),
        (frame(1, 1, zstd(bytes(1 << 26)), ONE), "claims 67108864 bytes where 50 to 50 belong"),
        (frame(0, 1, zstd(b"\1", write_content_size=False), ONE, ONE), "claims -1 bytes"),
        (frame(0, 1, zlib.compress(b"\1"), ONE, ONE), "a stream is damaged"),
        (frame(0, 1, ONE[:-1], ONE, ONE), "a stream is damaged"),
        (frame(0, 1, ONE + ONE, ONE, ONE), "a stream is damaged"),
        (frame(0, 1, b"", ONE, ONE), "a stream is damaged"),
        (frame(0, 1, zstd(b"\x32"), ONE, ONE), "position 50 is beyond a frame of 50 words"),
        (frame(0, 2, zstd(b"\1\xff"), zstd(b"\1\1"), zstd(b"\1\1")), "1 positions where 2 belong"),
        (frame(0, 1, ONE, zstd(b"\1\1"), ONE), "claims 2 bytes where 1 to 1 belong"),
        (b"\0", "a frame ends at byte 5 of 1"),
    ],
)
def test_streams_that_no_encoder_writes_are_refused_before_room_is_made(body, reason):
    with pytest.raises(ValueError, match=reason):
        decoded(body, np.zeros(100, np.uint8))
