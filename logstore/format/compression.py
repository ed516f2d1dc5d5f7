"""Compress and decompress the records of a batch, in Kafka's framing of each codec.

    gzip     RFC 1952; concatenated members are one stream
    snappy   82 'SNAPPY' 00 │ i32 version 1 │ i32 compatible 1 │ { i32 length │ raw snappy block }…
             big-endian; without those first 8 bytes the whole payload is one raw block
    lz4      04 22 4d 18 │ FLG │ BD │ [content size] │ header checksum
             │ { u32 length, little-endian, high bit: stored │ block │ [checksum] }… │ u32 0 │ [checksum]
    zstd     frames, one after another

The input is untrusted, and a kilobyte can expand to a gigabyte. So output is made in bounded pieces,
declared sizes are checked before anything is allocated for them, and a stream that exceeds `max_bytes` is
refused with at most one more block in memory. The batch's checksum covers the compressed bytes, so a stream
that does not decompress was sent that way: `InvalidRecord`.

Codec libraries other than zlib are in the extra `codecs` and are imported at first use.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable
from enum import IntEnum
from types import ModuleType
from typing import TYPE_CHECKING, Final, cast

from logstore.errors import InvalidRecord, UnsupportedCompression
from logstore.lazily import np

if TYPE_CHECKING:
    from logstore.disk.files import Buffer


class Codec(IntEnum):
    """The number in the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_CODECS: Final = tuple(Codec)
PIECE_BYTES: Final = 256 * 1024
"""Bytes of output per step."""
FEED_BYTES: Final = 64 * 1024
"""Bytes of input per step: the libraries copy unused input at every member and every frame."""
_APART_BYTES: Final = 8 << 20
SNAPPY_BLOCK_BYTES: Final = 32 * 1024
SNAPPY_MAGIC: Final = b"\x82SNAPPY\x00"
SNAPPY_HEADER: Final = SNAPPY_MAGIC + struct.pack(">ii", 1, 1)
LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
LZ4_BLOCK_BYTES: Final = 64 * 1024
LZ4_HEADER: Final = LZ4_MAGIC + b"\x60\x40\x82"
LZ4_END_MARK: Final = b"\0\0\0\0"
_STORED: Final = 0x8000_0000
_GZIP_HEADER: Final = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
# Larger windows are refused even if more output is allowed (zstd's own default limit). Windows up to 8 MiB
# are always accepted, as the format requires of every decoder.
_ZSTD_WINDOW_LOG_MIN: Final = 23
_ZSTD_WINDOW_LOG_MAX: Final = 27
_ZSTD_HEADER_BYTES: Final = 18


