"""Random topics, written by the library into two log dirs, and what a plain reader finds in them.

node1/orders-0    node1/replication-offset-checkpoint    perhaps below the log end
node2/orders-1    node2/orders-0, an older copy          some logs stay open
"""

from __future__ import annotations

import random
import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from logstore import Log, LogReader
from logstore.checkpoint.entry_files import HIGH_WATERMARK_CHECKPOINT, write_offset_checkpoint
from logstore.config import CREATE_TIME, LOG_APPEND_TIME, MAX_LONG, LogConfig
from logstore.disk.files import LOCK_FILE, OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.compression import Codec
from logstore.format.record import Header, Record
from logstore.log.append_many import append_many_as_leader

T0: Final = 1_700_000_000_000
LAST_MICROS_MS: Final = (2**63 - 1) // 1000
"""Spark's microseconds reach no further; later times are null."""
_WILD_MS: Final = (
    *(-1, 0, 1, 999, 253_402_300_799_999, 253_402_300_800_000),
    *(LAST_MICROS_MS, LAST_MICROS_MS + 1, 2**62, 2**63 - 1),
)
_NAMES: Final = ("orders", "Orders", "orders-2", "pay.ments", "x_y")
COLUMNS: Final = (
    *("key", "value", "topic", "partition", "offset", "timestamp"),
    *("timestampType", "headers", "leaderEpoch", "segment"),
)


class Transaction(NamedTuple):
    """The transactional records of a producer from `first` to before `marker`, None while it is open."""

    producer_id: int
    first: int
    marker: int | None = None
    committed: bool = False


class Plain(NamedTuple):
    """A partition as its files are: readable from `start` to `end`, for committed reads to `stable`.

    `rows` have `COLUMNS`, with the time in microseconds; those at offsets of `aborted` were aborted. `times`
    are offset and milliseconds of every record, those of markers too.
    """

    start: int
    end: int
    stable: int
    rows: Sequence[tuple[Any, ...]]
    aborted: frozenset[int]
    times: Sequence[tuple[int, int]]

    def readable(self, *, committed: bool) -> int:
        """The end of a read."""
        return self.stable if committed else self.end

    def between(self, start: int, end: int, *, committed: bool) -> list[tuple[Any, ...]]:
        """The rows that a read of [start, end) gives."""
        end, hidden = min(end, self.readable(committed=committed)), self.aborted if committed else ()
        return [row for row in self.rows if start <= row[4] < end and row[4] not in hidden]

    def by_time(self, time_ms: int, *, committed: bool) -> int | None:
        """The offset of the first record at or after a time."""
        end = self.readable(committed=committed)
        return next((offset for offset, at in self.times if at >= time_ms and offset < end), None)


