"""Calls of a log in a process that may open no more files, and the same calls afterwards."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logstore import Log, LogConfig, OutOfResources
from tests.descriptors import open_below

CONFIG = LogConfig(segment_bytes=2000, cleanup_policy="compact,delete")


@contextmanager
def no_more_files() -> Iterator[None]:
    with open("/dev/null") as file:
        following = file.fileno()  # the lowest free number
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (following, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


LOG: dict[str, Callable[[Log, Path], object]] = {
    "append": lambda log, _: log.append(b"v" * 1500, key=b"k"),
    "close": lambda log, _: log.close(),
    "compact": lambda log, _: log.compact(),
    "cursor": lambda log, _: list(log.cursor("c").read()),
    "cursor.commit": lambda log, _: log.cursor("c").commit(3, sync=True),
    "delete_records": lambda log, _: log.delete_records(9),
    "losses": lambda log, _: log.losses(),
    "maintain": lambda log, _: log.maintain(),
    "offset_for_timestamp": lambda log, _: log.offset_for_timestamp(1),
    "read": lambda log, _: list(log.read()),
    "scrub": lambda log, _: log.scrub(),
    "snapshot": lambda log, path: log.snapshot(path / "snapshot" / "orders-0"),
    "truncate_to": lambda log, _: log.truncate_to(5),
}


def filled(directory: Path) -> Log:
    log = Log.open(directory / "orders-0", CONFIG)
    for number in range(12):
        log.append(b"v" * 400, key=b"%d" % (number % 7))
    log.truncate_to(11)
    log.cursor("c").commit(1)
    return log


def refused(action: Callable[[], object]) -> str:
    with no_more_files():
        try:
            action()
        except OutOfResources as error:
            return str(error)
    return ""


@pytest.mark.parametrize("call", LOG)
def test_a_log(call: str, tmp_path: Path) -> None:
    """`losses`, `scrub` and `snapshot` raised an `OSError` that did not say what to do."""
    with filled(tmp_path / "warm") as log:
        LOG[call](log, tmp_path / "warm")  # what it imports is there
    with filled(tmp_path / "tried") as log:
        if said := refused(lambda: LOG[call](log, tmp_path / "tried")):
            assert "ulimit -n" in said
            LOG[call](log, tmp_path / "tried")


@pytest.mark.skipif(sys.platform != "linux", reason="it lists its descriptors")
def test_a_log_that_rolls_holds_no_file_of_the_segments_behind_it(tmp_path: Path) -> None:
    """A program that only appends would run out of descriptors after a few hundred segments."""
    with Log.open(tmp_path / "orders-0", CONFIG) as log:
        log.append(b"v" * 1500, key=b"k")
        before = open_below(tmp_path)
        for _ in range(12):
            log.append(b"v" * 1500, key=b"k")
        assert len(log.partition.segments) == 13
        assert open_below(tmp_path) <= before
