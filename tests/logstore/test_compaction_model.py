"""Any history, compacted as often as it likes, against a model that does it the naive way.

The model is a list of records and a dict: of what lies below the uncleanable offset stay the last record of
each key that was not aborted, and a tombstone until a pass past its horizon; nothing above is touched. The
log must serve exactly that, at the old offsets, and know its producers, after each pass, after a restart,
and after everything that is derived was lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from logstore.compact.cleanable import cleanable_of
from logstore.compact.cleaner_config import CleanerConfig
from logstore.config import LogConfig
from logstore.format.batch import Batch, encode_batch, encode_marker_batch
from logstore.format.compression import Codec
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.producer_state import AppendOrigin
from logstore.log.read import FetchIsolation
from logstore.testing.disks import MemoryDisk

DIRECTORY: Final = "/data/orders-0"
RETENTION_MS: Final = 100
CONFIG: Final = LogConfig(
    segment_bytes=500,
    index_interval_bytes=80,
    segment_index_bytes=400,
    cleanup_policy="compact",
    delete_retention_ms=RETENTION_MS,
)
KEYS: Final = [b"a", b"b", b"c", b"d", b"e"]


@dataclass
class ModelRecord:
    offset: int
    key: bytes | None
    value: bytes | None
    batch: int
    transaction: int | None
    """The number of its transaction, if it has one."""


@dataclass
class Model:
    """What has been written, and what of it a log must still hold."""

    records: list[ModelRecord] = field(default_factory=list)
    outcomes: dict[int, ControlType] = field(default_factory=dict)
    horizons: dict[int, int] = field(default_factory=dict)
    """By batch: from when on its tombstones may go."""

    def is_aborted(self, record: ModelRecord) -> bool:
        return record.transaction is not None and self.outcomes.get(record.transaction) is ControlType.ABORT

    def compact(self, dirty: int, end: int, now_ms: int) -> None:
        """A pass that mapped [dirty, end) and judges everything below `end`."""
        last: dict[bytes, int] = {}
        for record in self.records:
            if dirty <= record.offset < end and record.key is not None and not self.is_aborted(record):
                last[record.key] = record.offset
        kept: list[ModelRecord] = []
        for record in self.records:
            if record.offset < end:
                if record.key is None or self.is_aborted(record) or record.offset < last.get(record.key, -1):
                    continue
                if record.value is None and now_ms >= self.horizons.get(record.batch, now_ms + 1):
                    continue
            kept.append(record)
        self.records = kept
        touched = {record.batch for record in kept if record.batch < end}
        for record in kept:
            if record.batch in touched and record.value is None:
                self.horizons.setdefault(record.batch, now_ms + RETENTION_MS)


class History:
    """A log and its model, and the producers that write."""

    def __init__(self) -> None:
        self.disk = MemoryDisk(directories=["/data"])
        self.now_ms = 1_000_000
        self.model = Model()
        self.sequences: dict[int, int] = {}
        self.last_batches: dict[int, tuple[bytes, int, int]] = {}
        """Producer → the last batch it sent, and the offsets that it got."""
        self.open: dict[int, int] = {}
        self.transactions = 0
        self.log = self.opened()

    def opened(self) -> Log:
        return Log.open(DIRECTORY, CONFIG, disk=self.disk, clock=lambda: self.now_ms)

    def append(
        self,
        pairs: list[tuple[bytes | None, bytes | None]],
        producer: int | None,
        in_transaction: bool,
        codec: Codec,
    ) -> None:
        offset = self.log.log_end_offset
        records = [Record(delta, self.now_ms - delta, *pair) for delta, pair in enumerate(pairs)]
        transaction: int | None = None
        if producer is None:
            data = encode_batch(records, codec=codec)
        else:
            if producer not in self.open and in_transaction:
                self.transactions += 1
                self.open[producer] = self.transactions
            transaction = self.open.get(producer)  # one that is open takes all that its producer writes
            sequence = self.sequences.get(producer, 0)
            data = encode_batch(
                records,
                codec=codec,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                is_transactional=transaction is not None,
            )
            self.sequences[producer] = sequence + len(pairs)
            self.last_batches[producer] = data, offset, offset + len(pairs) - 1
        append_as_leader(self.log.partition, data, leader_epoch=0, now_ms=self.now_ms)
        self.model.records += [
            ModelRecord(offset + delta, key, value, offset, transaction)
            for delta, (key, value) in enumerate(pairs)
        ]

    def end(self, producer: int, kind: ControlType) -> None:
        if producer not in self.open:
            return
        data = encode_marker_batch(
            EndTransactionMarker(kind, 0), producer_id=producer, producer_epoch=0, timestamp_ms=self.now_ms
        )
        append_as_leader(
            self.log.partition, data, leader_epoch=0, now_ms=self.now_ms, origin=AppendOrigin.COORDINATOR
        )
        self.model.outcomes[self.open.pop(producer)] = kind

    def transaction(
        self, producer: int, pairs: list[tuple[bytes | None, bytes | None]], kind: ControlType
    ) -> None:
        """One that is decided at once, in batches of one record."""
        for pair in pairs:
            self.append([pair], producer, True, Codec.NONE)
        self.end(producer, kind)

    def compact(self, config: CleanerConfig) -> None:
        for report in self.log.compact(self.now_ms, settings=config):
            assert not report.was_aborted
            self.model.compact(report.first_dirty_offset, report.end_offset, self.now_ms)
            if report.is_complete and report.end_offset:
                # Row 242: whatever went, a reader learns how far the log was compacted.
                ends = {batch.last_offset + 1 for batch in self.log.read_batches()}
                assert report.end_offset in ends
        assert not cleanable_of(self.log.partition, self.now_ms).cleanable_bytes
        self.check()

    def restart(self, *, loses_derived: bool) -> None:
        """Stop and start; without index, snapshot or mark of a clean stop if `loses_derived`."""
        self.log.close()
        if loses_derived:
            for entry in self.disk.scan(DIRECTORY):
                if not entry.name.endswith(".log") and entry.name != ".lock":
                    self.disk.remove(f"{DIRECTORY}/{entry.name}")
        self.log = self.opened()
        self.check()

    # --- what must hold -----------------------------------------------------------------------------

    def check(self) -> None:
        log, model = self.log, self.model
        expected = [(each.offset, each.key, each.value) for each in model.records]
        assert [(each.offset, each.key, each.value) for each in log.read()] == expected
        self.check_committed()
        self.check_lookups()
        self.check_resends()

    def check_committed(self) -> None:
        """Nothing aborted is shown, nothing committed is missing."""
        bound = self.log.partition.last_stable_offset
        expected = [
            each.offset
            for each in self.model.records
            if each.offset < bound and not self.model.is_aborted(each)
        ]
        committed = self.log.read(isolation=FetchIsolation.TXN_COMMITTED)
        assert [each.offset for each in committed] == expected

    def check_lookups(self) -> None:
        """Every batch is found by every offset that it covers, also where nothing is left."""
        batches: list[Batch] = list(self.log.read_batches())
        offset = self.log.log_start_offset
        for batch in batches:
            for wanted in {offset, batch.base_offset, batch.last_offset}:
                assert Batch(self.log.read_bytes(wanted, 1).records).base_offset == batch.base_offset
            offset = batch.last_offset + 1
        records = [record for batch in batches for record in batch.records()]  # markers have times, too
        for time in {record.timestamp_ms for record in records}:
            found = self.log.offset_for_timestamp(time)
            assert found is not None
            assert found.offset == next(each.offset for each in records if each.timestamp_ms >= time)

    def check_resends(self) -> None:
        """Rows 228 and 229: what was acknowledged is a duplicate for ever, at its old offsets."""
        end = self.log.log_end_offset
        for data, first, last in self.last_batches.values():
            again = append_as_leader(self.log.partition, data, leader_epoch=0, now_ms=self.now_ms)
            assert (again.is_duplicate, again.first_offset, again.last_offset) == (True, first, last)
        assert self.log.log_end_offset == end


keys = st.sampled_from(KEYS)
values = st.none() | st.binary(min_size=1, max_size=40)
codecs = st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP])
producers = st.none() | st.integers(1, 3)
operations = st.one_of(
    st.tuples(
        st.just("append"),
        st.lists(st.tuples(keys, values), min_size=1, max_size=4),
        producers,
        st.booleans(),
        codecs,
    ),
    st.tuples(st.just("end"), st.integers(1, 3), st.sampled_from([ControlType.ABORT, ControlType.COMMIT])),
    st.tuples(
        st.just("transaction"),
        st.integers(1, 3),
        st.lists(st.tuples(keys, values), min_size=1, max_size=3),
        st.sampled_from([ControlType.ABORT, ControlType.COMMIT]),
    ),
    st.tuples(st.just("roll")),
    st.tuples(st.just("wait"), st.sampled_from([1, RETENTION_MS])),
    st.tuples(st.just("compact"), st.sampled_from([2 * 24 * 2, 24 * 5, 1 << 20])),
    st.tuples(st.just("restart"), st.booleans()),
)


@given(history=st.lists(operations, min_size=5, max_size=40))
@example(
    # An aborted transaction below the dirty part, whose producer deletes a key in a committed one above it.
    [
        ("append", [(b"a", b"alive")], None, False, Codec.NONE),
        ("transaction", 1, [(b"b", b"never")], ControlType.ABORT),
        ("roll",),
        ("compact", 1 << 20),
        ("transaction", 1, [(b"a", None)], ControlType.COMMIT),
    ]
)
@settings(derandomize=True, max_examples=120, deadline=None)
def test_rows_228_and_229_any_history_against_the_naive_model(history: list[tuple]) -> None:  # type: ignore[type-arg]
    run(history)


def run(history: list[tuple]) -> None:  # type: ignore[type-arg]
    """Do all of it, and compact and restart at the end however it went."""
    under_test = History()
    for name, *arguments in [*history, ("roll",), ("compact", 1 << 20), ("restart", True)]:
        match name:
            case "append":
                under_test.append(*arguments)
            case "end":
                under_test.end(*arguments)
            case "transaction":
                under_test.transaction(*arguments)
            case "roll":
                under_test.log.partition.roll()
            case "wait":
                under_test.now_ms += arguments[0]
            case "compact":
                settings_ = CleanerConfig(dedupe_buffer_size=arguments[0], io_buffer_size=1024)
                under_test.compact(settings_)
            case _:
                under_test.restart(loses_derived=arguments[0])
