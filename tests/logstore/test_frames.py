"""Frames decompressed with a kept context are those of the plain code, which reads all that it leaves out."""

from __future__ import annotations

import random
import sys
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from logstore.columnar import columnar
from logstore.columnar import frames as module
from logstore.columnar.frames import frames
from logstore.columnar.kernels import bytes_of
from logstore.errors import InvalidRecord
from logstore.format.batch import encode_batch
from logstore.format.compression import Codec, compress, decompress
from logstore.format.record import Record

ZSTD: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
PLAIN = b"".join(b"%d GET /index" % number for number in range(3_000))
LIMIT = 1 << 20
WIDE = compress(Codec.ZSTD, PLAIN)
"""Byte 5 is its window."""


@pytest.fixture(autouse=True)
def exported() -> None:
    if module._functions() is None:
        pytest.skip("zstd's functions are not exported here")  # callers use the plain code


def fast(frame: bytes, room: int = LIMIT) -> bytes | None:
    """Decompress a frame between other bytes with the kept context; None if the plain code has to read it."""
    out = np.zeros(room + 64, np.uint8)
    with frames(bytes_of(b"before" + frame + b"behind"), out) as context:
        assert context is not None
        size = context.decompress(6, 6 + len(frame), 32, room)
    assert not np.delete(out, slice(32, 32 + room)).any(), "only the room is written to"
    return None if size is None else out[32 : 32 + size].tobytes()


def plain(frame: bytes, room: int = LIMIT) -> bytes | None:
    try:
        return decompress(Codec.ZSTD, frame, max_bytes=room)
    except InvalidRecord:
        return None


def made(plain: bytes, **options: int) -> bytes:
    names = {getattr(ZSTD.CompressionParameter, name): value for name, value in options.items()}
    found: bytes = ZSTD.compress(plain, options=names)
    return found


@pytest.mark.parametrize(
    "frame",
    [
        compress(Codec.ZSTD, PLAIN),
        compress(Codec.ZSTD, b""),
        compress(Codec.ZSTD, random.Random(1).randbytes(200_000)),
        made(PLAIN),
        made(PLAIN, checksum_flag=1),
        made(PLAIN, content_size_flag=0, window_log=22),
        made(b"x"),
    ],
)
def test_common_frames(frame: bytes) -> None:
    expected = plain(frame)
    assert expected is not None
    assert fast(frame) == fast(frame, len(expected)) == expected
    assert not expected or fast(frame, len(expected) - 1) is None


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x28\xb5\x2f\xfd",
        compress(Codec.ZSTD, PLAIN)[:-1],
        compress(Codec.ZSTD, PLAIN) + b"\0",
        compress(Codec.ZSTD, PLAIN) * 2,
        WIDE[:5] + bytes((13 << 3,)) + WIDE[6:],
        made(PLAIN, content_size_flag=0, window_log=10),
    ],
)
def test_other_frames_are_left_to_the_plain_code(frame: bytes) -> None:
    """Several frames, large windows and those that are smaller than the output, and no frames at all."""
    assert fast(frame) is None


@pytest.mark.parametrize("seed", range(4))
def test_changed_frames(seed: int) -> None:
    rng = random.Random(seed)
    frame = made(PLAIN, checksum_flag=seed % 2, content_size_flag=seed // 2)
    for _ in range(300):
        changed = bytearray(frame)
        for _ in range(rng.choice((1, 1, 3))):
            changed[rng.randrange(rng.choice((12, len(frame))))] ^= 1 << rng.randrange(8)
        found = fast(bytes(changed))
        assert found is None or found == plain(bytes(changed)), changed.hex()


@pytest.mark.parametrize("codecs", [[Codec.ZSTD], [Codec.ZSTD, Codec.NONE, Codec.GZIP], [Codec.LZ4]])
def test_columns_are_the_same_without_the_functions(
    monkeypatch: pytest.MonkeyPatch, codecs: list[Codec]
) -> None:
    """Pieces of several batches, and batches that are too large for them."""
    monkeypatch.setattr(columnar, "PIECE_BYTES", 40_000)
    monkeypatch.setattr(columnar, "_ARENA_MARGIN_BYTES", 10_000)
    rng = random.Random(len(codecs))
    data = b"".join(
        encode_batch(
            [Record(slot, 5, b"k", b"%d" % slot * rng.choice((1, 1_000, 9_000, 30_000)))],
            base_offset=slot,
            codec=rng.choice(codecs),
        )
        for slot in range(60)
    )
    found = columnar.table(data)
    assert found.num_rows == 60
    monkeypatch.setattr(module, "_functions", lambda: None)
    assert columnar.table(data).equals(found)
