"""Snapshots of the producers' state: which are kept, which is believed, what is replayed."""

from __future__ import annotations

import errno
from collections import Counter
from random import Random

import pytest

from logstore.config import LogConfig
from logstore.format.batch import Batch, encode_batch, encode_marker_batch
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.log.log import Log
from logstore.log.producer_snapshots import ProducerSnapshots, replay_into
from logstore.log.producer_state import CompletedTransaction, ProducerState
from logstore.segment.segment import Segment, file_name
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk, RecordingDisk
from tests.logstore.logs import DIRECTORY, batch, content_of, names, put


def produced(
    base_offset: int, sequence: int, *, producer_id: int = 7, is_transactional: bool = False
) -> bytes:
    return encode_batch(
        [Record(base_offset, 1000 + sequence, None, b"v")],
        base_offset=base_offset,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


def state_of(count: int) -> ProducerState:
    state = ProducerState()
    for number in range(count):
        state.replay(Batch(produced(number, number)))
    return state


def last_sequence(state: ProducerState) -> int:
    entry = state.get(7)
    return -1 if entry is None else entry.last_sequence


def empty_disk() -> MemoryDisk:
    return MemoryDisk(directories=[DIRECTORY])


def snapshot(offset: int) -> str:
    return file_name(offset, ".snapshot")


def taken(disk: MemoryDisk, *offsets: int) -> ProducerSnapshots:
    """Snapshots of as many batches as each offset says."""
    snapshots = ProducerSnapshots(disk, DIRECTORY, [])
    for offset in offsets:
        snapshots.take(state_of(offset), offset)
    return snapshots


def test_take() -> None:
    disk = empty_disk()
    snapshots = taken(disk, 3, 8)
    assert names(disk) == [snapshot(3), snapshot(8)]
    assert content_of(disk, snapshot(8)) == state_of(8).encode_snapshot()
    assert snapshots.offsets == [3, 8]


@pytest.mark.parametrize("offset", [2, 3])
def test_row_142_one_that_is_not_newer_is_not_taken(offset: int) -> None:
    disk = empty_disk()
    taken(disk, 3).take(state_of(1), offset)
    assert names(disk) == [snapshot(3)]
    assert content_of(disk, snapshot(3)) == state_of(3).encode_snapshot()


def test_taking_one_costs_no_sync() -> None:
    """Derived data with a checksum: what a crash tears is found and replayed."""
    disk = RecordingDisk(empty_disk())
    ProducerSnapshots(disk, DIRECTORY, []).take(state_of(2), 2)
    assert {operation.name for operation in disk.operations} == {"create", "truncate", "pwrite", "rename"}


def test_bytes_of_an_older_attempt_are_not_part_of_it() -> None:
    disk = empty_disk()
    put(disk, snapshot(3) + ".tmp", b"x" * 500)
    taken(disk, 3)
    assert content_of(disk, snapshot(3)) == state_of(3).encode_snapshot()


def test_a_failed_one_is_not_listed() -> None:
    disk = FaultyDisk(empty_disk(), [Fault(operation="pwrite", errno=errno.ENOSPC)])
    snapshots = ProducerSnapshots(disk, DIRECTORY, [])
    with pytest.raises(OSError, match="No space"):
        snapshots.take(state_of(3), 3)
    assert snapshots.offsets == []
    snapshots.take(state_of(3), 3)
    assert last_sequence(snapshots.newest(at_most=3, above=0)) == 2


@pytest.mark.parametrize(
    ("at_most", "above", "end"),
    [(10, 0, 8), (8, 0, 8), (7, 0, 5), (4, 0, 3), (2, 0, 0), (10, 8, 8), (10, 7, 8), (7, 5, 5)],
)
def test_the_newest_in_a_range(at_most: int, above: int, end: int) -> None:
    """None in (above, at_most]: empty, as of the lower end."""
    state = taken(empty_disk(), 3, 5, 8).newest(at_most=at_most, above=above)
    assert state.end_offset == end
    assert last_sequence(state) == (end - 1 if end in (3, 5, 8) and end > above else -1)


@pytest.mark.parametrize("damage", [b"", b"\0", b"junk" * 20, None])
def test_row_145_a_corrupt_one_is_deleted_and_the_older_one_taken(damage: bytes | None) -> None:
    disk = empty_disk()
    snapshots = taken(disk, 3, 5, 8)
    if damage is None:
        damage = content_of(disk, snapshot(8))[:-1]
    put(disk, snapshot(8), damage)
    state = snapshots.newest(at_most=10, above=0)
    assert (state.end_offset, last_sequence(state)) == (5, 4)
    assert names(disk) == [snapshot(3), snapshot(5)]
    assert snapshots.offsets == [3, 5]


def test_every_flipped_byte_of_one_is_noticed() -> None:
    disk = empty_disk()
    whole = bytearray(state_of(4).encode_snapshot())
    for place in range(len(whole)):
        whole[place] ^= 0x10
        put(disk, snapshot(4), bytes(whole))
        assert ProducerSnapshots(disk, DIRECTORY, [4]).newest(at_most=9, above=0).end_offset == 0
        whole[place] ^= 0x10


def test_one_that_is_gone_is_passed_over() -> None:
    disk = empty_disk()
    snapshots = taken(disk, 3, 5)
    disk.remove(f"{DIRECTORY}/{snapshot(5)}")
    assert snapshots.newest(at_most=9, above=0).end_offset == 3


@pytest.mark.parametrize(
    ("bases", "end", "kept"),
    [
        ([0, 3, 5], 8, [3, 5, 8]),
        ([0, 3], 8, [3, 8]),
        ([0], 8, [8]),
        ([0, 5], 6, [5]),
        ([0], 4, [3]),
        ([0, 8], 8, [8]),
        ([8], 8, [8]),
    ],
)
def test_row_216_strays(bases: list[int], end: int, kept: list[int]) -> None:
    """Kept are those at a segment's base, and the newest if it is not behind the last one."""
    disk = empty_disk()
    snapshots = taken(disk, 3, 5, 8)
    removed = snapshots.remove_strays(bases, 0, end)
    assert snapshots.offsets == kept
    assert names(disk) == [snapshot(offset) for offset in kept]
    assert sorted([*removed, *kept]) == [3, 5, 8]


@pytest.mark.parametrize(("bases", "kept"), [([5], [5, 42]), ([42], [42]), ([2, 5], [2, 5, 42]), ([0], [42])])
def test_row_146_which_are_no_strays(bases: list[int], kept: list[int]) -> None:
    """The one at a segment's base, and the newest where it is not behind the last base."""
    disk = empty_disk()
    snapshots = taken(disk, 2, 5, 42)
    snapshots.remove_strays(bases, 0, 42)
    assert snapshots.offsets == kept
    assert names(disk) == [snapshot(offset) for offset in kept]


def test_row_143_what_the_log_holds_no_more() -> None:
    """Those at or below its start go, and those past its end."""
    disk = empty_disk()
    snapshots = taken(disk, 1, 2, 3, 4, 5)
    assert snapshots.retain(above=1, at_most=3)
    assert snapshots.offsets == [2, 3]
    assert names(disk) == [snapshot(2), snapshot(3)]
    assert not snapshots.retain(above=1, at_most=3)


def test_after_a_truncation_later_ones_go() -> None:
    disk = empty_disk()
    snapshots = taken(disk, 3, 5, 8)
    assert snapshots.remove_above(5)
    assert not snapshots.remove_above(5)
    assert names(disk) == [snapshot(3), snapshot(5)]
    snapshots.remove(3)
    snapshots.remove(4)
    assert names(disk) == [snapshot(5)]


def test_replay_reads_only_what_the_state_lacks() -> None:
    """From its end offset on, and of the batches without a producer not more than their headers."""
    disk = empty_disk()
    segment = Segment(disk, DIRECTORY, 0, LogConfig(), size=0, now_ms=0, is_new=True)
    position = 0
    for number in range(10):
        data = produced(number, number) if number % 2 else batch(number, (5,))
        segment.append(data, [(len(data), number, 5)])
        position += len(data)
    state = state_of(4)
    replay_into(state, segment)
    assert (state.end_offset, last_sequence(state)) == (10, 9)
    whole = ProducerState()
    replay_into(whole, segment)
    assert last_sequence(whole) == 9
    replay_into(whole, segment)
    assert whole.end_offset == 10


def test_the_batches_behind_damage_count() -> None:
    """A producer that is forgotten could append a batch twice."""
    first = produced(0, 0)
    data = bytearray(first + produced(1, 1) + produced(2, 0, producer_id=8))
    data[len(first) - 1] ^= 1
    disk = empty_disk()
    put(disk, file_name(0, ".log"), bytes(data))
    state = ProducerState()
    replay_into(state, Segment(disk, DIRECTORY, 0, LogConfig(), size=len(data), now_ms=0))
    assert last_sequence(state) == 1
    assert state.get(8) is not None
    assert state.end_offset == 3


def history(seed: int) -> list[bytes]:
    """Batches of a few producers: plain ones, those of transactions, markers, and new epochs."""
    draw, offset, batches = Random(seed), 0, list[bytes]()
    epochs, open_ones, sequences = Counter[int](), set[int](), Counter[int]()
    for _ in range(draw.choice((3, 6, 7, 8, 60))):
        producer = draw.randrange(-1, 3)
        if producer in open_ones and draw.random() < 0.3:
            open_ones.discard(producer)
            marker = EndTransactionMarker(draw.choice((ControlType.COMMIT, ControlType.ABORT)), 0)
            batches.append(
                encode_marker_batch(
                    marker,
                    base_offset=offset,
                    timestamp_ms=offset,
                    producer_id=producer,
                    producer_epoch=epochs[producer],
                )
            )
            offset += 1
            continue
        if producer not in open_ones and draw.random() < 0.1:
            epochs[producer] += 1
            sequences[producer] = 0
        if producer == 1 and draw.random() < 0.3:
            open_ones.add(producer)
        count = draw.randrange(1, 4)
        rows = [Record(offset + each, 1000 + offset, None, b"v") for each in range(count)]
        batches.append(
            encode_batch(
                rows,
                base_offset=offset,
                producer_id=producer,
                producer_epoch=epochs[producer] if producer >= 0 else -1,
                base_sequence=sequences[producer] if producer >= 0 else -1,
                is_transactional=producer in open_ones,
            )
        )
        sequences[producer] += count
        offset += count
    return batches


@pytest.mark.parametrize("seed", range(40))
def test_what_is_not_read_leaves_no_trace(seed: int) -> None:
    batches = history(seed)
    state, whole = ProducerState(), ProducerState()
    completed, expected = list[CompletedTransaction](), list[CompletedTransaction]()
    for each in batches:
        if (one := whole.replay(Batch(each))) is not None:
            expected.append(one)
    disk, data = empty_disk(), b"".join(batches)
    put(disk, file_name(0, ".log"), data)
    segment = Segment(disk, DIRECTORY, 0, LogConfig(), size=len(data), now_ms=0)
    replay_into(state, segment, completed.append)
    assert completed == expected
    assert repr([*state]) == repr([*whole])
    assert state.encode_snapshot() == whole.encode_snapshot()
    assert state.end_offset == whole.end_offset


@pytest.mark.parametrize("is_transactional", [False, True])
def test_of_many_batches_of_a_producer_few_are_read(is_transactional: bool) -> None:
    """Kafka's producers give each batch their id: a log of 1 GiB may have a million."""
    batches = [produced(number, number, is_transactional=is_transactional) for number in range(200)]
    disk, data = empty_disk(), b"".join(batches)
    put(disk, file_name(0, ".log"), data)
    recording = RecordingDisk(disk, reads=True)
    segment = Segment(recording, DIRECTORY, 0, LogConfig(), size=len(data), now_ms=0)
    state = ProducerState()
    replay_into(state, segment)
    assert last_sequence(state) == 199
    assert state.first_undecided_offset == (0 if is_transactional else None)
    assert sum(operation.name == "pread" for operation in recording.operations) < 10


@pytest.mark.parametrize("segment_bytes", [100, 1 << 20])
def test_a_log_that_was_closed_in_order_and_lost_its_snapshots_reads_its_producers(
    segment_bytes: int,
) -> None:
    """It counted as one that never had a producer: a repeat was stored, and an open transaction was shown."""
    disk = MemoryDisk(directories=["/data"])
    config = LogConfig(segment_bytes=segment_bytes)
    clock = lambda: 1000  # noqa: E731
    with Log.open(DIRECTORY, config, disk=disk, clock=clock) as log:
        for number in range(3):
            log.append_batches(produced(0, number))
        log.append_batches(produced(0, 0, producer_id=8, is_transactional=True))
    lost = [name for name in names(disk) if name.endswith(".snapshot")]
    assert lost
    for name in lost:
        disk.remove(f"{DIRECTORY}/{name}")
    with Log.open(DIRECTORY, config, disk=disk, clock=clock) as log:
        assert log.append_batches(produced(0, 2)).is_duplicate
        shown = [record.offset for record in log.read(isolation="read_committed")]
        assert shown == [0, 1, 2]
    assert snapshot(4) in names(disk)
