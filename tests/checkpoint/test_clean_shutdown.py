"""The marker's existence is the message: it must be there for certain, and gone for certain."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.checkpoint.clean_shutdown import (
    CleanShutdown,
    format_clean_shutdown,
    parse_clean_shutdown,
    read_clean_shutdown,
    remove_clean_shutdown,
    write_clean_shutdown,
)
from logstore.testing.disks import MemoryDisk, Profile, RecordingDisk

MARKER = "/data/.kafka_cleanshutdown"


def test_the_bytes_are_kafkas() -> None:
    assert format_clean_shutdown(CleanShutdown()) == b'{"version":0,"brokerEpoch":-1}'
    assert format_clean_shutdown(CleanShutdown(7)) == b'{"version":0,"brokerEpoch":7}'


def test_additional_fields_round_trip() -> None:
    marker = CleanShutdown(7, {"logs": {"t-0": [1, 2]}})
    assert format_clean_shutdown(marker) == b'{"version":0,"brokerEpoch":7,"logs":{"t-0":[1,2]}}'
    assert parse_clean_shutdown(format_clean_shutdown(marker)) == marker


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 30,
        b"{",
        b"[]",
        b"null",
        b'"brokerEpoch"',
        b"\xff\xfe",
        b'{"version":0}',
        b'{"version":0,"brokerEpoch":"7"}',
        b'{"version":0,"brokerEpoch":7.0}',
        b'{"version":0,"brokerEpoch":true}',
        b'{"version":0,"brokerEpoch":-5}',
        b'{"version":0,"brokerEpoch":9223372036854775808}',
        b'{"brokerEpoch":' + b"9" * 10_000 + b"}",
        b"[" * 100_000,
    ],
)
def test_an_unreadable_marker_is_still_a_marker(data: bytes) -> None:
    """Old brokers wrote it empty; a crash may leave it so. It says "clean" all the same."""
    assert parse_clean_shutdown(data) == CleanShutdown()
    assert read_clean_shutdown(MemoryDisk({MARKER: data}), "/data") == CleanShutdown()


@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=40))
def test_no_input_raises(data: bytes) -> None:
    parse_clean_shutdown(data)


def test_known_fields_of_a_later_version_are_read() -> None:
    assert parse_clean_shutdown(b'{"version":9,"brokerEpoch":5,"x":1}') == CleanShutdown(5, {"x": 1})


def test_writing_and_removing_are_durable() -> None:
    disk = MemoryDisk(directories=["/data"])
    assert read_clean_shutdown(disk, "/data") is None
    write_clean_shutdown(disk, "/data", CleanShutdown(3))
    assert read_clean_shutdown(disk.durable_image(), "/data") == CleanShutdown(3)
    assert remove_clean_shutdown(disk, "/data") is True
    for seed in range(50):
        assert read_clean_shutdown(disk.image(Random(seed), Profile.POSIX), "/data") is None
    assert remove_clean_shutdown(disk, "/data") is False


def test_an_old_longer_marker_is_replaced() -> None:
    disk = MemoryDisk({MARKER: b'{"version":0,"brokerEpoch":5,"with":"much more in it than we write"}'})
    write_clean_shutdown(disk, "/data")
    assert disk.durable_image().files() == {MARKER: b'{"version":0,"brokerEpoch":-1}'}


def test_a_removal_that_was_interrupted_before_its_sync_is_finished_by_the_next() -> None:
    """First start: removes, dies before the sync. Second start: finds no marker, and writes. Then the power
    goes: unless the second start synced too, the marker is back, over a dir that is anything but clean."""
    disk = MemoryDisk({MARKER: b""})
    disk.remove(MARKER)
    assert any(read_clean_shutdown(disk.image(Random(seed)), "/data") for seed in range(50))
    assert remove_clean_shutdown(disk, "/data") is False
    assert not any(read_clean_shutdown(disk.image(Random(seed)), "/data") for seed in range(50))


def test_order_of_the_calls() -> None:
    disk = RecordingDisk(MemoryDisk(directories=["/data"]))
    write_clean_shutdown(disk, "/data")
    remove_clean_shutdown(disk, "/data")
    assert [operation.name for operation in disk.operations] == [
        "create", "truncate", "pwrite", "sync", "sync_dir", "remove", "sync_dir",
    ]  # fmt: skip
