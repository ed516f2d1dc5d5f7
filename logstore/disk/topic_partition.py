"""The name of a partition and of its directory.

    <topic>-<partition>                         a partition; the last hyphen separates
    <topic>-<partition>.<32 hex digits>-delete  waiting for deletion; -stray, -future likewise

A log dir with another directory name is not opened: it is unknown to which partition the data belongs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from logstore.disk.errors import InvalidTopic

if TYPE_CHECKING:
    from logstore.disk.files import Disk

LONGEST_TOPIC_NAME: Final = 249

_TOPIC_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{LONGEST_TOPIC_NAME}}}", re.ASCII)
_PARTITION_DIRECTORY = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]{1,10})", re.ASCII)
_SET_ASIDE_DIRECTORY = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]{1,10})\.[0-9a-f]{32}-(?P<fate>delete|stray|future)",
    re.ASCII,
)
_LONGEST_NAME = 255


class TopicPartition(NamedTuple):
    """A partition of a topic; sorts by topic, then partition."""

    topic: str
    partition: int

    @property
    def directory_name(self) -> str:
        """The name of this partition's directory inside a log dir."""
        return f"{self.topic}-{self.partition}"

    def __str__(self) -> str:
        return self.directory_name


def check_topic_name(topic: str) -> None:
    """Raise `InvalidTopic` unless `topic` is a name that Kafka accepts."""
    if topic in (".", "..") or not _TOPIC_NAME.fullmatch(topic):
        raise InvalidTopic(
            f"topic name {topic!r} is not 1 to {LONGEST_TOPIC_NAME} characters of [a-zA-Z0-9._-] "
            "other than '.' and '..'"
        )


def parse_directory_name(name: str) -> TopicPartition:
    """Return the partition of the directory `name`. Raises `InvalidTopic` if it is no partition's.

    Names that were set aside (`-delete`, `-stray`, `-future`) are refused too: call `set_aside_fate` first.
    """
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if match is None:
        topic, _, number = name.rpartition("-")
        if topic and number.isascii() and number.isdecimal():
            check_topic_name(topic)  # says which characters a name may have
        raise InvalidTopic(f"directory {name!r} is not named <topic>-<partition>, such as orders-0")
    check_topic_name(match["topic"])
    partition = int(match["partition"])
    if str(partition) != match["partition"]:
        # A second directory of the same partition, which no broker would open.
        raise InvalidTopic(f"directory {name!r}: write the partition without leading zeros")
    if partition >= 2**31:
        raise InvalidTopic(f"directory {name!r}: the largest partition number is {2**31 - 1}")
    return TopicPartition(match["topic"], partition)


def set_aside_fate(name: str) -> str | None:
    """Return `delete`, `stray` or `future` for a directory that was set aside; None for any other."""
    match = _SET_ASIDE_DIRECTORY.fullmatch(name)
    return match["fate"] if match else None


def future_name(topic_partition: TopicPartition, unique: str) -> str:
    """Return the name of the copy of a partition that is to replace it; `unique` is 32 hex digits.

    Raises `InvalidTopic` if no directory can have that name.
    """
    name = f"{topic_partition}.{unique}-future"
    if len(name) > _LONGEST_NAME:
        raise InvalidTopic(
            f"{topic_partition} cannot move to another log dir: the name of its copy would have {len(name)} "
            f"characters, and a file system allows {_LONGEST_NAME}"
        )
    return name


def partition_set_aside(name: str) -> TopicPartition | None:
    """Return the partition whose directory was renamed to `name`, or copied to it; None for any other."""
    match = _SET_ASIDE_DIRECTORY.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None


def partition_of_future(name: str) -> TopicPartition | None:
    """Return the partition of which the directory `name` is a copy (`future_name`); None for any other."""
    return partition_set_aside(name) if set_aside_fate(name) == "future" else None


def partitions_among(names: Iterable[str]) -> Iterator[tuple[TopicPartition, str]]:
    """Yield the partitions among the names of directories, each with its name.

    Directories that were set aside, and those with other names, are skipped.
    """
    for name in names:
        try:
            yield parse_directory_name(name), name
        except InvalidTopic:
            continue


def partition_directories(disk: Disk, directory: str) -> Iterator[tuple[TopicPartition, str]]:
    """Yield the partitions in `directory`, a log dir or itself a partition, with their absolute paths.

    Directories that were set aside, and those with other names, are skipped. Raises `OSError`.
    """
    directory = os.path.abspath(directory)
    entries = disk.scan(directory)
    names = [entry.name for entry in entries if entry.is_directory]
    if any(entry.name.endswith(".log") and not entry.is_directory for entry in entries):
        directory, name = os.path.split(directory)
        names = [name]
    for partition, name in partitions_among(names):
        yield partition, os.path.join(directory, name)
