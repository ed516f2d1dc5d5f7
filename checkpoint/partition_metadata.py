"""partition.metadata: which topic, by id, a partition directory belongs to.

    version: 0
    topic_id: AAECAwQFBgcICQoLDA0ODw      22 characters of URL-safe base64; no newline at the end

A topic deleted and made again under the same name has another id, and its directory must not take the
old one's records. Replaced whole (`publish`) before the partition's first record: after a crash there is
no file, and no record either, or this file.
"""

from __future__ import annotations

import re

from logstore.checkpoint.entry_file import INT32_MAX, parse_number
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import Disk, publish, read_small_file
from logstore.disk.ids import ID_BYTES, id_from_text

PARTITION_METADATA = "partition.metadata"

_LINES = re.compile(
    r"version:[ \t]+(?P<version>[^ \t\r\n]+)\r?\n"
    r"topic_id:[ \t]+(?P<topic_id>[^ \t\r\n]+)"
    r"(?P<rest>(?:\r?\n.*)?)",
    re.DOTALL,
)


def parse_partition_metadata(data: bytes, *, path: str = PARTITION_METADATA) -> str:
    """The topic id as 22 characters. Raises `CorruptCheckpoint`.

    A file of a later version may have more lines; they are ignored.
    """
    try:
        match = _LINES.fullmatch(data.decode())
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"{path}: not UTF-8 at byte {error.start}") from error
    if match is None:
        raise CorruptCheckpoint(f"{path}: not the two lines `version: N` and `topic_id: ID`")
    version = parse_number(match["version"], INT32_MAX, where=f"{path}: version")
    if version == 0 and match["rest"].strip("\r\n"):
        raise CorruptCheckpoint(f"{path}: more than two lines in version 0")
    try:
        identity = id_from_text(match["topic_id"])
    except ValueError as error:
        raise CorruptCheckpoint(f"{path}: {error}") from error
    if identity == bytes(ID_BYTES):
        raise CorruptCheckpoint(f"{path}: the topic id is all zeros, which stands for no topic")
    return match["topic_id"]


def format_partition_metadata(topic_id: str) -> bytes:
    """The file's bytes; `ValueError` unless `topic_id` is a topic's id in 22 characters."""
    if id_from_text(topic_id) == bytes(ID_BYTES):
        raise ValueError("the all-zero id stands for no topic")
    return f"version: 0\ntopic_id: {topic_id}".encode()


def read_partition_metadata(disk: Disk, directory: str) -> str | None:
    """The partition's topic id; None if it has no file. Raises `CorruptCheckpoint` or `OSError`."""
    path = f"{directory}/{PARTITION_METADATA}"
    data = read_small_file(disk, path)
    return None if data is None else parse_partition_metadata(data, path=path)


def write_partition_metadata(disk: Disk, directory: str, topic_id: str) -> None:
    """Replace the partition's file, durably; see `publish`."""
    publish(disk, directory, PARTITION_METADATA, format_partition_metadata(topic_id))
