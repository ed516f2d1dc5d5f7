"""Producers: sequences, epochs, transactions and snapshots. Rows: docs/reference/behaviours.md."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.compact.compaction import encode_empty_batch
from logstore.disk.errors import EngineError
from logstore.errors import (
    CorruptSnapshot,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from logstore.format.batch import HEADER_BYTES, Batch, encode_batch, encode_marker_batch
from logstore.format.crc import crc32c
from logstore.format.record import (
    MAX_INT,
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    Record,
    encode_records,
)
from logstore.log.producer_state import (
    AppendedBatch,
    AppendOrigin,
    CompletedTransaction,
    Duplicate,
    ProducerEntry,
    ProducerState,
    decode_snapshot,
    marker_of,
)
from logstore.segment.transaction_index import AbortedTransaction
from tests.golden.reading import content
from tests.logstore.forge import T0, forge

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


class Writer:
    """A log without a disk: batches at rising offsets, checked as a leader would and replayed."""

    def __init__(self) -> None:
        self.state = ProducerState()

    def data(
        self, producer_id: int, epoch: int, sequence: int, *, count: int = 1, transactional: bool = False,
        offset: int | None = None, time_ms: int = T0,
    ) -> Batch:  # fmt: skip
        """A data batch for the end of the log, or for `offset`; not appended."""
        base = self.state.end_offset if offset is None else offset
        records = [Record(base + slot, time_ms, None, b"") for slot in range(count)]
        encoded = encode_batch(
            records, base_offset=base, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
            is_transactional=transactional,
        )  # fmt: skip
        return Batch(encoded)

    def marker(
        self, producer_id: int, epoch: int, kind: ControlType, *, coordinator_epoch: int = 0,
        offset: int | None = None, time_ms: int = T0,
    ) -> Batch:  # fmt: skip
        """An end-transaction marker for the end of the log; not appended."""
        base = self.state.end_offset if offset is None else offset
        encoded = encode_marker_batch(
            EndTransactionMarker(kind, coordinator_epoch), producer_id=producer_id, producer_epoch=epoch,
            timestamp_ms=time_ms, base_offset=base,
        )  # fmt: skip
        return Batch(encoded)

    def append(self, batch: Batch) -> Duplicate | CompletedTransaction | None:
        """Check as a leader, then take up; a duplicate is not taken up."""
        duplicate = self.state.check(batch)
        return duplicate if duplicate is not None else self.state.replay(batch)

    def refuse(self, batch: Batch, error: type[EngineError]) -> None:
        """The batch is refused, and leaves no trace."""
        before = self.state.encode_snapshot()
        with pytest.raises(error):
            self.state.check(batch)
        assert self.state.encode_snapshot() == before


@pytest.fixture
def writer() -> Writer:
    return Writer()


def test_batches_without_a_producer_leave_no_state(writer: Writer) -> None:
    """Most batches have none; only the end moves."""
    batch = Batch(encode_batch([Record(0, T0, None, b"")]))
    assert writer.state.check(batch) is None
    assert writer.state.replay(batch) is None
    assert (len(writer.state), writer.state.end_offset) == (0, 1)


def test_row_122_sequences_follow_each_other(writer: Writer) -> None:
    """Row 122: a sequence that was, as part of no batch we know, and one that skips."""
    writer.append(writer.data(1, 0, 0))
    writer.append(writer.data(1, 0, 1))
    writer.refuse(writer.data(1, 0, 1, count=2), OutOfOrderSequence)
    writer.refuse(writer.data(1, 0, 5), OutOfOrderSequence)
    writer.append(writer.data(1, 0, 2))


def test_rows_123_and_124_a_new_epoch_starts_at_0(writer: Writer) -> None:
    """Rows 123, 124; and the older epoch is fenced from then on."""
    writer.append(writer.data(1, 3, 0))
    writer.refuse(writer.data(1, 4, 1), OutOfOrderSequence)
    writer.append(writer.data(1, 4, 0))
    writer.refuse(writer.data(1, 3, 1), InvalidProducerEpoch)


def test_rows_125_and_152_an_unknown_producer_may_start_anywhere(writer: Writer) -> None:
    """Rows 125, 152: it may have expired here."""
    assert writer.append(writer.data(1, 0, 17)) is None
    writer.refuse(writer.data(1, 0, 19), OutOfOrderSequence)


def test_row_126_a_producer_known_by_a_marker_starts_at_0(writer: Writer) -> None:
    """Row 126."""
    writer.append(writer.marker(1, 2, ABORT))
    writer.refuse(writer.data(1, 0, 0), InvalidProducerEpoch)
    writer.refuse(writer.data(1, 2, 17), OutOfOrderSequence)
    writer.append(writer.data(1, 2, 0))


def test_row_127_sequences_wrap(writer: Writer) -> None:
    """Row 127."""
    writer.append(writer.data(1, 0, MAX_INT))
    writer.refuse(writer.data(1, 0, 1), OutOfOrderSequence)
    writer.append(writer.data(1, 0, 0))


def test_row_128_a_batch_may_wrap_inside(writer: Writer) -> None:
    """Row 128: remembered as one batch with those bounds, and recognised when it comes again."""
    batch = writer.data(1, 0, MAX_INT - 10, count=21)
    writer.append(batch)
    entry = writer.state.get(1)
    assert entry is not None
    (known,) = entry.batches
    assert (known.first_sequence, known.last_sequence) == (MAX_INT - 10, 9)
    assert writer.append(writer.data(1, 0, MAX_INT - 10, count=21)) == Duplicate(0, 20, T0)
    writer.append(writer.data(1, 0, 10))


def test_row_129_a_marker_may_raise_the_epoch(writer: Writer) -> None:
    """Row 129: the coordinator fences a producer by a marker of its next epoch."""
    writer.append(writer.data(1, 0, 0, transactional=True))
    writer.append(writer.marker(1, 1, ABORT))
    entry = writer.state.get(1)
    assert entry is not None
    assert (entry.epoch, entry.transaction_first_offset, entry.last_sequence) == (1, -1, -1)
    writer.refuse(writer.data(1, 0, 1), InvalidProducerEpoch)
    writer.refuse(writer.data(1, 1, 1), OutOfOrderSequence)
    writer.append(writer.data(1, 1, 0))
    writer.append(writer.data(1, 2, 0))


def test_row_130_no_plain_batch_inside_a_transaction(writer: Writer) -> None:
    """Row 130."""
    writer.append(writer.data(1, 0, 0, transactional=True))
    writer.refuse(writer.data(1, 0, 1), InvalidTransactionState)
    writer.append(writer.data(1, 0, 1, transactional=True))
    writer.append(writer.marker(1, 0, COMMIT))
    writer.append(writer.data(1, 0, 2))


def test_row_131_unstable_until_the_marker_is_replicated() -> None:
    """Row 131, pitfall 16: two producers open at 99 and 105, decided at 109 and 112."""
    writer = Writer()
    state = writer.state
    writer.append(writer.data(1, 0, 0, transactional=True, offset=99))
    writer.append(writer.data(2, 0, 0, transactional=True, offset=105))
    assert (state.first_undecided_offset, state.first_unstable_offset) == (99, 99)
    state.advance_high_watermark(100)
    first = writer.append(writer.marker(1, 0, COMMIT, offset=109))
    assert first == CompletedTransaction(1, 99, 109, False, 105)
    assert (state.first_undecided_offset, state.first_unstable_offset) == (105, 99)
    state.advance_high_watermark(109)
    assert state.first_unstable_offset == 99, "the marker itself is not below the high watermark yet"
    state.advance_high_watermark(110)
    assert state.first_unstable_offset == 105
    writer.append(writer.marker(2, 0, COMMIT, offset=112))
    assert (state.first_undecided_offset, state.first_unstable_offset) == (None, 105)
    state.advance_high_watermark(113)
    assert state.first_unstable_offset is None


def test_last_stable_offset_is_held_between_its_bounds() -> None:
    """Never past the high watermark, never below the log start."""
    writer = Writer()
    assert writer.state.last_stable_offset(5, 0) == 5
    writer.append(writer.data(1, 0, 0, transactional=True, offset=3))
    assert writer.state.last_stable_offset(2, 0) == 2
    assert writer.state.last_stable_offset(9, 0) == 3
    assert writer.state.last_stable_offset(9, 4) == 4


def test_row_132_last_stable_offset_stored_with_an_abort(writer: Writer) -> None:
    """Row 132: opened 1, 2, 3; completed 1, 3, 2. The oldest *other* open one, else past the marker."""
    starts = [writer.state.end_offset + slot for slot in range(3)]
    for producer_id in (1, 2, 3):
        writer.append(writer.data(producer_id, 0, 0, transactional=True))
    stored: list[AbortedTransaction | None] = []
    for producer_id in (1, 3, 2):
        completed = writer.append(writer.marker(producer_id, 0, ABORT))
        assert isinstance(completed, CompletedTransaction)
        stored.append(completed.index_entry())
    assert [entry.last_stable_offset for entry in stored if entry] == [starts[1], starts[1], 6]


def test_row_133_only_a_marker_with_data_before_it_completes_anything(writer: Writer) -> None:
    """Row 133: COMMIT, COMMIT, ABORT."""
    writer.append(writer.data(1, 0, 0, transactional=True))
    assert writer.append(writer.marker(1, 0, COMMIT)) == CompletedTransaction(1, 0, 1, False, 2)
    assert writer.append(writer.marker(1, 0, COMMIT)) is None
    assert writer.append(writer.marker(1, 0, ABORT)) is None


def test_commits_are_not_in_the_index(writer: Writer) -> None:
    """Aborts only."""
    assert CompletedTransaction(1, 0, 1, False, 2).index_entry() is None
    assert CompletedTransaction(1, 0, 1, True, 2).index_entry() == (1, 0, 1, 2)


def test_rows_134_and_135_five_batches_are_remembered(writer: Writer) -> None:
    """Rows 134, 135: an exact repeat of one of the last five is answered with its old offsets."""
    for sequence in range(6):
        writer.append(writer.data(1, 0, sequence, time_ms=T0 + sequence))
    writer.append(writer.data(1, 0, 6, count=3, time_ms=T0 + 6))
    assert writer.append(writer.data(1, 0, 6, count=3)) == Duplicate(6, 8, T0 + 6)
    assert writer.state.end_offset == 9, "nothing was appended"
    writer.refuse(writer.data(1, 0, 7, count=2), OutOfOrderSequence)
    assert writer.append(writer.data(1, 0, 2)) == Duplicate(2, 2, T0 + 2)
    writer.refuse(writer.data(1, 0, 1), OutOfOrderSequence)


def test_a_repeat_of_an_older_epoch_is_fenced_not_recognised(writer: Writer) -> None:
    """Pitfall 14: five batches of the *same* epoch."""
    writer.append(writer.data(1, 0, 0))
    writer.append(writer.data(1, 1, 0))
    writer.refuse(writer.data(1, 0, 0), InvalidProducerEpoch)


def test_row_136_followers_judge_nothing(writer: Writer) -> None:
    """Row 136: the leader has; repeats, gaps and older epochs are taken up as they come."""
    state = writer.state
    for batch in (
        writer.data(1, 5, 0, offset=0),
        writer.data(1, 5, 0, offset=1),
        writer.data(1, 5, 40, offset=2),
        writer.data(1, 3, 9, offset=3),
    ):
        state.replay(batch)
    entry = state.get(1)
    assert entry is not None
    assert (entry.epoch, list(entry.batches)) == (3, [AppendedBatch(9, 3, 0, T0)])


def test_row_137_producers_do_not_mix(writer: Writer) -> None:
    """Row 137."""
    for producer_id in (3, 1, 2):
        writer.append(writer.data(producer_id, producer_id, producer_id * 10))
    assert [(entry.producer_id, entry.epoch, entry.last_sequence) for entry in writer.state] == [
        (3, 3, 30), (1, 1, 10), (2, 2, 20),
    ]  # fmt: skip


def test_row_138_coordinators_are_fenced(writer: Writer) -> None:
    """Row 138: epochs 1, 1, 2, then 1 again, which a snapshot in between does not make us forget."""
    for epoch in (1, 1, 2):
        writer.append(writer.marker(1, 0, COMMIT, coordinator_epoch=epoch))
    writer.refuse(writer.marker(1, 0, COMMIT, coordinator_epoch=1), TransactionCoordinatorFenced)
    writer.state = ProducerState.load(decode_snapshot(writer.state.encode_snapshot()), end_offset=3)
    writer.refuse(writer.marker(1, 0, COMMIT, coordinator_epoch=1), TransactionCoordinatorFenced)


def test_row_139_markers_of_an_older_epoch_are_fenced(writer: Writer) -> None:
    """Row 139."""
    writer.append(writer.data(1, 4, 0, transactional=True))
    writer.refuse(writer.marker(1, 3, COMMIT), InvalidProducerEpoch)


def test_row_140_an_emptied_marker_changes_nothing(writer: Writer) -> None:
    """Row 140: compaction leaves control batches without a record."""
    writer.append(writer.data(1, 0, 0, transactional=True))
    before = writer.state.encode_snapshot()
    emptied = Batch(encode_empty_batch(writer.marker(1, 9, COMMIT)))
    assert writer.append(emptied) is None
    assert writer.state.encode_snapshot() == before
    assert writer.state.end_offset == 2


def test_other_control_records_change_nothing(writer: Writer) -> None:
    """Unknown types are ignored; a marker that is too short to be one is not."""
    unknown = encode_batch(
        [Record(0, T0, ControlRecord(0, 99).encode(), b"")], producer_id=1, producer_epoch=0, is_control=True
    )
    assert writer.append(Batch(unknown)) is None
    assert len(writer.state) == 0
    short = encode_batch(
        [Record(1, T0, ControlRecord(0, 0).encode(), b"")],
        base_offset=1, producer_id=1, producer_epoch=0, is_control=True, is_transactional=True,
    )  # fmt: skip
    with pytest.raises(InvalidRecord):
        writer.state.replay(Batch(short))


def test_a_plain_marker_needs_no_parser(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of small transactions has a marker for each; the parser of records took most of a recovery."""
    ends = [(ABORT, 0), (COMMIT, 0), (COMMIT, 7), (ABORT, MAX_INT)]
    batches = [writer.marker(1, 0, kind, coordinator_epoch=epoch) for kind, epoch in ends]
    monkeypatch.delattr(Batch, "records")
    assert [marker_of(each) for each in batches] == [EndTransactionMarker(*end) for end in ends]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 0, 0, 9), EndTransactionMarker(ABORT, 9)),
        ((0, 1, 0, 1), (0, 3, 0, 0, 0, 9), EndTransactionMarker(COMMIT, 9)),
        ((0, 0, 0, 4), (0, 0, 0, 0, 0, 9), None),
        ((0, 0, 0, 1, 5), (0, 0, 0, 0, 9), "fewer than 6"),
        ((0, 0, 0, 1), (0xFF, 0xFF, 0, 0, 0, 9), "version -1"),
        ((0xFF, 0xFF, 0, 1), (0, 0, 0, 0, 0, 9), "version -1"),
    ],
)
def test_other_markers_of_the_same_size(
    key: tuple[int, ...], value: tuple[int, ...], expected: EndTransactionMarker | str | None
) -> None:
    record = Record(0, T0, bytes(key), bytes(value))
    plain = encode_batch(
        [Record(0, T0, bytes(4), bytes(6))], producer_id=1, producer_epoch=0, base_sequence=0
    )
    batch = Batch(
        plain[:HEADER_BYTES] + b"".join(encode_records([record], base_offset=0, base_timestamp_ms=T0)[0])
    )
    assert batch.size == len(plain)
    if isinstance(expected, str):
        with pytest.raises(InvalidRecord, match=expected):
            marker_of(batch)
    else:
        assert marker_of(batch) == expected


