"""Seals: the digests of a segment, made when its log moves on to the next one.

    00000000000000368769.seal            named for the segment's base offset; big-endian
    ┌─────────┬──────────┬─────────────┬────────────┬───────────┬──────────┬─────────────┬─────────────┐
    │ version │ CRC-32C  │ base offset │ end offset │ successor │ .log     │ CRC-32C of  │ block bytes │
    │ u16 = 1 │ of the   │ i64         │ i64        │ i64, base │ bytes    │ the indexes │ u32         │
    │         │ rest u32 │             │            │ of next   │ i64      │ 3 × u32     │             │
    ├─────────┴──────────┴─────────────┴────────────┴───────────┴──────────┴─────────────┴─────────────┤
    │ CRC-32C (u32) of every block of the .log; the last block may be shorter                          │
    └──────────────────────────────────────────────────────────────────────────────────────────────────┘
    indexes: .txnindex (0: there is none), .index, .timeindex

The `.log` and the `.txnindex` must match the seal. The other two are derived and may be rebuilt: if their
digests match, a verification need not walk the batches; if not, that proves nothing.

A batch's checksum leaves out its base offset, length, leader epoch and magic, and nothing in Kafka's files
distinguishes an intended gap from a missing segment. The digests cover every byte of a `.log` and locate a
change; the successor names the next segment. Kafka's loader ignores the suffix, and its clean-up after a
swap, which is based on offsets, removes the seal with the segment.

A seal is written after its segment is synced and before the next one is made. So a valid seal proves that
everything below its end offset was durable. It is removed, durably, before its segment is cut or becomes
active again. A torn seal fails its own checksum and counts for nothing. A crash may also leave a seal beside
the last segment, whose successor never became durable. It then proves the bytes that it covers, and bytes
behind them are judged like any other tail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.disk.files import Disk, File, read_small_file, remove_if_exists
from logstore.errors import CorruptSeal
from logstore.format.crc import crc32c
from logstore.lazily import np

if TYPE_CHECKING:
    from logstore.disk.files import Buffer

SEAL_SUFFIX: Final = ".seal"
BLOCK_BYTES: Final = 1 << 20
VERSION: Final = 1
_CHECKED: Final = 6
_HEAD: Final = Struct(">HIqqqqIIII")
_DIGEST: Final = ">u4"
_DIGEST_BYTES: Final = 4
_CRC: Final = Struct(">I")


class Seal(NamedTuple):
    """A sealed segment. `blocks` is the CRC-32C of each `block_bytes` of its `.log`, four bytes each."""

    base_offset: int
    end_offset: int
    successor: int
    size: int
    aborts_crc: int
    offsets_crc: int
    times_crc: int
    block_bytes: int
    blocks: bytes

    def encode(self) -> bytes:
        """Return the content of the file."""
        data = bytearray(_HEAD.pack(VERSION, 0, *self[:-1]) + self.blocks)
        data[2:_CHECKED] = _checksum(data).to_bytes(4, "big")
        return bytes(data)


def _checksum(data: Buffer) -> int:
    return crc32c(memoryview(data)[_CHECKED:])


def decode_seal(data: Buffer, *, base_offset: int) -> Seal:
    """Decode the seal of the segment at `base_offset`. Raises `CorruptSeal`."""
    if len(data) < _HEAD.size:
        raise CorruptSeal(f"seal {base_offset}: {len(data)} bytes are too few")
    version, crc, *fields = _HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptSeal(f"seal {base_offset}: version {version} is not supported, only {VERSION}")
    if crc != _checksum(data):
        raise CorruptSeal(f"seal {base_offset}: its checksum does not match")
    seal = Seal._make((*fields, bytes(memoryview(data)[_HEAD.size :])))
    if seal.base_offset != base_offset:
        raise CorruptSeal(f"seal {base_offset}: it belongs to segment {seal.base_offset}")
    in_order = base_offset <= seal.end_offset <= seal.successor and seal.size >= 0 < seal.block_bytes
    if not in_order or len(seal.blocks) != _DIGEST_BYTES * -(-seal.size // seal.block_bytes):
        raise CorruptSeal(f"seal {base_offset}: its fields contradict each other")
    return seal


def digest(file: File, size: int, *, first: int = 0) -> Iterator[int]:
    """Yield the CRC-32C of each block in the first `size` bytes of `file`, from block number `first` on.

    Raises `OSError`.
    """
    for at in range(first * BLOCK_BYTES, size, BLOCK_BYTES):
        yield crc32c(file.pread(min(BLOCK_BYTES, size - at), at))


def make_seal(
    file: File,
    size: int,
    *,
    base_offset: int,
    end_offset: int,
    successor: int,
    known: Sequence[int] = (),
    aborts_crc: int = 0,
    offsets_crc: int = 0,
    times_crc: int = 0,
) -> Seal:
    """Make the seal of a `.log` of `size` bytes and its index files, given as digests. Raises `OSError`.

    `known` are the digests of the file's first blocks, as far as they are known.
    """
    blocks = np.array([*known, *digest(file, size, first=len(known))], _DIGEST).tobytes()
    digests = aborts_crc, offsets_crc, times_crc
    return Seal(base_offset, end_offset, successor, size, *digests, BLOCK_BYTES, blocks)


def compared_blocks(file: File, seal: Seal, position: int = 0) -> Iterator[tuple[int, int, bool]]:
    """Yield bytes [start, end) of each block from the one of byte `position` on, and whether it is as sealed.

    Raises `OSError`.
    """
    size = seal.block_bytes
    for number in range(position // size, len(seal.blocks) // _DIGEST_BYTES):
        start, end = number * size, min((number + 1) * size, seal.size)
        data = file.pread(end - start, start)
        (crc,) = _CRC.unpack_from(seal.blocks, number * _CRC.size)
        yield start, end, len(data) == end - start and crc32c(data) == crc


def broken_blocks(file: File, seal: Seal) -> Iterator[tuple[int, int]]:
    """Yield bytes [start, end) of each block of `file` that differs from the seal. Raises `OSError`."""
    return ((start, end) for start, end, is_right in compared_blocks(file, seal) if not is_right)


def seal_path(directory: str, base_offset: int) -> str:
    """Return the path of a seal, such as `…/00000000000000368769.seal`."""
    return f"{directory}/{base_offset:020d}{SEAL_SUFFIX}"


def write_seal(disk: Disk, path: str, seal: Seal) -> None:
    """Write the seal to `path`, over an older one if there is one, and sync it. Raises `OSError`.

    In place, because a torn seal counts for nothing. A new name becomes durable with the next sync of the
    directory.
    """
    with closing(disk.open(path, create=True, write=True)) as file:
        file.truncate(0)
        file.pwrite(seal.encode(), 0)
        file.sync()


def read_seal(disk: Disk, directory: str, base_offset: int) -> Seal | None:
    """Return the segment's seal; None if there is none. Raises `CorruptSeal`, `OSError`."""
    data = read_small_file(disk, seal_path(directory, base_offset))
    return None if data is None else decode_seal(data, base_offset=base_offset)


def remove_seals(disk: Disk, directory: str) -> int:
    """Durably remove every seal in `directory`, because another program may have rewritten the segments.

    Returns their number. Raises `OSError`.
    """
    names = [entry.name for entry in disk.scan(directory) if entry.name.endswith(SEAL_SUFFIX)]
    for name in names:
        remove_if_exists(disk, f"{directory}/{name}")
    if names:
        disk.sync_dir(directory)
    return len(names)
