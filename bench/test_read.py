"""Read and recover, beside raw reads and raw checksums of the same file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.bars import ratio_bar
from bench.material import fill, fresh_log, read_raw, ready_batch
from logstore.disk.files import OsDisk
from logstore.format.crc import crc32c
from logstore.segment.scan import scan
from logstore.segment.segment_indexes import IndexEntries

MIB = 1 << 20
BATCHES = 8192


@pytest.fixture
def filled(scratch: Path) -> Path:
    """The `.log` of 128 MiB of 16 KiB batches, in the page cache."""
    log = fresh_log(scratch)
    fill(log, ready_batch(16384, 16), BATCHES)
    log.close()
    return scratch / "bench-0" / f"{0:020d}.log"


def test_recovery_scan(beside: Callable[..., object], filled: Path) -> None:
    """The scan of recovery with index entries, beside read + CRC-32C of the whole file."""

    def ours() -> None:
        file = OsDisk().open(str(filled))
        entries = IndexEntries(0, 4096)
        for found in scan(file, 0, file.size(), base_offset=0):
            entries.add(found)
            assert found.fault is None
        entries.finish()
        file.close()

    beside(
        raw=lambda: read_raw(filled, crc32c),
        ours=ours,
        name="recovery scan of 16 KiB batches",
        rival="read + CRC-32C, 1 MiB a call",
        units=filled.stat().st_size,
        unit="B/s",
        bar=ratio_bar(0.7),
        rounds=15,
    )


@pytest.mark.parametrize("what", ["bytes", "batches"])
def test_sequential_read(beside: Callable[..., object], filled: Path, what: str) -> None:
    """A consumer from start to end: raw bytes as sent to a socket, or a view of every batch."""
    log = fresh_log(filled.parent.parent)
    fill(log, ready_batch(16384, 16), BATCHES)

    def read_bytes() -> None:
        offset = 0
        while (fetched := log.read_bytes(offset, MIB)).records:
            offset = fetched.next_offset
        assert offset == BATCHES * 16

    def read_batches() -> None:
        count = 0
        for _batch in log.read_batches():
            count += 1
        assert count == BATCHES

    unit = MIB if what == "bytes" else 16384
    beside(
        raw=lambda: read_raw(filled, len, unit),
        ours=read_bytes if what == "bytes" else read_batches,
        name=f"sequential read of 16 KiB batches as {what}",
        rival="read, 1 MiB a call" if what == "bytes" else "read, one batch a call",
        units=BATCHES * 16384,
        unit="B/s",
        bar=ratio_bar(0.8),
        rounds=15,
    )
    log.close()
