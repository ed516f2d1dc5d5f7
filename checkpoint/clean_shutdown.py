"""The clean-shutdown marker of a log dir.

    .kafka_cleanshutdown        {"version":0,"brokerEpoch":-1}     one line of JSON

Only its existence counts: even an empty or unreadable marker means a clean shutdown. It is written last,
after all logs were flushed and the checkpoints were written, and removed before any other write. It needs
no temporary file, because a partial marker counts too.

A crash during the write leaves the dir clean (everything else is durable already) or unclean, which costs a
recovery. After `remove_clean_shutdown` returned, a crash never brings the marker back.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from logstore.checkpoint.entry_files import INT64_MAX
from logstore.disk.files import Disk, read_small_file, remove_if_exists

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"

UNKNOWN_BROKER_EPOCH = -1

WRITER = "writer"
DIGESTS = "crc32"
OURS: Mapping[str, object] = {WRITER: "logstore"}
"""A part of the `extra` of our markers. A marker without it was written by a Kafka broker, which does not
maintain the files that only this library uses."""


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """The content of a marker. `extra` holds the fields that Kafka does not write and ignores."""

    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether this library wrote the marker."""
        return self.extra.get(WRITER) == OURS[WRITER]


def digests_of(disk: Disk, directory: str, paths: Iterable[str]) -> dict[str, object]:
    """Return the checksums of files for the `extra` of a marker, without those that do not exist.

    Kafka's small files have no checksum of their own. Paths are relative to `directory`. Raises `OSError`.
    """
    found = {path: read_small_file(disk, f"{directory}/{path}") for path in paths}
    return {DIGESTS: {path: zlib.crc32(data) for path, data in found.items() if data is not None}}


def changed_files(disk: Disk, directory: str, marker: CleanShutdown) -> list[str]:
    """Return the files that differ from their checksums in `marker`. Raises `OSError`."""
    digests = marker.extra.get(DIGESTS)
    if not isinstance(digests, dict):
        return []
    changed = []
    for path, digest in digests.items():
        data = read_small_file(disk, f"{directory}/{path}") if ".." not in path else None
        if data is None or zlib.crc32(data) != digest:
            changed.append(path)
    return changed


def parse_clean_shutdown(data: bytes) -> CleanShutdown:
    """Parse a marker. Unreadable content and fields are ignored."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return CleanShutdown()
    if not isinstance(content, dict):
        return CleanShutdown()
    epoch = content.pop("brokerEpoch", UNKNOWN_BROKER_EPOCH)
    content.pop("version", None)
    if type(epoch) is not int or not 0 <= epoch <= INT64_MAX:  # bool is an int too
        epoch = UNKNOWN_BROKER_EPOCH
    return CleanShutdown(epoch, content)


def format_clean_shutdown(marker: CleanShutdown) -> bytes:
    """Return the marker's bytes; without `extra` they equal Kafka's."""
    content = {"version": 0, "brokerEpoch": marker.broker_epoch, **marker.extra}
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def read_clean_shutdown(disk: Disk, directory: str) -> CleanShutdown | None:
    """Return the log dir's marker; None after an unclean shutdown. Raises `OSError`."""
    data = read_small_file(disk, f"{directory}/{CLEAN_SHUTDOWN_FILE}")
    return None if data is None else parse_clean_shutdown(data)


def write_clean_shutdown(disk: Disk, directory: str, marker: CleanShutdown | None = None) -> None:
    """Write the marker durably. Call this last, after all other writes."""
    with closing(disk.open(f"{directory}/{CLEAN_SHUTDOWN_FILE}", create=True, write=True)) as file:
        file.truncate(0)
        file.pwrite(format_clean_shutdown(marker or CleanShutdown()), 0)
        file.sync()
    disk.sync_dir(directory)


def remove_clean_shutdown(disk: Disk, directory: str) -> bool:
    """Remove the marker durably. Call this before any other write. Returns whether it existed."""
    existed = remove_if_exists(disk, f"{directory}/{CLEAN_SHUTDOWN_FILE}")
    # Even if it did not exist: an earlier start may have removed it and died before this line. A power cut
    # would then bring it back after our writes.
    disk.sync_dir(directory)
    return existed