def test_row_141_idle_producers_expire(writer: Writer) -> None:
    """Row 141: not while a transaction is open; afterwards any sequence may be next."""
    writer.append(writer.data(1, 0, 0))
    writer.append(writer.data(2, 0, 0, transactional=True))
    writer.state.remove_expired(T0 + 99, expiration_ms=100)
    assert len(writer.state) == 2
    writer.state.remove_expired(T0 + 100, expiration_ms=100)
    assert [entry.producer_id for entry in writer.state] == [2]
    writer.append(writer.data(1, 0, 55))


def test_row_144_a_snapshot_keeps_one_batch_and_the_open_transaction(writer: Writer) -> None:
    """Row 144."""
    writer.append(writer.data(1, 0, 0, transactional=True))
    writer.append(writer.data(1, 0, 1, count=3, transactional=True, time_ms=T0 + 9))
    state = ProducerState.load(decode_snapshot(writer.state.encode_snapshot()), end_offset=4)
    entry = state.get(1)
    assert entry is not None
    assert list(entry.batches) == [AppendedBatch(3, 3, 2, T0 + 9)]
    assert (entry.transaction_first_offset, state.first_unstable_offset) == (0, 0)
    writer.state = state
    assert writer.append(writer.data(1, 0, 1, count=3, transactional=True)) == Duplicate(1, 3, T0 + 9)
    writer.refuse(writer.data(1, 0, 0, transactional=True), OutOfOrderSequence)
    completed = writer.append(writer.marker(1, 0, ABORT))
    assert completed == CompletedTransaction(1, 0, 4, True, 5)


