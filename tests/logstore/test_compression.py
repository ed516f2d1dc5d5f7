"""The five codecs: round trips, Kafka's framing rules one by one, and streams that were made to hurt."""

from __future__ import annotations

import ast
import inspect
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable

import lz4.block
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import InvalidRecord, UnsupportedCompression
from logstore.format import compression
from logstore.format.compression import (
    LZ4_HEADER,
    PIECE_BYTES,
    SNAPPY_HEADER,
    Codec,
    codec_of,
    compress,
    decompress,
    decompress_to_look,
    xxh32,
)

MIB = 1 << 20
TEXT = b"the quick brown fox jumps over the lazy dog. " * 5000
COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


def lz4_frame(*blocks: bytes, flags: int = 0x60, code: int = 0x40, end: bytes = bytes(4)) -> bytes:
    """A frame with a true header checksum around blocks as they are given."""
    described = bytes((flags, code))
    return b"\x04\x22\x4d\x18" + described + bytes((xxh32(described) >> 8 & 0xFF,)) + b"".join(blocks) + end


def lz4_block(plain: bytes) -> bytes:
    packed: bytes = lz4.block.compress(plain, store_size=False)
    return struct.pack("<I", len(packed)) + packed


@settings(derandomize=True, deadline=None, max_examples=40)
@given(data=st.binary(max_size=2000), repeat=st.sampled_from([1, 7, 90]), codec=st.sampled_from(list(Codec)))
def test_round_trip(data: bytes, repeat: int, codec: Codec) -> None:
    """What goes in comes out, and exactly its size is enough of a limit."""
    data *= repeat
    assert decompress(codec, compress(codec, data), max_bytes=len(data)) == data


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_takes_any_buffer(codec: Codec, kind: Callable[[bytes], bytes]) -> None:
    """Batches are views into larger buffers; nothing asks for a copy first."""
    assert decompress(codec, kind(compress(codec, kind(TEXT))), max_bytes=MIB) == TEXT


@pytest.mark.parametrize(
    ("codec", "level"),
    [(Codec.GZIP, 1), (Codec.GZIP, 9), (Codec.LZ4, 1), (Codec.LZ4, 17), (Codec.ZSTD, -5), (Codec.ZSTD, 19)],
)
def test_levels(codec: Codec, level: int) -> None:
    """Kafka's ranges; a level changes size, never content."""
    assert decompress(codec, compress(codec, TEXT, level), max_bytes=MIB) == TEXT


def test_one_byte_too_many_is_refused() -> None:
    """The limit is exact for every codec."""
    for codec in Codec:
        with pytest.raises(InvalidRecord, match="more than 999"):
            decompress(codec, compress(codec, bytes(1000)), max_bytes=999)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("size", [0, 1, 9 * MIB])
