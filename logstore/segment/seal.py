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

A seal needs every byte of the `.log`. `Sealing` reads most of them in advance, after a flush: otherwise a
roll would read the whole segment while its log takes no appends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.disk.copying import make_own
from logstore.disk.files import Disk, File, read_small_file, remove_if_exists
from logstore.disk.marks import mark
from logstore.errors import CorruptSeal
from logstore.format.crc import crc32c
from logstore.lazily import np
from logstore.segment.scan import Fault, scan

if TYPE_CHECKING:
    from logstore.disk.files import Buffer
    from logstore.segment.segment import Segment

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
    if not any(data):  # created but not written, or not durably
        raise CorruptSeal(f"seal {base_offset}: a crash left it without content", is_unfinished=True)
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


# --- the seal of one segment --------------------------------------------------------------------------


class Sealing:
    """Prepares a segment's seal while it grows, makes it when the log moves on, removes it before a change.

    `segment.seal` holds it. Methods raise `OSError`.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._cuts = 0
        self._blocks: list[int] = []
        """The digests known so far, of whole blocks."""
        self._checked = 0, segment.base_offset, -1
        """Where the check of old batches goes on: byte, next offset, leader epoch."""
        self._lock = threading.RLock()
        self.is_proven = False
        """Whether this process made the seal, or has compared the whole segment with it."""
        self.has_bad_bytes = False
        """Whether a cut has left bad bytes at its end: then it gets no seal."""

    # --- in advance -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Digest the synced blocks, and check the batches in them that an earlier process wrote.

        Any thread may do it, also while the segment is appended to or cut.
        """
        segment = self._segment
        with segment.lock:
            size, cuts = segment.synced_bytes, self._cuts
        first = len(self._blocks)
        whole = size - size % BLOCK_BYTES
        for number, crc in enumerate(digest(segment.log_file, whole, first=first), first):
            with self._lock:
                if self._cuts != cuts or len(self._blocks) != number:
                    return  # the bytes changed meanwhile, or another thread has done it
                self._blocks.append(crc)
        # After their digest: what changes behind this check does not match the seal.
        self._check_old(min(segment.appended_from, len(self._blocks) * BLOCK_BYTES))

    def _check_old(self, end: int) -> Fault | None:
        fault = None
        segment, (position, next_offset, epoch) = self._segment, self._checked
        for found in scan(
            segment.log_file,
            position,
            end,
            base_offset=segment.base_offset,
            next_offset=next_offset,
            leader_epoch=epoch,
        ):
            fault = found.fault
            if len(found.headers):
                epoch = max(epoch, int(found.headers["leader_epoch"].max()))
                self._checked = found.end, int(found.last_offsets[-1]) + 1, epoch
        return fault

    def cut(self, position: int) -> None:
        """Forget the bytes from `position` on: they are about to be cut."""
        with self._lock:
            self._cuts += 1
            del self._blocks[position // BLOCK_BYTES :]

    # --- when the segment has its end -------------------------------------------------------------

    def is_sound_where_found(self) -> bool:
        """Return whether the batches are sound that were there before this process appended any, or cut it.

        A seal of bad bytes would vouch for them.
        """
        is_sound = not self.has_bad_bytes and self._check_old(self._segment.appended_from) is None
        if not is_sound:
            mark("segment: one with bad bytes gets no seal")
        return is_sound

    def make(self, end_offset: int, successor: int) -> None:
        """Write the seal: the segment, which is synced, ends at `end_offset`; `successor` is the next base.

        Synced but for its name, which is durable with the directory. Also raises `CorruptIndex`.
        """
        segment = self._segment
        with self._lock:
            known = self._blocks[: segment.size // BLOCK_BYTES]
        seal = make_seal(
            segment.log_file,
            segment.size,
            base_offset=segment.base_offset,
            end_offset=end_offset,
            successor=successor,
            known=known,
            # As they were written, not as the disk has them now: they may have rotted since.
            aborts_crc=crc32c(segment.aborts.index.encode()),
            offsets_crc=segment.indexes.offsets.crc,
            times_crc=segment.indexes.times.crc,
        )
        self._write(seal)
        self.is_proven = True

    def follow_with(self, successor: int) -> None:
        """Name another successor in the seal, if there is a seal."""
        segment = self._segment
        if segment.seal is not None and segment.seal.successor != successor:
            self.renew(segment.seal._replace(successor=successor))

    def renew(self, seal: Seal) -> None:
        """Write `seal` in the place of the one that the segment has."""
        make_own(self._segment.disk, self._segment.path(SEAL_SUFFIX))
        self._write(seal)

    def _write(self, seal: Seal) -> None:
        # Noted first: a half-written seal must also be removed before a truncation.
        self._segment.seal = seal
        write_seal(self._segment.disk, self._segment.path(SEAL_SUFFIX), seal)

    def renew_lock(self) -> None:
        """Make a lock that no thread holds, in a forked child."""
        self._lock = threading.RLock()

    def remove(self) -> None:
        """Remove the seal, durably: the segment is going to change."""
        segment = self._segment
        if segment.seal is not None:
            remove_if_exists(segment.disk, segment.path(SEAL_SUFFIX))
            segment.disk.sync_dir(segment.directory)
            segment.seal = None