def test_row_144_a_snapshot_tells_a_batch_at_offset_0_from_none(writer: Writer) -> None:
    writer.append(writer.data(1, 0, 0))
    writer.append(writer.marker(2, 0, ABORT))
    entries = decode_snapshot(writer.state.encode_snapshot())
    assert [list(entry.batches) for entry in entries] == [[AppendedBatch(0, 0, 0, T0)], []]


def test_a_producer_of_unknown_epoch_may_start_anywhere(writer: Writer) -> None:
    """A snapshot may name a producer without an epoch; it says no more than no entry."""
    writer.state = ProducerState.load([ProducerEntry(1)], end_offset=0)
    writer.append(writer.data(1, 3, 17))
    writer.refuse(writer.data(1, 3, 17, count=2), OutOfOrderSequence)


def test_loading_drops_the_expired(writer: Writer) -> None:
    """Also when a snapshot is loaded."""
    writer.append(writer.data(1, 0, 0))
    entries = decode_snapshot(writer.state.encode_snapshot())
    assert len(ProducerState.load(entries, end_offset=1, now_ms=T0 + 1000, expiration_ms=1000)) == 0
    assert len(ProducerState.load(entries, end_offset=1, now_ms=T0 + 999, expiration_ms=1000)) == 1


def test_a_coordinators_own_batches_have_no_sequences_to_check(writer: Writer) -> None:
    """Internal topics write -1 or 0 always; epochs still fence."""
    for _ in range(3):
        batch = writer.data(1, 1, 0)
        assert writer.state.check(batch, AppendOrigin.COORDINATOR) is None
        writer.state.replay(batch)
    with pytest.raises(InvalidProducerEpoch):
        writer.state.check(writer.data(1, 0, 0), AppendOrigin.COORDINATOR)


