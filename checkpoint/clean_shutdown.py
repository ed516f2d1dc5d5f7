"""The clean-shutdown marker of a log dir.

    .kafka_cleanshutdown        {"version":0,"brokerEpoch":-1}     one line of JSON

Only its existence counts: an empty or unreadable marker still says that the dir was closed in order.
It is written last of all, after every log was flushed and the checkpoints were written, and removed
first of all, before any other write. Not through a temp file: half a marker means as much as a whole.

A crash while it is written leaves the dir clean (all else was durable before) or unclean, which
costs a recovery. A crash after `remove_clean_shutdown` returned always finds it gone.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from logstore.checkpoint.entry_files import INT64_MAX
from logstore.disk.files import Disk, read_small_file, remove_if_exists

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"

UNKNOWN_BROKER_EPOCH = -1

WRITER = "writer"
DIGESTS = "crc32"
OURS: Mapping[str, object] = {WRITER: "logstore"}
"""Among the `extra` of every marker that we write. One without was left by a broker, who knows nothing of
the files that it has no use for."""


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """What a marker says. `extra` holds the fields that Kafka does not write and does not mind."""

    broker_epoch: int = UNKNOWN_BROKER_EPOCH
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether the last owner was one of us."""
        return self.extra.get(WRITER) == OURS[WRITER]


def digests_of(disk: Disk, directory: str, paths: Iterable[str]) -> dict[str, object]:
    """A marker's `extra` that tells what these files hold; those that do not exist are left out.

    Kafka's small files carry no checksum: here at least those of a log that was closed have one. Paths are
    relative to `directory`. Raises `OSError`.
    """
    found = {path: read_small_file(disk, f"{directory}/{path}") for path in paths}
    return {DIGESTS: {path: zlib.crc32(data) for path, data in found.items() if data is not None}}


def changed_files(disk: Disk, directory: str, marker: CleanShutdown) -> list[str]:
    """The files that are not what `marker` says they were. Raises `OSError`."""
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
    """Read a marker. Never fails: what cannot be read is as if it were not written."""
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
    """The marker's bytes; without `extra`, the ones that Kafka writes."""
    content = {"version": 0, "brokerEpoch": marker.broker_epoch, **marker.extra}
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def read_clean_shutdown(disk: Disk, directory: str) -> CleanShutdown | None:
    """The log dir's marker; None if it has none: its last stop was unclean. Raises `OSError`."""
    data = read_small_file(disk, f"{directory}/{CLEAN_SHUTDOWN_FILE}")
    return None if data is None else parse_clean_shutdown(data)


def write_clean_shutdown(disk: Disk, directory: str, marker: CleanShutdown | None = None) -> None:
    """Mark the log dir as closed in order, durably: the last thing that is done to it."""
    file = disk.open(f"{directory}/{CLEAN_SHUTDOWN_FILE}", create=True, write=True)
    try:
        file.truncate(0)
        file.pwrite(format_clean_shutdown(marker or CleanShutdown()), 0)
        file.sync()
    finally:
        file.close()
    disk.sync_dir(directory)


def remove_clean_shutdown(disk: Disk, directory: str) -> bool:
    """Durably take the marker away, before anything else is written; True if there was one."""
    existed = remove_if_exists(disk, f"{directory}/{CLEAN_SHUTDOWN_FILE}")
    # Also when there was none: an earlier start may have removed it and died before this line, and a
    # power cut would then bring it back over what we are about to write.
    disk.sync_dir(directory)
    return existed
