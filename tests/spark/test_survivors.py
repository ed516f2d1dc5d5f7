"""A compaction decided elsewhere: the records at given offsets stay, as they were, without producers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from logstore.compact.survivors import Survivors
from logstore.format.batch import Batch, encode_batch, encode_marker_batch, walk
from logstore.format.compression import Codec
from logstore.format.record import ControlType, EndTransactionMarker, Header, Record
from logstore.segment.scan import scan_buffer
from logstore.spark.jobs.compact_segments import PartFile, history_of, pieces_of, segments_of
from logstore.spark.logs import OffsetRange

NOW_MS = 1_800_000_000_000


def batches(draw: random.Random, codec: Codec) -> tuple[bytes, dict[int, Record]]:
    """Batches of all kinds end to end, and their data records by offset."""
    data = b""
    records: dict[int, Record] = {}
    offset = 100
    for number in range(12):
        count = draw.randint(1, 6)
        some = [
            Record(
                offset + each,
                NOW_MS - draw.randrange(1000),
                None if draw.random() < 0.1 else b"k%d" % draw.randrange(5),
                None if draw.random() < 0.2 else b"v" * draw.randrange(50),
                (Header("h", b"%d" % each),) if draw.random() < 0.3 else (),
            )
            for each in range(count)
        ]
        kind: dict[str, Any] = [
            {},
            {"producer_id": 7, "producer_epoch": 0, "base_sequence": number},
            {"producer_id": 8, "producer_epoch": 1, "base_sequence": number, "is_transactional": True},
            {"log_append_time_ms": NOW_MS},
        ][number % 4]
        batch = encode_batch(some, base_offset=offset, leader_epoch=number // 5, codec=codec, **kind)
        data += batch
        records |= {record.offset: record._replace(sequence=-1) for record in Batch(batch).records()}
        offset += count
        if number % 4 == 2:
            data += encode_marker_batch(
                EndTransactionMarker(ControlType.COMMIT, 0), producer_id=8, producer_epoch=1,
                base_offset=offset, leader_epoch=number // 5, timestamp_ms=NOW_MS,
            )  # fmt: skip
            offset += 1
    return data, records


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_exactly_the_given_offsets_stay(codec: Codec, share: float) -> None:
    for seed in range(20):
        draw = random.Random(seed)
        data, records = batches(draw, codec)
        stays = sorted(offset for offset in records if draw.random() < share)
        rules = Survivors(end_offset=10**6, now_ms=NOW_MS, delete_retention_ms=1000)
        kept = rules.keep(data, scan_buffer(data, len(data)), np.array(stays, np.int64))
        found = list(walk(bytes(kept)))
        assert [record for batch in found for record in batch.records()] == [records[each] for each in stays]
        before = {batch.base_offset: batch for batch in walk(data)}
        for batch in found:
            batch.check_crc()
            old = before[batch.base_offset]
            assert (batch.last_offset, batch.leader_epoch) == (old.last_offset, old.leader_epoch)
            assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
            assert not batch.is_transactional
            assert not batch.is_control
        assert rules.stats.records_written == len(stays)


def test_the_last_batch_stays_if_only_empty() -> None:
    data, _ = batches(random.Random(1), Codec.NONE)
    end = list(walk(data))[-1].next_offset
    rules = Survivors(end_offset=end, now_ms=NOW_MS, delete_retention_ms=1000)
    (last,) = walk(rules.keep(data, scan_buffer(data, len(data)), np.array([], np.int64)))
    last.check_crc()
    assert (last.next_offset, last.record_count, last.producer_id, last.is_control) == (end, 0, -1, False)


def test_the_buckets_of_a_range() -> None:
    assert pieces_of(OffsetRange("t", 0, 5, 25), 10) == [(5, 10), (10, 20), (20, 25)]
    assert pieces_of(OffsetRange("t", 0, 10, 20), 10) == [(10, 20)]
    assert pieces_of(OffsetRange("t", 0, 7, 7), 10) == []


def part(base: int, end: int, size: int = 10) -> PartFile:
    return PartFile(f"/{base}", base, end, size)


def test_small_files_become_segments() -> None:
    wanted = OffsetRange("t", 0, 5, 100)
    files = [part(40, 60), part(8, 20), part(60, 90, 25), part(90, 100)]
    found = [(base, [file.base_offset for file in some]) for base, some in segments_of(wanted, files, 30)]
    assert found == [(5, [8, 40]), (60, [60]), (90, [90])]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], [(5, []), (100, [])]),
        ([part(2, 20)], [(2, [2]), (100, [])]),
        ([part(8, 20), part(20 + 2**31, 30 + 2**31)], [(5, [8]), (20 + 2**31, [20 + 2**31])]),
    ],
)
def test_segments_begin_and_end_where_the_log_did(files: list[PartFile], expected: Any) -> None:
    """An empty last segment keeps offsets from being used again; relative offsets have 31 bits."""
    found = segments_of(OffsetRange("t", 0, 5, 100), files, 1 << 30)
    assert [(base, [file.base_offset for file in some]) for base, some in found] == expected


def test_an_empty_range_has_an_empty_segment() -> None:
    assert segments_of(OffsetRange("t", 0, 7, 7), [], 30) == [(7, [])]


BATCHES = [(2, 50), (0, 8), (0, 9), (2, 70), (-1, 80), (4, 90)]


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([], [(0, 8), (2, 50), (4, 90)]),
        # Epoch 1 has no survivor, the first ones of 2 are gone, 4 is not listed yet.
        ([(0, 0), (1, 20), (2, 40)], [(0, 5), (1, 20), (2, 40), (4, 90)]),
        # Only what the range has: it ends at 100.
        ([(0, 3), (2, 40), (3, 80), (4, 90), (6, 100)], [(0, 5), (2, 40), (3, 80), (4, 90)]),
        # They contradict the batches.
        ([(1, 0), (2, 40)], [(0, 8), (2, 50), (4, 90)]),
        ([(0, 0), (2, 60)], [(0, 8), (2, 50), (4, 90)]),
    ],
)
def test_leader_epochs_begin_where_they_did_in_the_source(
    listed: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    """A follower is told where an epoch ends: by survivors alone, it would keep records that differ."""
    assert list(history_of(OffsetRange("t", 0, 5, 100), listed, BATCHES)) == expected