# Snapshot files


def test_row_145_every_damage_to_a_snapshot_is_noticed() -> None:
    """Row 145: every flipped bit, every cut, every appended byte."""
    data = content("producer-snapshot.bin")
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            with pytest.raises(CorruptSnapshot):
                decode_snapshot(damaged)
    for cut in range(len(data)):
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(data[:cut])
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(data + b"\0")
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(content("producer-snapshot-corrupt.bin"))


@pytest.mark.parametrize("count", [-1, 0, 2, 1 << 30])
def test_a_count_that_lies_under_a_right_checksum(count: int) -> None:
    """The bytes decide how many entries there are, never the number."""
    body = count.to_bytes(4, "big", signed=True) + bytes(46)
    with pytest.raises(CorruptSnapshot, match="entries in"):
        decode_snapshot(b"\0\1" + crc32c(body).to_bytes(4, "big") + body)


steps = st.lists(
    st.tuples(
        st.sampled_from(["data", "transactional", "abort", "commit"]), st.integers(1, 3), st.integers(1, 4)
    ),
    max_size=30,
)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(script=steps, cut=st.integers(0, 30))
def test_a_snapshot_stands_for_what_lies_before_it(script: list[tuple[str, int, int]], cut: int) -> None:
    """Any prefix may be exchanged for its snapshot: later snapshots and transactions come out the same."""
    writer = Writer()
    sequences = dict.fromkeys((1, 2, 3), 0)
    batches: list[Batch] = []
    for step, producer_id, count in script:
        if step in ("abort", "commit"):
            batch = writer.marker(producer_id, 0, ABORT if step == "abort" else COMMIT)
        else:
            batch = writer.data(
                producer_id, 0, sequences[producer_id], count=count, transactional=step == "transactional"
            )
            sequences[producer_id] += count
        writer.state.replay(batch)
        batches.append(batch)

    whole = ProducerState()
    completed = [whole.replay(batch) for batch in batches]
    prefix = ProducerState()
    for batch in batches[:cut]:
        prefix.replay(batch)
    resumed = ProducerState.load(decode_snapshot(prefix.encode_snapshot()), end_offset=prefix.end_offset)
    assert [resumed.replay(batch) for batch in batches[cut:]] == completed[cut:]
    assert resumed.encode_snapshot() == whole.encode_snapshot() == writer.state.encode_snapshot()
    assert resumed.first_undecided_offset == whole.first_undecided_offset


def test_control_batch_that_cannot_be_read() -> None:
    """Damage under a right checksum is an error of ours, never an IndexError."""
    batch = Batch(forge(b"\x10", attributes=0x30, producer_id=1, producer_epoch=0))
    with pytest.raises(InvalidRecord):
        ProducerState().replay(batch)
