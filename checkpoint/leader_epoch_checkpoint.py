"""Leader-epoch checkpoint of one partition: where each leader epoch began.

    leader-epoch-checkpoint

    0                          version            format and crash behaviour: `entry_file.py`
    3                          entries
    0 0                        leader epoch, first offset it wrote
    2 5
    5 1006

Written when an epoch begins, before its first record is acknowledged, and when a truncation takes
epochs away. The log is the truth: a file that is missing, or older than the log, is mended from the
batches when the log is loaded. This module does not judge the order of the entries.
"""

from __future__ import annotations

from collections.abc import Iterable

from logstore.checkpoint.entry_file import INT32_MAX, INT64_MAX, format_entries, parse_entries, parse_number
from logstore.disk.files import Disk, publish, read_small_file

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


def parse_leader_epoch_checkpoint(
    data: bytes, *, path: str = LEADER_EPOCH_CHECKPOINT
) -> list[tuple[int, int]]:
    """Pairs of leader epoch and start offset, in the file's order. Raises `CorruptCheckpoint`."""
    return [
        (
            parse_number(epoch, INT32_MAX, where=f"{path}: leader epoch"),
            parse_number(start_offset, INT64_MAX, where=f"{path}: start offset"),
        )
        for epoch, start_offset in parse_entries(data, fields=2, path=path)
    ]


def format_leader_epoch_checkpoint(entries: Iterable[tuple[int, int]]) -> bytes:
    """The file's bytes, entries in the order given."""
    return format_entries(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def read_leader_epoch_checkpoint(disk: Disk, directory: str) -> list[tuple[int, int]]:
    """Read the partition's file; no file, no entries. Raises `CorruptCheckpoint` or `OSError`."""
    path = f"{directory}/{LEADER_EPOCH_CHECKPOINT}"
    return parse_leader_epoch_checkpoint(read_small_file(disk, path) or b"", path=path)


def write_leader_epoch_checkpoint(disk: Disk, directory: str, entries: Iterable[tuple[int, int]]) -> None:
    """Replace the partition's file, durably; see `publish`."""
    publish(disk, directory, LEADER_EPOCH_CHECKPOINT, format_leader_epoch_checkpoint(entries))
