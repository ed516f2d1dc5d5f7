"""The directory of a queue: `queue.json`, and the names of the topics in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Final

from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import (
    LOCK_FILE,
    TEMPORARY_SUFFIX,
    Disk,
    make_durable_dir,
    publish,
    read_small_file,
)
from logstore.disk.topic_partition import LONGEST_TOPIC_NAME, parse_directory_name
from logstore.errors import LogDirOffline, is_refusal, refusal
from logstore.loggers import logger_of
from logstore.queue.errors import NotAQueue

QUEUE_FILE: Final = "queue.json"
DEAD_LETTERS: Final = "__dead-letters"
EVENTS_PREFIX: Final = "__events."
LONGEST_TOPIC: Final = LONGEST_TOPIC_NAME - len(EVENTS_PREFIX)
_VERSION: Final = 1

_log = logger_of(__name__)


def prepare(disk: Disk, directory: str, *, create: bool) -> None:
    """Create the directory if it is missing. Raises `NotAQueue` if it holds something else.

    Without `create`, also if there is no queue.
    """
    with _opening(directory):
        names = _names(disk, directory)
        check_queue(disk, directory, names)
        if not create and QUEUE_FILE not in names:
            raise NotAQueue(
                f"{directory} has no queue, and create=False makes none: check the path, and whether its "
                "disk is mounted"
            )
        # Names that are there already may not be durable: the process that made them may have been killed.
        make_durable_dir(disk, directory)


def begin(disk: Disk, directory: str) -> list[str]:
    """Create `queue.json` if it is missing; returns the topics that are there.

    For the owner: a former one may have made topics since `prepare`.
    """
    with _opening(directory):
        names = _names(disk, directory)
        if QUEUE_FILE in names:
            disk.sync_dir(directory)
        else:
            publish(disk, directory, QUEUE_FILE, json.dumps({"version": _VERSION}).encode() + b"\n")
        return topics_in(directory, names)


@contextmanager
def _opening(directory: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_refusal(error):
            raise refusal(error, directory, "the queue was not opened", "open it again") from error
        raise LogDirOffline(
            f"{directory} cannot be opened as a queue: {error}. "
            "The path must be a directory that this process can write"
        ) from error


def check_queue(disk: Disk, directory: str, names: Set[str]) -> None:
    """Raise `NotAQueue` if a directory with these `names` holds something else than a queue."""
    if QUEUE_FILE in names:
        data = read_small_file(disk, f"{directory}/{QUEUE_FILE}") or b""
        try:
            version = json.loads(data)["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint(
                f'{directory}/{QUEUE_FILE} is damaged; it must be {{"version": {_VERSION}}}'
            ) from error
        if version != _VERSION:
            raise NotAQueue(f"{directory} has version {version}; this program reads version {_VERSION}")
    elif any(name.endswith(".log") for name in names):
        raise NotAQueue(
            f"{directory} is a log, not a queue; open it with Log.open, or choose another directory"
        )
    # The dead letters are first: their lock is that of the queue.
    elif rest := sorted(names - {QUEUE_FILE + TEMPORARY_SUFFIX, f"{DEAD_LETTERS}-0"}):
        raise NotAQueue(f"{directory} is not a queue: it holds {rest[0]}; choose another directory")


def _names(disk: Disk, directory: str) -> set[str]:
    try:
        return {entry.name for entry in disk.scan(directory)} - {LOCK_FILE}
    except FileNotFoundError:
        return set()
    except NotADirectoryError as error:
        raise NotAQueue(f"{directory} is a file; a queue is a directory") from error


def topics_in(directory: str, names: Set[str]) -> list[str]:
    """Return the topics whose logs are among these `names` in a queue's directory."""
    found = []
    for name in sorted(names):
        if not name.startswith("__") and name.endswith("-0"):
            topic = parse_directory_name(name).topic
            if len(topic) <= LONGEST_TOPIC:
                found.append(topic)
            else:
                # Earlier versions made it before they refused the topic, so there is no message in it.
                _log.warning("%s/%s is ignored: its name is too long for a topic; remove it", directory, name)
    return found