def codec_of(attributes: int) -> Codec:
    """Return the codec in a batch's attributes. Raises `UnsupportedCompression` for 5, 6 and 7."""
    number = attributes & 7
    if number >= len(_CODECS):
        raise UnsupportedCompression(f"unknown codec {number}; 0 to 4 are none, gzip, snappy, lz4, zstd")
    return _CODECS[number]


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data`. `level` None is Kafka's default (gzip -1, lz4 9, zstd 3)."""
    return _COMPRESS[codec](memoryview(data), level)


def decompress(codec: Codec, data: Buffer, *, max_bytes: int) -> bytes:
    """Decompress `data`. Raises `InvalidRecord` if it is malformed or exceeds `max_bytes`."""
    return _joined(_DECOMPRESS[codec](memoryview(data), max_bytes))


def decompress_to_look(codec: Codec, data: Buffer, *, max_bytes: int) -> Buffer:
    """Decompress `data` for reading here and now; otherwise as `decompress`.

    Much of it becomes an array: numpy uses large pages, and lets other threads run while it fills them. With
    small pages, to give 100 MiB back would stop all threads for 10 ms.
    """
    pieces = _DECOMPRESS[codec](memoryview(data), max_bytes)
    size = sum(map(len, pieces))
    if size < _APART_BYTES:
        return _joined(pieces)
    whole, end = np.empty(size, np.uint8), 0
    for piece in pieces:
        start, end = end, end + len(piece)
        whole[start:end] = np.frombuffer(piece, np.uint8)
    return whole.data


def _joined(pieces: list[bytes]) -> bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# Bundlers such as PyInstaller and Nuitka find import statements, not computed names.


def _snappy_library() -> ModuleType:
    try:
        import cramjam
    except ImportError:
        raise _not_installed(Codec.SNAPPY) from None
    return cramjam


def _lz4_library() -> ModuleType:
    try:
        import lz4.block
    except ImportError:
        raise _not_installed(Codec.LZ4) from None
    return cast(ModuleType, lz4.block)


def _zstd_library() -> ModuleType:
    try:
        if sys.version_info >= (3, 14):
            import compression.zstd as zstd
        else:
            import backports.zstd as zstd
    except ImportError:
        raise _not_installed(Codec.ZSTD) from None
    return zstd


def _not_installed(codec: Codec) -> UnsupportedCompression:
    return UnsupportedCompression(
        f"{codec.name.lower()} needs a library that is not installed: pip install 'pylogstore[codecs]'"
    )


class InflatesTooFar(InvalidRecord):
    """The records decompress to more bytes than the caller takes."""


def _too_large(codec: Codec, max_bytes: int) -> InvalidRecord:
    return InflatesTooFar(f"{codec.name.lower()}: the records decompress to more than {max_bytes} bytes")


def _broken(codec: Codec, reason: object) -> InvalidRecord:
    return InvalidRecord(f"{codec.name.lower()}: the records do not decompress: {reason}")


# none


def _keep(data: memoryview, _level: int | None) -> bytes:
    return bytes(data)


def _take(data: memoryview, max_bytes: int) -> list[bytes]:
    if len(data) > max_bytes:
        raise _too_large(Codec.NONE, max_bytes)
    return [bytes(data)]


# gzip


def _gzip(data: memoryview, level: int | None) -> bytes:
    deflate = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(data) + deflate.flush()
    return _GZIP_HEADER + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFF_FFFF)


def _gunzip(data: memoryview, max_bytes: int) -> list[bytes]:
    pieces: list[bytes] = []
    total = position = 0
    while True:
        member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        rest = b""
        while not member.eof:
            feed: Buffer = rest
            if not rest:
                feed = data[position : position + FEED_BYTES]
                position += len(feed)
            try:
                piece = member.decompress(feed, min(PIECE_BYTES, max_bytes - total + 1))
            except zlib.error as error:
                raise _broken(Codec.GZIP, error) from None
            rest = member.unconsumed_tail
            total += len(piece)
            if total > max_bytes:
                raise _too_large(Codec.GZIP, max_bytes)
            if not (piece or feed or member.eof):
                raise _broken(Codec.GZIP, "the stream is cut short")
            pieces.append(piece)
        position -= len(member.unused_data)
        # Kafka's reader accepts further members and ignores anything else.
        if bytes(data[position : position + 2]) != _GZIP_HEADER[:2]:
            return pieces


# snappy


def _snappy(data: memoryview, _level: int | None) -> bytes:
    raw = _snappy_library().snappy.compress_raw
    parts = [SNAPPY_HEADER]
    for start in range(0, len(data), SNAPPY_BLOCK_BYTES):
        block = bytes(raw(data[start : start + SNAPPY_BLOCK_BYTES]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _unsnappy(data: memoryview, max_bytes: int) -> list[bytes]:
    cramjam = _snappy_library()
    if bytes(data[:8]) != SNAPPY_MAGIC:
        return [_unsnappy_block(cramjam, data, max_bytes, max_bytes)]
    pieces: list[bytes] = []
    total = position = 0
    end = len(data)
    while position < end:
        if bytes(data[position : position + 8]) == SNAPPY_MAGIC:
            if end - position < len(SNAPPY_HEADER):
                raise _broken(Codec.SNAPPY, "the stream is cut short")
            compatible = struct.unpack_from(">i", data, position + 12)[0]
            if compatible < 1:
                raise _broken(Codec.SNAPPY, f"unsupported compatible version {compatible}")
            position += len(SNAPPY_HEADER)
            continue
        if end - position < 4:
            raise _broken(Codec.SNAPPY, "the stream is cut short")
        size = struct.unpack_from(">i", data, position)[0]
        position += 4
        if not 0 < size <= end - position:
            raise _broken(Codec.SNAPPY, f"block size {size} exceeds the {end - position} bytes that are left")
        piece = _unsnappy_block(cramjam, data[position : position + size], max_bytes - total, max_bytes)
        pieces.append(piece)
        total += len(piece)
        position += size
    return pieces


def _unsnappy_block(cramjam: ModuleType, block: memoryview, left: int, max_bytes: int) -> bytes:
    # The library allocates the declared size, up to 4 GiB, and aborts the process if it cannot.
    declared = shift = 0
    for byte in block[:5]:
        declared |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise _broken(Codec.SNAPPY, "the uncompressed length is missing")
    if declared > left:
        raise _too_large(Codec.SNAPPY, max_bytes)
    # The densest element is a copy: 3 bytes for 64.
    if declared > (len(block) // 3 + 1) * 64:
        raise _broken(Codec.SNAPPY, f"{len(block)} bytes cannot decompress to the declared {declared}")
    try:
        piece = bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _broken(Codec.SNAPPY, error) from None
    if len(piece) != declared:
        raise _broken(Codec.SNAPPY, f"{declared} bytes declared, {len(piece)} found")
    return piece


# lz4


def _lz4(data: memoryview, level: int | None) -> bytes:
    block = _lz4_library().compress
    # Kafka's default, 9, means the fast compressor, not the ninth level.
    mode = "default" if level in (None, 9) else "high_compression"
    options = {} if level in (None, 9) else {"compression": level}
    parts = [LZ4_HEADER]
    for start in range(0, len(data), LZ4_BLOCK_BYTES):
        plain = data[start : start + LZ4_BLOCK_BYTES]
        packed = block(plain, mode=mode, store_size=False, **options)
        if len(packed) < len(plain):
            parts += (struct.pack("<I", len(packed)), packed)
        else:
            parts += (struct.pack("<I", len(plain) | _STORED), bytes(plain))
    parts.append(LZ4_END_MARK)
    return b"".join(parts)


def _lz4_header(data: memoryview) -> tuple[int, int, int]:
    """Return the flags, the largest block size, and the position of the first block."""
    if bytes(data[:4]) != LZ4_MAGIC:
        raise _broken(Codec.LZ4, "not an LZ4 frame")
    if len(data) < 7:
        raise _broken(Codec.LZ4, "the frame is cut short")
    flags, block_code = data[4], data[5]
    if flags >> 6 != 1:
        raise _broken(Codec.LZ4, f"unsupported frame version {flags >> 6}")
    if flags & 0b11 or block_code & 0b1000_1111:
        raise _broken(Codec.LZ4, "reserved bits are set")
    if not flags & 0b10_0000:
        raise _broken(Codec.LZ4, "blocks depend on each other")
    if not 4 <= block_code >> 4 <= 7:
        raise _broken(Codec.LZ4, f"invalid block size code {block_code >> 4}")
    end = 14 if flags & 0b1000 else 6
    if len(data) <= end:
        raise _broken(Codec.LZ4, "the frame is cut short")
    if data[end] != xxh32(data[4:end]) >> 8 & 0xFF:
        raise _broken(Codec.LZ4, "the header's checksum is wrong")
    return flags, 1 << 2 * (block_code >> 4) + 8, end + 1


def _unlz4(data: memoryview, max_bytes: int) -> list[bytes]:
    # The frame is parsed here: the library's reader accepts dependent blocks, verifies the content checksum
    # (Kafka's does not), and allocates the content size that the frame claims.
    lz4 = _lz4_library()
    flags, max_block, position = _lz4_header(data)
    pieces: list[bytes] = []
    total = 0
    end = len(data)
    while True:
        if end - position < 4:
            raise _broken(Codec.LZ4, "the frame has no end mark")
        word = struct.unpack_from("<I", data, position)[0]
        position += 4
        size = word & ~_STORED
        if size == 0:
            if flags & 0b100 and end - position < 4:
                raise _broken(Codec.LZ4, "the content checksum is missing")
            return pieces
        if size > max_block or size > end - position:
            raise _broken(
                Codec.LZ4,
                f"block size {size} exceeds the allowed {max_block} or the {end - position} bytes left",
            )
        block = data[position : position + size]
        position += size
        if flags & 0b1_0000:
            if end - position < 4:
                raise _broken(Codec.LZ4, "the frame is cut short")
            if struct.unpack_from("<I", data, position)[0] != xxh32(block):
                raise _broken(Codec.LZ4, "a block's checksum is wrong")
            position += 4
        if word & _STORED:
            piece = bytes(block)
        else:
            try:
                # The library allocates this size; a byte of a block expands to at most 255.
                piece = lz4.decompress(block, uncompressed_size=min(max_block, size * 255))
            except lz4.LZ4BlockError as error:
                raise _broken(Codec.LZ4, error) from None
        total += len(piece)
        if total > max_bytes:
            raise _too_large(Codec.LZ4, max_bytes)
        pieces.append(piece)


def xxh32(data: Buffer) -> int:
    """Compute xxHash (32 bits, seed 0), the checksum of LZ4 frames. For headers: about 50 ms per MiB."""
    p1, p2, p3, p4, p5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    mask = 0xFFFF_FFFF
    view = memoryview(data)
    size = len(view)
    whole = size & ~15
    if whole:
        a, b, c, d = (p1 + p2) & mask, p2, 0, -p1 & mask
        for w, x, y, z in struct.iter_unpack("<IIII", view[:whole]):
            a = (a + w * p2) & mask
            a = ((a << 13 | a >> 19) & mask) * p1 & mask
            b = (b + x * p2) & mask
            b = ((b << 13 | b >> 19) & mask) * p1 & mask
            c = (c + y * p2) & mask
            c = ((c << 13 | c >> 19) & mask) * p1 & mask
            d = (d + z * p2) & mask
            d = ((d << 13 | d >> 19) & mask) * p1 & mask
        h = (a << 1 | a >> 31) + (b << 7 | b >> 25) + (c << 12 | c >> 20) + (d << 18 | d >> 14)
    else:
        h = p5
    h = (h + size) & mask
    words = size & ~3
    for (word,) in struct.iter_unpack("<I", view[whole:words]):
        h = (h + word * p3) & mask
        h = ((h << 17 | h >> 15) & mask) * p4 & mask
    for byte in view[words:]:
        h = (h + byte * p5) & mask
        h = ((h << 11 | h >> 21) & mask) * p1 & mask
    h = (h ^ h >> 15) * p2 & mask
    h = (h ^ h >> 13) * p3 & mask
    return h ^ h >> 16


# zstd


def _zstd(data: memoryview, level: int | None) -> bytes:
    compressor = _zstd_library().ZstdCompressor(3 if level is None else level)
    # Flushed, then ended, as Kafka's stream does: the frame has no content size and an empty last block.
    flushed: bytes = compressor.compress(data, compressor.FLUSH_BLOCK)
    ended: bytes = compressor.flush()
    return flushed + ended


def _unzstd(data: memoryview, max_bytes: int) -> list[bytes]:
    zstd = _zstd_library()
    window_log = min(max(max_bytes.bit_length(), _ZSTD_WINDOW_LOG_MIN), _ZSTD_WINDOW_LOG_MAX)
    options = {zstd.DecompressionParameter.window_log_max: window_log}
    pieces: list[bytes] = []
    total = position = 0
    try:
        while position < len(data):
            declared = zstd.get_frame_info(data[position : position + _ZSTD_HEADER_BYTES]).decompressed_size
            if declared is not None and declared > max_bytes - total:
                raise _too_large(Codec.ZSTD, max_bytes)
            frame = zstd.ZstdDecompressor(options=options)
            while not frame.eof:
                feed: Buffer = b""
                # If the output filled up as the input ended, nothing comes although input is needed.
                was_hungry = frame.needs_input
                if was_hungry:
                    feed = data[position : position + FEED_BYTES]
                    position += len(feed)
                piece = frame.decompress(feed, min(PIECE_BYTES, max_bytes - total + 1))
                total += len(piece)
                if total > max_bytes:
                    raise _too_large(Codec.ZSTD, max_bytes)
                if was_hungry and not (piece or feed or frame.eof):
                    raise _broken(Codec.ZSTD, "the frame is cut short")
                pieces.append(piece)
            position -= len(frame.unused_data)
    except zstd.ZstdError as error:
        raise _broken(Codec.ZSTD, error) from None
    return pieces


_COMPRESS: Final[dict[Codec, Callable[[memoryview, int | None], bytes]]] = {
    Codec.NONE: _keep,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_DECOMPRESS: Final[dict[Codec, Callable[[memoryview, int], list[bytes]]]] = {
    Codec.NONE: _take,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
