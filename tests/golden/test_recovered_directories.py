"""Directories made from the golden streams: what loading leaves in every file, byte for byte as Kafka's does.

Also the golden segment with its indexes: our own appends write the same two files.
"""

from __future__ import annotations

from typing import Any

import pytest

from logstore.checkpoint.entry_files import LEADER_EPOCH_CHECKPOINT
from logstore.config import LogConfig
from logstore.format.record import Record
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import Log
from logstore.log.losses import LOST_DIRECTORY
from logstore.log.recovery import load
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.segment.segment import file_name
from logstore.testing.disks import MemoryDisk
from tests.golden.reading import FILES, STREAMS, content

DIRECTORY = "/data/orders-0"
MINI = "mini-00000000000000001000"
MINI_BASE = 1000


def files_after(name: str, data: bytes, interval_bytes: int, base_offset: int = 0) -> dict[str, bytes]:
    """The directory's files after an unclean load of one segment that holds `data`."""
    disk = MemoryDisk({f"{DIRECTORY}/{file_name(base_offset, '.log')}": data})
    loaded = load(
        disk,
        DIRECTORY,
        LogConfig(index_interval_bytes=interval_bytes),
        is_clean=False,
        recovery_point=0,
        log_start_offset=0,
        now_ms=0,
    )
    for segment in loaded.segments.values():
        segment.close()
    # Beside what Kafka has: `lost/` keeps what was cut.
    return {
        path.rsplit("/", 1)[1]: content
        for path, content in disk.files().items()
        if f"/{LOST_DIRECTORY}/" not in path
    }


@pytest.mark.parametrize("entry", STREAMS, ids=[entry["name"] for entry in STREAMS])
def test_every_file_after_recovery(entry: dict[str, Any]) -> None:
    """The log is cut where Kafka cuts it; indexes, transactions, epochs and producers are Kafka's."""
    after = entry["after_recovery"]
    data = content(entry["file"])
    found = files_after(entry["name"], data, after["index_interval_bytes"])
    expected = {
        file_name(0, ".log"): data[: after["size"]],
        file_name(0, ".index"): bytes.fromhex(after["index_hex"]),
        file_name(0, ".timeindex"): bytes.fromhex(after["timeindex_hex"]),
        LEADER_EPOCH_CHECKPOINT: after["leader_epoch_checkpoint"].encode(),
        after["snapshot_name"]: bytes.fromhex(after["snapshot_hex"]),
    }
    if after["txnindex_hex"]:
        expected[file_name(0, ".txnindex")] = bytes.fromhex(after["txnindex_hex"])
    assert found == expected


def test_the_mini_segment_is_recovered_with_its_own_indexes() -> None:
    interval_bytes = FILES[f"{MINI}.log.bin"]["index_interval_bytes"]
    found = files_after(MINI, content(f"{MINI}.log.bin"), interval_bytes, MINI_BASE)
    for suffix in (".log", ".index", ".timeindex"):
        assert found[file_name(MINI_BASE, suffix)] == content(f"{MINI}{suffix}.bin")


def mini_batches() -> list[bytes]:
    data = content(f"{MINI}.log.bin")
    listed = FILES[f"{MINI}.log.bin"]["batches"]
    return [data[each["position"] : each["position"] + each["size"]] for each in listed]


@pytest.mark.parametrize("at_once", [1, 2, 6])
@pytest.mark.parametrize("end", ["close", "roll"])
def test_the_mini_segment_as_a_follower_writes_it(at_once: int, end: str) -> None:
    """One batch an append or many: entries are made per batch, so the indexes are the same."""
    disk = MemoryDisk(directories=["/data"])
    log = Log.open(DIRECTORY, LogConfig(index_interval_bytes=150), disk=disk, clock=lambda: 0)
    truncate_fully_and_start_at(log.partition, MINI_BASE)
    batches = mini_batches()
    for first in range(0, len(batches), at_once):
        append_as_follower(log.partition, b"".join(batches[first : first + at_once]), leader_epoch=5)
    if end == "roll":
        log.partition.roll()
    else:
        log.close()
    files = disk.files()
    for suffix in (".log", ".index", ".timeindex"):
        assert files[f"{DIRECTORY}/{file_name(MINI_BASE, suffix)}"] == content(f"{MINI}{suffix}.bin")


def test_the_mini_segment_is_found_by_every_offset_and_time() -> None:
    """Through its own indexes, and through none."""
    listed = FILES[f"{MINI}.log.bin"]["batches"]
    for suffixes in ((".log",), (".log", ".index", ".timeindex")):
        files = {
            f"{DIRECTORY}/{file_name(MINI_BASE, each)}": content(f"{MINI}{each}.bin") for each in suffixes
        }
        log = Log.open(
            DIRECTORY, LogConfig(index_interval_bytes=150), disk=MemoryDisk(files), clock=lambda: 0
        )
        records: list[Record] = list(log.read())
        assert [record.offset for record in records] == list(range(1000, 1011))
        for batch in listed:
            for offset in range(batch["base_offset"], batch["last_offset"] + 1):
                fetched = log.read_bytes(offset, 1)
                assert (fetched.position, len(fetched.records)) == (batch["position"], batch["size"])
        for time in sorted({record.timestamp_ms + delta for record in records for delta in (-1, 0, 1)}):
            right = next((record.offset for record in records if record.timestamp_ms >= time), None)
            answer = log.offset_for_timestamp(time)
            assert (None if answer is None else answer.offset) == right