def test_for_a_look_it_is_the_same_and_has_the_same_limit(codec: Codec, size: int) -> None:
    data = (TEXT * (size // len(TEXT) + 1))[:size]
    stored = compress(codec, data)
    assert decompress_to_look(codec, stored, max_bytes=size) == data
    for limit in range(max(size - 1, 0), size):
        with pytest.raises(InvalidRecord, match=f"more than {limit}"):
            decompress_to_look(codec, stored, max_bytes=limit)


@pytest.mark.parametrize("number", [5, 6, 7])
def test_unknown_codecs_are_named(number: int) -> None:
    """Three of the eight numbers mean nothing."""
    with pytest.raises(UnsupportedCompression, match=f"unknown codec {number}"):
        codec_of(0x18 | number)


@pytest.mark.parametrize(
    ("codec", "module"), [(Codec.SNAPPY, "cramjam"), (Codec.LZ4, "lz4.block"), (Codec.ZSTD, "backports.zstd")]
)
def test_a_missing_library_is_named_with_its_cure(
    codec: Codec, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codecs are an extra; who meets one without it is told what to install."""
    if sys.version_info >= (3, 14) and codec is Codec.ZSTD:
        pytest.skip("the standard library has zstd from 3.14 on")
    monkeypatch.setitem(sys.modules, module, None)
    cure = r"pip install 'pylogstore\[codecs\]'"
    with pytest.raises(UnsupportedCompression, match=cure):
        compress(codec, b"x")
    with pytest.raises(UnsupportedCompression, match=cure):
        decompress(codec, b"x", max_bytes=9)


def test_a_bundler_finds_the_libraries() -> None:
    """PyInstaller and Nuitka bundle what import statements name: a frozen program read no zstd."""
    statements = [
        each for each in ast.walk(ast.parse(inspect.getsource(compression))) if isinstance(each, ast.Import)
    ]
    names = {name.name for statement in statements for name in statement.names}
    assert {"cramjam", "lz4.block", "backports.zstd", "compression.zstd"} <= names


# Framing


def test_gzip_members_are_joined_and_what_is_none_is_ignored() -> None:
    """As the JDK's stream does: a second member continues the first, trailing bytes are not looked at."""
    two = compress(Codec.GZIP, b"one ") + compress(Codec.GZIP, b"two")
    assert decompress(Codec.GZIP, two, max_bytes=7) == b"one two"
    assert decompress(Codec.GZIP, two + b"garbage", max_bytes=7) == b"one two"
    with pytest.raises(InvalidRecord):
        decompress(Codec.GZIP, two, max_bytes=6)


def test_gzip_header_is_as_the_jdk_writes_it() -> None:
    """No time, no name: the same records compress to the same bytes."""
    assert compress(Codec.GZIP, b"x")[:10].hex() in {"1f8b08000000000000ff", "1f8b0800000000000000"}


def test_snappy_blocks_are_32_kib() -> None:
    """The xerial framing: a header, then a length in front of each block."""
    data = compress(Codec.SNAPPY, bytes(70_000))
    assert data.startswith(SNAPPY_HEADER)
    position, blocks = len(SNAPPY_HEADER), 0
    while position < len(data):
        position += 4 + struct.unpack_from(">i", data, position)[0]
        blocks += 1
    assert (position, blocks) == (len(data), 3)


def test_snappy_streams_are_joined_and_raw_blocks_taken() -> None:
    """Some producers write a bare block; some concatenate whole streams, header and all."""
    stream = compress(Codec.SNAPPY, b"abc" * 100)
    assert decompress(Codec.SNAPPY, stream + stream, max_bytes=600) == b"abc" * 200
    raw = stream[len(SNAPPY_HEADER) + 4 :]
    assert decompress(Codec.SNAPPY, raw, max_bytes=300) == b"abc" * 100


def test_lz4_header_is_kafkas() -> None:
    """Version 1, independent 64 KiB blocks, no checksums, no size."""
    assert compress(Codec.LZ4, bytes(9)).startswith(LZ4_HEADER)
    assert LZ4_HEADER.hex() == "04224d18604082"
    assert lz4_frame()[:7] == LZ4_HEADER


def test_lz4_library_reads_what_we_write() -> None:
    """The framing is by hand; the library's own reader is the oracle."""
    for data in (b"", b"x", TEXT, bytes(range(256)) * 600):
        assert lz4.frame.decompress(compress(Codec.LZ4, data)) == data


@pytest.mark.parametrize("content_checksum", [False, True])
@pytest.mark.parametrize("block_checksum", [False, True])
@pytest.mark.parametrize("store_size", [False, True])
def test_we_read_what_the_lz4_library_writes(
    content_checksum: bool, block_checksum: bool, store_size: bool
) -> None:
    """Every optional field of a frame, in every combination."""
    frame = lz4.frame.compress(
        TEXT,
        block_size=lz4.frame.BLOCKSIZE_MAX256KB,
        block_linked=False,
        content_checksum=content_checksum,
        block_checksum=block_checksum,
        store_size=store_size,
    )
    assert decompress(Codec.LZ4, frame, max_bytes=MIB) == TEXT


def test_lz4_content_checksum_is_consumed_not_verified_and_the_end_is_the_end() -> None:
    """As Kafka's reader: a wrong content checksum and bytes after the end mark change nothing."""
    frame = lz4_frame(lz4_block(b"abcabc"), flags=0x64, end=bytes(4) + b"nope")
    assert decompress(Codec.LZ4, frame, max_bytes=6) == b"abcabc"
    assert decompress(Codec.LZ4, frame + b"and more", max_bytes=6) == b"abcabc"


def test_zstd_frames_are_joined_and_skippable_ones_skipped() -> None:
    """A zstd stream is any number of frames."""
    one = compress(Codec.ZSTD, b"one ")
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"hello"
    assert decompress(Codec.ZSTD, one + skippable + one, max_bytes=8) == b"one one "


def test_zstd_frame_declares_no_size() -> None:
    """As Kafka's stream: flushed, then an empty last block."""
    frame = compress(Codec.ZSTD, b"x" * 100)
    assert frame[4] & 0b1110_0000 == 0
    assert frame.endswith(b"\x01\x00\x00")


@pytest.mark.parametrize("count", [120_000, 160_000, 200_000])
def test_zstd_output_that_fills_up_just_as_the_input_ends_is_not_cut_short(count: int) -> None:
    """The library then wants nothing and gives nothing, once: wherever whole blocks fill a piece."""
    data = b"".join(b"value %d of some" % number for number in range(count))
    assert decompress(Codec.ZSTD, compress(Codec.ZSTD, data), max_bytes=len(data)) == data


@settings(derandomize=True, max_examples=60)
@given(data=st.binary(max_size=100))
def test_xxh32_agrees_with_the_lz4_library(data: bytes) -> None:
    """The library checks a frame's content checksum: it takes ours and refuses any other."""
    body = struct.pack("<I", len(data) | 0x8000_0000) + data if data else b""
    frame = lz4_frame(body, flags=0x64, end=bytes(4) + struct.pack("<I", xxh32(data)))
    assert lz4.frame.decompress(frame) == data
    wrong = lz4_frame(body, flags=0x64, end=bytes(4) + struct.pack("<I", xxh32(data) ^ 1))
    with pytest.raises(RuntimeError):
        lz4.frame.decompress(wrong)


# Made to hurt

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BAD: dict[str, tuple[Codec, bytes]] = {
    "gzip: empty": (Codec.GZIP, b""),
    "gzip: not gzip": (Codec.GZIP, b"plain text"),
    "gzip: cut": (Codec.GZIP, compress(Codec.GZIP, TEXT)[:-9]),
    "gzip: wrong checksum": (Codec.GZIP, compress(Codec.GZIP, TEXT)[:-8] + bytes(8)),
    "gzip: second member is broken": (Codec.GZIP, compress(Codec.GZIP, b"x") + b"\x1f\x8b\x08\xff"),
    "snappy: empty": (Codec.SNAPPY, b""),
    "snappy: header cut": (Codec.SNAPPY, SNAPPY_HEADER[:12]),
    "snappy: compatible version 0": (Codec.SNAPPY, SNAPPY_HEADER[:12] + bytes(4)),
    "snappy: length cut": (Codec.SNAPPY, SNAPPY_HEADER + b"\0\0"),
    "snappy: block of -1 bytes": (Codec.SNAPPY, SNAPPY_HEADER + struct.pack(">i", -1) + b"x" * 20),
    "snappy: block of 0 bytes": (Codec.SNAPPY, SNAPPY_HEADER + struct.pack(">i", 0)),
    "snappy: block passes the end": (Codec.SNAPPY, SNAPPY_HEADER + struct.pack(">i", 21) + b"x" * 20),
    "snappy: declares 4 GiB": (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\0\0"),
    "snappy: declares more than it can hold": (Codec.SNAPPY, b"\x80\x80\x04\0\0"),
    "snappy: declares no length": (Codec.SNAPPY, b"\xff\xff\xff\xff\xff\xff"),
    "snappy: copies from before its start": (Codec.SNAPPY, b"\x08\x01\xff"),
    "snappy: less than declared": (Codec.SNAPPY, b"\x09\x00a"),
    "lz4: empty": (Codec.LZ4, b""),
    "lz4: wrong magic": (Codec.LZ4, b"\x05" + LZ4_HEADER[1:] + bytes(4)),
    "lz4: header cut": (Codec.LZ4, LZ4_HEADER[:6]),
    "lz4: header cut before its checksum": (Codec.LZ4, b"\x04\x22\x4d\x18\x68\x40" + bytes(6)),
    "lz4: header checksum": (Codec.LZ4, LZ4_HEADER[:6] + b"\x83" + bytes(4)),
    "lz4: version 0": (Codec.LZ4, lz4_frame(flags=0x20)),
    "lz4: version 2": (Codec.LZ4, lz4_frame(flags=0xA0)),
    "lz4: dependent blocks": (Codec.LZ4, lz4_frame(flags=0x40)),
    "lz4: reserved flag": (Codec.LZ4, lz4_frame(flags=0x62)),
    "lz4: dictionary flag": (Codec.LZ4, lz4_frame(flags=0x61)),
    "lz4: reserved bits of the block code": (Codec.LZ4, lz4_frame(code=0x41)),
    "lz4: block code 3": (Codec.LZ4, lz4_frame(code=0x30)),
    "lz4: block code 8": (Codec.LZ4, lz4_frame(code=0x80)),
    "lz4: no end mark": (Codec.LZ4, lz4_frame(lz4_block(b"abc"), end=b"")),
    "lz4: block above its maximum": (
        Codec.LZ4, lz4_frame(struct.pack("<I", 65537 | 0x8000_0000) + bytes(65537)),
    ),
    "lz4: block passes the end": (Codec.LZ4, lz4_frame(struct.pack("<I", 99), end=b"")),
    "lz4: block decompresses past its maximum": (Codec.LZ4, lz4_frame(lz4_block(bytes(65537)))),
    "lz4: block is garbage": (Codec.LZ4, lz4_frame(struct.pack("<I", 9) + b"\xff" * 9)),
    "lz4: block checksum": (Codec.LZ4, lz4_frame(lz4_block(b"abc"), bytes(4), flags=0x70)),
    "lz4: block checksum cut": (Codec.LZ4, lz4_frame(lz4_block(b"abc"), flags=0x70, end=b"")),
    "lz4: content checksum cut": (Codec.LZ4, lz4_frame(lz4_block(b"abc"), flags=0x64)),
    "zstd: not zstd": (Codec.ZSTD, b"plain text"),
    "zstd: cut": (Codec.ZSTD, compress(Codec.ZSTD, TEXT)[:-5]),
    "zstd: garbage after the frame": (Codec.ZSTD, compress(Codec.ZSTD, b"x") + b"garbage"),
    "zstd: declares 2**60 bytes": (
        Codec.ZSTD, ZSTD_MAGIC + b"\xe0" + struct.pack("<Q", 1 << 60) + b"\x01\0\0",
    ),
    "zstd: window of 2 GiB": (Codec.ZSTD, ZSTD_MAGIC + b"\x00" + bytes((21 << 3,)) + b"\x01\0\0"),
    "zstd: window above the limit": (Codec.ZSTD, ZSTD_MAGIC + b"\x00" + bytes((14 << 3,)) + b"\x01\0\0"),
    "zstd: reserved bit": (Codec.ZSTD, ZSTD_MAGIC + b"\x08\x00\x01\0\0"),
    "zstd: reserved block type": (Codec.ZSTD, ZSTD_MAGIC + b"\x00\x00\x07\0\0"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_broken_streams(name: str) -> None:
    """Each is an `InvalidRecord` that says what is wrong; no library's own error escapes."""
    codec, data = BAD[name]
    with pytest.raises(InvalidRecord, match=codec.name.lower()):
        decompress(codec, data, max_bytes=MIB)


def bomb(codec: Codec, size_bytes: int) -> bytes:
    """Zeros, compressed as densely as the codec can."""
    match codec:
        case Codec.GZIP:
            return compress(codec, bytes(size_bytes), 9)
        case Codec.LZ4:
            block = lz4_block(bytes(4 * MIB))
            return lz4_frame(*[block] * (size_bytes // (4 * MIB)), code=0x70)
        case Codec.SNAPPY:
            block = compress(codec, bytes(32768))[len(SNAPPY_HEADER) :]
            return SNAPPY_HEADER + block * (size_bytes // 32768)
        case _:
            return compress(codec, bytes(size_bytes))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_bombs_are_refused_before_they_unfold(codec: Codec) -> None:
    """64 MiB of zeros against a limit of 1 MiB: no more than the limit and one block is ever held."""
    data = bomb(codec, 64 * MIB)
    block = {Codec.LZ4: 4 * MIB}.get(codec, PIECE_BYTES)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecord, match=f"more than {MIB} bytes"):
            decompress(codec, data, max_bytes=MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MIB + 2 * block + 100_000


def test_a_raw_snappy_bomb_is_refused_by_what_it_declares() -> None:
    """The library allocates the declared size at once, and aborts the process if it cannot."""
    with pytest.raises(InvalidRecord, match="more than"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100), max_bytes=MIB)
    with pytest.raises(InvalidRecord, match="cannot decompress"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100), max_bytes=1 << 33)


def test_thousands_of_empty_members_cost_one_pass() -> None:
    """Each library copies what it leaves over; fed whole, 1 MiB of empty members would copy 26 GB."""
    for codec in (Codec.GZIP, Codec.ZSTD):
        member = compress(codec, b"")
        assert decompress(codec, member * (200_000 // len(member)), max_bytes=1) == b""


def test_nested_compression_is_only_undone_once() -> None:
    """A value that is itself compressed is somebody's payload."""
    inner = zlib.compress(TEXT)
    for codec in COMPRESSED:
        assert decompress(codec, compress(codec, inner), max_bytes=MIB) == inner


@settings(derandomize=True, deadline=None, max_examples=400)
@given(
    codec=st.sampled_from(COMPRESSED),
    places=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 10),
)
def test_damaged_streams_raise_nothing_else(codec: Codec, places: list[tuple[int, int]], cut: int) -> None:
    """Whatever the bytes: content, or an `InvalidRecord`."""
    data = bytearray(compress(codec, TEXT[:300] + bytes(range(256))))
    for place, byte in places:
        data[place % len(data)] = byte
    try:
        decompress(codec, data[: len(data) - cut], max_bytes=1000)
    except InvalidRecord:
        return