class Partition:
    """One partition while it is written. Its random numbers are its own."""

    def __init__(self, rng: random.Random, where: TopicPartition, log_dir: Path, other_dir: Path) -> None:
        self.where, self.directory = where, log_dir / where.directory_name
        self._rng, self.copy = rng, other_dir / where.directory_name
        self.mark: int | None = None
        """its checkpointed high watermark"""
        self.copy_mark: int | None = None
        self.read_to = MAX_LONG
        """what is deleted is below it"""
        self.seen = 0
        """the end, when the plain rows were read last"""
        self._compacts = rng.random() < 0.4
        self._times = rng.choice(("rising", "disorder", "equal", "wild"))
        self._now_ms = T0
        self._config = LogConfig(
            segment_bytes=rng.choice((500, 1000, 4000, 1 << 20)),
            index_interval_bytes=rng.choice((0, 150, 4096)),
            cleanup_policy="compact,delete" if self._compacts else "delete",
            delete_retention_ms=0,
            message_timestamp_type=rng.choice((CREATE_TIME, CREATE_TIME, LOG_APPEND_TIME)),
            retention_ms=-1,
        )
        self._sequences = Counter[int]()
        self._first_producer = 1
        self._transactions: list[Transaction] = []
        self.log: Log | None = Log.open(self.directory, self._config, clock=self._clock)

    def _clock(self) -> int:
        return self._now_ms

    def open(self) -> Log:
        if self.log is None:
            self.log = Log.open(self.directory, self._config, clock=self._clock)
        return self.log

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None

    # --- writing --------------------------------------------------------------------------------------------

    def write(self, steps: int, *, only_append: bool = False) -> None:
        """Do so many random things to the log: mostly append."""
        log, rng = self.open(), self._rng
        for _ in range(steps):
            self._now_ms += rng.choice((0, 1, 700, 100_000))
            done = rng.random()
            if done < 0.35:
                log.append_batches(self._batch(-1))
            elif done < 0.70 or only_append:
                self._transactional(log, self._first_producer + rng.choice((0, 1, 2)))
            elif done < 0.78:
                log.partition.roll()
            elif done < 0.88 and self._compacts:
                log.compact(self._now_ms + 1)
            elif done < 0.89:
                self._begin_epoch(log)
            elif done < 0.91 and not only_append:
                self._truncate(log)
            elif done < 0.95 and len(log) > 3:
                wanted = log.log_start_offset + rng.randrange(len(log) // rng.choice((1, 3, 3)))
                log.delete_records(max(min(wanted, *self._kept()), log.log_start_offset))
                log.maintain(self._now_ms)
        if rng.random() < 0.15 and not only_append and not self.copy.exists():
            log.flush()
            shutil.copytree(self.directory, self.copy, ignore=shutil.ignore_patterns(LOCK_FILE))
            self.copy_mark = rng.choice((None, log.log_end_offset))
            log.append_batches(self._batch(-1))

    def _begin_epoch(self, log: Log) -> None:
        """Append in a later leader epoch."""
        epoch = max(log.partition.latest_epoch, 0) + self._rng.choice((1, 3))
        append_many_as_leader(log.partition, self._batch(-1), leader_epoch=epoch, now_ms=self._now_ms)

    def _truncate(self, log: Log) -> None:
        """Cut what no high watermark covers, as the leader of a later epoch may not have it.

        A copy has it still, and may be longer; it counts no more.
        """
        low = max(log.log_start_offset, self.mark or 0, self.copy_mark or 0, self.seen)
        ends = [each.base_offset for each in LogReader(self.directory).batches() if each.base_offset >= low]
        if not ends:
            return
        log.truncate_to(at := self._rng.choice(ends))
        self._transactions = [
            each if each.marker is None or each.marker < at else each._replace(marker=None, committed=False)
            for each in self._transactions
            if each.first < at
        ]
        self._first_producer += 10  # those of before go on at other sequence numbers
        self._begin_epoch(log)

    def tear(self) -> None:
        """Close the log, and leave what a power cut may leave behind its last batch."""
        self.close()
        torn = self._rng.choice((self._batch(-1)[:-1], self._batch(-1)[:70], b"x", bytes(12), bytes(5000)))
        with max(self.directory.glob("*.log")).open("ab") as file:
            file.write(torn)

    def set_mark(self) -> None:
        """Perhaps checkpoint a high watermark, which may be below the end."""
        log = self.open()
        start = log.log_start_offset
        decided = [each.marker + 1 for each in self._transactions if each.first < start and each.marker]
        low = max(start, self.copy_mark or 0, self.mark or 0, self.seen, *decided)
        if self.mark is not None or self._rng.random() < 0.4:
            self.mark = self._rng.choice((log.log_end_offset, self._rng.randint(low, log.log_end_offset)))

    def _batch(self, producer_id: int) -> bytes:
        rng = self._rng
        rows = [self._record(number) for number in range(rng.choice((1, 1, 2, 3, 7)))]
        codec = rng.choice(tuple(Codec))
        if producer_id < 0:
            return encode_batch(rows, codec=codec)
        sequence = self._sequences[producer_id]
        self._sequences[producer_id] += len(rows)
        return encode_batch(
            rows,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )

    def _record(self, number: int) -> Record:
        rng = self._rng
        key = rng.choice((b"", b"1", b"2", b"k3", b"\xff"))
        value = rng.choice((None, b"", b"1", b"2.5", b"text", rng.randbytes(40)))
        headers = (Header("a", b"1"), Header("", None), Header("ä", b""))[: rng.choice((0, 0, 1, 3))]
        is_keyless = not self._compacts and rng.random() < 0.3
        return Record(number, self._time_ms(), None if is_keyless else key, value, headers)

    def _time_ms(self) -> int:
        match self._times:
            case "rising":
                return self._now_ms
            case "disorder":
                return T0 + self._rng.randrange(3_000_000)
            case "equal":
                return T0
        return self._rng.choice((*_WILD_MS, T0, self._now_ms))

    def _transactional(self, log: Log, producer_id: int) -> None:
        """Append to the producer's transaction, or end it."""
        found = [
            at
            for at, each in enumerate(self._transactions)
            if each.producer_id == producer_id and each.marker is None
        ]
        if found and self._rng.random() < 0.6:
            self._end_transaction(log, found[0])
            return
        first = log.append_batches(self._batch(producer_id)).first_offset
        if not found:
            self._transactions.append(Transaction(producer_id, first))

    def _end_transaction(self, log: Log, at: int) -> None:
        found, commit = self._transactions[at], self._rng.random() < 0.5
        marker = log.end_transaction(found.producer_id, 0, commit=commit).last_offset
        self._transactions[at] = found._replace(marker=marker, committed=commit)

    def settle(self) -> None:
        """End most transactions, and the segment."""
        log = self.open()
        for at, each in enumerate(self._transactions):
            if each.marker is None and self._rng.random() < 0.8:
                self._end_transaction(log, at)
        log.partition.roll()

    def _kept(self) -> list[int]:
        """Offsets not to delete: only its owner knows a transaction whose first records are gone."""
        return [self.read_to, *(each.first for each in self._transactions if each.marker is None)]

    # --- plain reading --------------------------------------------------------------------------------------

    def plain(self) -> Plain:
        log = self.open()
        start, end = log.log_start_offset, log.log_end_offset
        marks = [each for each in (self.mark, self.copy_mark) if each is not None]
        end = max(min(end, max(marks)), start) if marks else end
        self.seen = end
        bases = sorted(int(path.stem) for path in self.directory.glob("*.log"))
        rows, times, aborted = [], [], set[int]()
        for batch in LogReader(self.directory, start_offset=start).batches():
            for record in batch.records():
                if not start <= record.offset < end:
                    continue
                times.append((record.offset, record.timestamp_ms))
                if batch.is_control:
                    continue
                if batch.is_transactional and self._was_aborted(batch.producer_id, record.offset):
                    aborted.add(record.offset)
                headers = tuple((each.name, each.value) for each in record.headers) or None
                kind, base = int(batch.timestamp_type), bases[bisect_right(bases, record.offset) - 1]
                placed = (*self.where, record.offset, micros(record.timestamp_ms), kind, headers)
                rows.append((record.key, record.value, *placed, batch.leader_epoch, base))
        undecided = [each.first for each in self._transactions if each.marker is None or each.marker >= end]
        return Plain(start, end, max(min([end, *undecided]), start), rows, frozenset(aborted), times)

    def _was_aborted(self, producer_id: int, offset: int) -> bool:
        return any(
            each.producer_id == producer_id
            and each.marker is not None
            and each.first <= offset < each.marker
            and not each.committed
            for each in self._transactions
        )


def micros(time_ms: int) -> int | None:
    """A record's time as Spark has it."""
    return time_ms * 1000 if time_ms <= LAST_MICROS_MS else None


class Topics:
    """All partitions of a seed, in `home/node1` and `home/node2`."""

    def __init__(self, rng: random.Random, home: Path) -> None:
        self.log_dirs = [home / "node1", home / "node2"]
        for each in self.log_dirs:
            each.mkdir(parents=True)
        self.partitions: dict[TopicPartition, Partition] = {}
        self._rng = rng
        for topic in rng.sample(_NAMES, rng.randint(1, 3)):
            self.add(topic)

    def add(self, topic: str) -> None:
        """Create a topic."""
        rng = self._rng
        for number in range(rng.choice((1, 2, 3))):
            where = TopicPartition(topic, number)
            dirs = rng.sample(self.log_dirs, 2)
            self.partitions[where] = Partition(random.Random(rng.random()), where, *dirs)

    def write(self, steps: int, *, only_append: bool = False) -> None:
        """Write to every partition, or leave it as it is, and checkpoint high watermarks."""
        for each in self.partitions.values():
            each.write(self._rng.choice((0, steps // 2, steps, steps)), only_append=only_append)
            each.set_mark()
            if self._rng.random() < 0.6:
                each.close()
        for log_dir in self.log_dirs:
            marks = dict(self._marks(log_dir))
            write_offset_checkpoint(OsDisk(), str(log_dir), HIGH_WATERMARK_CHECKPOINT, marks)

    def _marks(self, log_dir: Path) -> Iterator[tuple[TopicPartition, int]]:
        for where, each in self.partitions.items():
            mark = each.mark if each.directory.parent == log_dir else each.copy_mark
            if mark is not None:
                yield where, mark

    def plain(self) -> Mapping[TopicPartition, Plain]:
        """Every partition, in order."""
        return {where: self.partitions[where].plain() for where in sorted(self.partitions)}

    def tear(self) -> None:
        """Tear the ends of some logs, which are read without their owners then."""
        for each in self.partitions.values():
            if self._rng.random() < 0.3:
                each.tear()

    def close(self) -> None:
        for each in self.partitions.values():
            each.close()
