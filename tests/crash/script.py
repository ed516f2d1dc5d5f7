"""One log on a disk that may lose power before any call, what it has promised by then, and who checks it.

A `Script` runs operations on a stand-alone log and promises, as it goes, what must be found after a power
cut. In the crash lab (`on_lab`) every moment's images are enumerated, each is opened by `recover`, which
holds the log to what must be true of any log, and judged by `judge` against the `Promise` of that moment.
Without a lab a script draws images at random, and `check` does the same to each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, NamedTuple

from logstore.checkpoint.clean_shutdown import read_clean_shutdown
from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.format.batch import Batch, encode_batch, encode_marker_batch, set_offsets_and_epoch, walk
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.log.append import append_as_leader
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import FetchIsolation, Log
from logstore.log.losses import LOST_DIRECTORY
from logstore.log.producer_state import AppendOrigin, ProducerState, decode_snapshot
from logstore.log.read_committed import without_aborted
from logstore.log.tails import sound_batches
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.log.upkeep import advance_log_start_offset
from logstore.segment.transaction_index import AbortedTransaction
from logstore.testing.crash import CrashLab, CrashRun
from logstore.testing.disks import MemoryDisk, MemoryFile, Operation, Profile, RecordingDisk

ROOT = "/data"
DIRECTORY = f"{ROOT}/orders-0"
NOW_MS = 1_700_000_000_000
# Segments of about three batches, an index entry for every second one.
CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=60, segment_index_bytes=240)
SEGMENT_FILES = (".log", ".index", ".timeindex", ".txnindex", ".seal")
SINGLE_FILES = {
    ".lock",
    ".kafka_cleanshutdown",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "cursors.jsonl",
}


class Held(NamedTuple):
    """One batch as the log must give it back."""

    base_offset: int
    next_offset: int
    epoch: int
    content: bytes

    @classmethod
    def of(cls, batch: Batch) -> Held:
        return cls(batch.base_offset, batch.next_offset, batch.leader_epoch, bytes(batch.buffer))


@dataclass(frozen=True)
class Promise:
    """What a log must be found to hold after a power cut.

    The first `durable` batches of `history`, perhaps more of it, nothing else; a log start within
    `starts` (both inclusive). What was durable and has been cut since is `cut`: quarantine has it with
    its entry, or the log itself (the crash came before the cut). The mark of a clean stop, which vouches for
    all of `history`, only if it `may_be_clean`.
    """

    history: tuple[Held, ...] = ()
    durable: int = 0
    starts: tuple[int, int] = (0, 0)
    cut: tuple[Held, ...] = ()
    may_be_clean: bool = False

    def cutting(self, offset: int) -> tuple[Held, ...]:
        """`cut`, with what a cut at `offset` takes of what is durable; what was deleted is not missed."""
        durable = self.history[: self.durable]
        gone = (held for held in durable if held.next_offset > max(offset, self.starts[1]))
        return (*self.cut, *gone)


class Image(NamedTuple):
    """A disk after a power cut just before a call, and what was promised by then."""

    disk: MemoryDisk
    promise: Promise
    call: str


class ForgetfulDisk(MemoryDisk):
    """Says that it synced what `forgets` (given `sync` or `sync_dir`, and the path) tells it to skip.

    A rule of the sync order switched off: what the checker must notice.
    """

    def __init__(self, forgets: Callable[[str, str], bool], directories: list[str]) -> None:
        super().__init__(directories=directories)
        self.forgets = forgets

    def sync_dir(self, directory: str) -> None:
        if not self.forgets("sync_dir", directory):
            super().sync_dir(directory)

    def open(
        self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = False
    ) -> MemoryFile:
        file = super().open(path, create=create, exclusive=exclusive, write=write)
        assert file._inode is not None
        return _ForgetfulFile(self, file._inode, path, writable=write or create)


class _ForgetfulFile(MemoryFile):
    def sync(self, *, data_only: bool = False) -> None:
        assert isinstance(self._disk, ForgetfulDisk)
        if not self._disk.forgets("sync", self._path):
            super().sync(data_only=data_only)


@dataclass
class Script:
    """Runs operations on one log and collects images on the way; `forgets` makes its disk a bad one."""

    seed: int
    images_a_call: int = 2
    config: LogConfig = CONFIG
    forgets: Callable[[str, str], bool] | None = None
    images: list[Image] = field(default_factory=list)
    lab: CrashRun[Promise] | None = None

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._promise = Promise()
        self._on_sync: Callable[[], None] | None = None
        if self.lab is not None:
            self._open_in_lab(self.lab)
        else:
            forgets = self.forgets
            self._open_on(
                MemoryDisk(directories=[ROOT]) if forgets is None else ForgetfulDisk(forgets, [ROOT])
            )

    @property
    def promise(self) -> Promise:
        return self._promise

    @promise.setter
    def promise(self, promise: Promise) -> None:
        self._promise = promise
        if self.lab is not None:
            self.lab.promise(promise)

    def _open_in_lab(self, lab: CrashRun[Promise]) -> None:
        self._through: Disk = RecordingDisk(lab.disk, before=self._before_in_lab)
        self._open()

    def _before_in_lab(self, operation: Operation) -> None:
        if self._on_sync is not None and operation.name == "sync" and operation.path.endswith(".log"):
            self._on_sync()

    def _open_on(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self._through = RecordingDisk(disk, before=self._before)
        self._open()

    def _open(self) -> None:
        self.log = Log.open(DIRECTORY, self.config, disk=self._through, clock=lambda: NOW_MS)

    def _before(self, operation: Operation) -> None:
        for profile in Profile:
            for _ in range(self.images_a_call):
                image = self.disk.image(self.random, profile)
                self.images.append(Image(image, self.promise, f"{operation.name} {operation.path}"))

    # --- operations --------------------------------------------------------------------------------

    def append(self, count: int = 1, *, sync: bool = False, epoch: int | None = None) -> None:
        """One batch of `count` records in `epoch`, by default the latest."""
        self._append(encode_batch(self._records(count)), sync=sync, epoch=epoch)

    def produce(
        self, producer_id: int, sequence: int, *, sync: bool = False, transaction: bool = False
    ) -> None:
        """One batch of one record from an idempotent producer."""
        data = encode_batch(
            self._records(1),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=transaction,
        )
        self._append(data, sync=sync)

    def abort(self, producer_id: int, *, sync: bool = False) -> None:
        """The marker that aborts the producer's transaction."""
        self._end_transaction(ControlType.ABORT, producer_id, sync)

    def commit(self, producer_id: int, *, sync: bool = False) -> None:
        """The marker that commits it."""
        self._end_transaction(ControlType.COMMIT, producer_id, sync)

    def _end_transaction(self, how: ControlType, producer_id: int, sync: bool) -> None:
        data = encode_marker_batch(
            EndTransactionMarker(how, 0),
            producer_id=producer_id,
            producer_epoch=0,
            timestamp_ms=NOW_MS,
        )
        self._append(data, sync=sync, origin=AppendOrigin.COORDINATOR)

    def _records(self, count: int) -> list[Record]:
        # Times that neither rise nor fall, so that the time index has something to say.
        return [
            Record(delta, NOW_MS + self.random.randrange(50), None, b"%d" % self.random.getrandbits(30))
            for delta in range(count)
        ]

    def _append(
        self,
        data: bytes,
        *,
        sync: bool,
        epoch: int | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> None:
        epoch = max(self.log.partition.latest_epoch, 0) if epoch is None else epoch
        placed = bytearray(data)
        set_offsets_and_epoch(placed, base_offset=self.log.log_end_offset, leader_epoch=epoch)
        history = (*self.promise.history, Held.of(Batch(placed)))
        self.promise = replace(self.promise, history=history)
        append_as_leader(self.log.partition, data, leader_epoch=epoch, now_ms=NOW_MS, origin=origin)
        if sync:
            self.flush()

    def flush(self) -> None:
        """When it returns, all that was appended is promised."""
        self.log.flush()
        self.promise = replace(self.promise, durable=len(self.promise.history))

    def roll(self) -> None:
        self.log.partition.roll()

    def assign_epoch(self, epoch: int) -> None:
        self.log.partition.assign_epoch(epoch, self.log.log_end_offset)

    def truncate(self, offset: int) -> None:
        """Until it returns any part of what goes may be there; afterwards nothing of it."""
        before = self.promise
        kept = tuple(held for held in before.history if held.next_offset <= offset)
        durable = min(before.durable, len(kept))
        low, high = before.starts
        # With nothing left, the log begins anew where the cut was made.
        highest = high if kept else max(high, offset)
        cut = before.cutting(offset)
        self.promise = replace(before, durable=durable, starts=(min(low, offset), highest), cut=cut)
        self.log.truncate_to(offset)
        # With nothing left, the next segment begins where the cut was made, inside a batch or not.
        starts = (min(low, offset), min(high, offset) if kept else offset)
        self.promise = Promise(kept, durable, starts, cut)

    def truncate_fully(self, offset: int) -> None:
        low, high = self.promise.starts
        cut = self.promise.cutting(offset)
        self.promise = replace(self.promise, durable=0, starts=(min(low, offset), max(high, offset)), cut=cut)
        truncate_fully_and_start_at(self.log.partition, offset)
        self.promise = Promise((), 0, (offset, offset), cut)

    def advance_start(self, offset: int) -> None:
        self._move_start(offset, partial(advance_log_start_offset, self.log.partition))

    def delete_records(self, offset: int) -> None:
        """-1: all of them."""
        offset = self.log.log_end_offset if offset < 0 else offset
        self._move_start(offset, lambda to: self.log.delete_records(to) == to)

    def _move_start(self, offset: int, move: Callable[[int], bool]) -> None:
        before = self.promise
        self.promise = replace(before, starts=(before.starts[0], max(offset, before.starts[1])))
        if not move(offset):
            self.promise = before
            return
        # With nothing left to serve, the next segment may begin anywhere up to the end.
        served = any(held.next_offset > offset for held in self.promise.history)
        self.promise = replace(self.promise, starts=(offset, offset if served else self.log.log_end_offset))

    def maintain(self, now_ms: int = NOW_MS) -> None:
        """Let old segments go. Until it returns the log may start at either place."""
        before = self.promise
        self.promise = replace(before, starts=(before.starts[0], self.log.log_end_offset))
        self.log.maintain(now_ms)
        start = self.log.log_start_offset
        served = any(held.next_offset > start for held in self.promise.history)
        # A start that was durable before this stays so; what was synced at a roll on the way is durable.
        self.promise = replace(self.promise, starts=(start, start if served else self.log.log_end_offset))

    def close_and_open(self) -> None:
        """A clean stop and the start after it."""
        self.close()
        self.open()

    def close(self) -> None:
        self.promise = replace(self.promise, may_be_clean=True)
        self.log.close()
        self.promise = replace(self.promise, durable=len(self.promise.history))

    def open(self) -> None:
        self._open()
        self.promise = replace(self.promise, may_be_clean=False)

    @property
    def calls(self) -> list[Operation]:
        """What has been asked of the disk so far."""
        assert isinstance(self._through, RecordingDisk)
        return self._through.operations

    def watch(self, is_watched: bool) -> None:
        """Whether the lab looks at the moments that come now."""
        if self.lab is not None:
            self.lab.is_watched = is_watched

    def meanwhile(self, action: Callable[[], None] | None) -> None:
        """Do this, every time, just before a `.log` is synced: what another thread may do then."""
        self._on_sync = action

    def follow(self, count: int, *, epoch: int, sync: bool = False) -> None:
        """`count` batches of a leader, of two records each, in one append as a follower."""
        end = self.log.log_end_offset
        placed = []
        for number in range(count):
            data = bytearray(encode_batch(self._records(2)))
            set_offsets_and_epoch(data, base_offset=end + 2 * number, leader_epoch=epoch)
            placed.append(data)
        history = (*self.promise.history, *(Held.of(Batch(data)) for data in placed))
        self.promise = replace(self.promise, history=history)
        append_as_follower(self.log.partition, b"".join(placed), leader_epoch=epoch)
        if sync:
            self.flush()

    def crash_and_open(self) -> None:
        """A power cut and the start after it, crashes during recovery among the images."""
        if self.lab is not None:
            self.lab.power_cut(self.random)
            self._open_in_lab(self.lab)
        else:
            self._open_on(self.disk.power_cut(self.random))
        found = held_by(self.log)
        start = self.log.log_start_offset
        below = tuple(held for held in self.promise.history if held.next_offset <= start)
        history = (*below, *found)
        # What recovery has shown to a reader may not go any more.
        self.promise = Promise(history, len(history), (start, start), self.promise.cut)


def held_by(log: Log) -> tuple[Held, ...]:
    """Every batch that the log serves."""
    return tuple(Held.of(batch) for batch in log.read_batches())


# --- the checker -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """What a log serves after it was opened."""

    start: int
    end: int
    batches: tuple[Held, ...]
    epochs: tuple[tuple[int, int], ...]
    tail: tuple[int, int]
    """Base offset and size of the last segment."""
    was_clean: bool = field(compare=False)
    """Whether the directory said, before it was opened, that it had been closed in order."""
    quarantined: tuple[Held, ...] = field(compare=False)


def lab(*, config: LogConfig = CONFIG, **options: Any) -> CrashLab[Found, Promise]:
    """A crash lab that knows what a stand-alone log owes."""
    return CrashLab(
        partial(recover, config=config),
        judge,
        goes_on=partial(goes_on, config=config),
        clock=lambda: NOW_MS,
        **options,
    )


def on_lab(
    script: Callable[[Script], None], seed: int = 0, *, config: LogConfig = CONFIG
) -> Callable[[CrashRun[Promise]], None]:
    """The script as a workload."""

    def workload(run: CrashRun[Promise]) -> None:
        script(Script(seed, config=config, lab=run))

    return workload


def log_parent() -> MemoryDisk:
    """A disk with the directory in which the log will be."""
    return MemoryDisk(directories=[ROOT], clock=lambda: NOW_MS)


def recover(disk: Disk, *, config: LogConfig = CONFIG) -> Found:
    """Open the log (I1) and hold it to what is true of every log: I4, I5, I8, I9, I10."""
    was_clean = read_clean_shutdown(disk, DIRECTORY) is not None
    log = opened(disk, config)
    found = held_by(log)
    check_epochs(log, found)
    _check_producers(log, found)
    _check_indexes(log, found)
    _check_names(disk, log)
    last = log.partition.segments[-1]
    return Found(
        log.log_start_offset,
        log.log_end_offset,
        found,
        tuple((entry.epoch, entry.start_offset) for entry in log.partition.epochs),
        (last.base_offset, last.size),
        was_clean,
        quarantined(disk, log),
    )


def judge(found: Found, promise: Promise) -> None:
    """I2, I3, I6, I7, I14: what was promised is there, and nothing that never was."""
    low, high = promise.starts
    start = found.start
    assert low <= start <= high, f"log start {start}, promised within {promise.starts}"
    served = [number for number, held in enumerate(promise.history) if held.next_offset > start]
    expected = tuple(promise.history[number] for number in served)
    promised = sum(number < promise.durable for number in served)
    batches = found.batches
    assert batches == expected[: len(batches)], "something is there that was not written, or not in its place"
    assert len(batches) >= promised, f"{promised} batches were durable, {len(batches)} are left"
    _check_losses(batches, found.quarantined, promise)
    end = batches[-1].next_offset if batches else start
    if found.end != end:
        # After a cut inside a batch the log ends past its last one, once a segment has begun there.
        assert found.tail == (found.end, 0)
        assert found.end > end
    if found.was_clean:
        assert promise.may_be_clean, "an unclean stop is called clean"
        assert len(batches) == len(expected), "a clean stop is claimed of a log that is not whole"


def goes_on(disk: MemoryDisk, *, config: LogConfig = CONFIG) -> None:
    """I11, I12: a second opening repairs nothing, and the log takes appends that last."""
    log = opened(disk, config)
    assert not log.partition.report.cuts, f"the second opening cuts {log.partition.report.cuts}"
    before, end = held_by(log), log.log_end_offset
    offset = log.append(b"on", timestamp_ms=NOW_MS, sync=True).first_offset
    assert offset == end, f"the append went to {offset}, not {end}"
    last = opened(disk.durable_image(), config)
    assert held_by(last)[: len(before)] == before, "an append took what had been there"
    assert [record.value for record in last.read(offset)] == [b"on"], "an append did not last"


def check(image: Image, *, config: LogConfig = CONFIG, goes_on: bool = True) -> None:
    """Open what the power cut left; raises `AssertionError` for anything that was not promised.

    `goes_on`: also append, and cut the power once more behind that.
    """
    log = opened(image.disk, config)  # I1: it can be opened
    found = held_by(log)
    _check_content(log, found, image.promise)
    _check_losses(found, quarantined(image.disk, log), image.promise)
    check_epochs(log, found)
    _check_producers(log, found)
    _check_indexes(log, found)
    _check_names(image.disk, log)

    # I12, I13: what was served after one crash is served after the next, and nothing is left to repair.
    after = image.disk.durable_image()
    again = opened(after, config)
    assert held_by(again) == found, "the second crash took what had been served"
    assert (again.log_start_offset, again.log_end_offset) == (log.log_start_offset, log.log_end_offset)
    assert not again.partition.report.cuts, f"the second opening cuts {again.partition.report.cuts}"

    if not goes_on:
        return
    # I11: it goes on working.
    offset = again.append(b"on", timestamp_ms=NOW_MS, sync=True).first_offset
    assert offset == log.log_end_offset
    last = opened(after.durable_image(), config)
    assert held_by(last)[: len(found)] == found
    assert [record.value for record in last.read(offset)] == [b"on"]


def opened(disk: Disk, config: LogConfig = CONFIG) -> Log:
    return Log.open(DIRECTORY, config, disk=disk, clock=lambda: NOW_MS)


def _check_content(log: Log, found: tuple[Held, ...], promise: Promise) -> None:
    low, high = promise.starts
    start = log.log_start_offset
    assert low <= start <= high, f"log start {start}, promised within {promise.starts}"
    served = [number for number, held in enumerate(promise.history) if held.next_offset > start]
    expected = tuple(promise.history[number] for number in served)
    promised = sum(number < promise.durable for number in served)
    assert found == expected[: len(found)], "something is there that was not written, or not in its place"
    assert len(found) >= promised, f"{promised} batches were durable, {len(found)} are left"
    end = found[-1].next_offset if found else start
    if log.log_end_offset != end:
        # After a cut inside a batch the log ends past its last one, once a segment has begun there.
        last = log.partition.segments[-1]
        assert (last.base_offset, last.size) == (log.log_end_offset, 0)
        assert log.log_end_offset > end


def quarantined(disk: Disk, log: Log) -> tuple[Held, ...]:
    """The sound batches that were set aside when they were cut."""
    kept: list[Held] = []
    for loss in log.losses():
        for piece in loss.pieces:
            try:
                file = disk.open(f"{DIRECTORY}/{LOST_DIRECTORY}/{loss.id}/{piece.file}")
            except FileNotFoundError:
                continue
            for found_there in sound_batches(file, 0, file.size()):
                data = file.pread(found_there.end, 0)[int(found_there.positions[0]) :]
                kept += (Held.of(batch) for batch in walk(data))
    return tuple(kept)


def _check_losses(found: tuple[Held, ...], lost: tuple[Held, ...], promise: Promise) -> None:
    """Nothing that was ever durable is gone without a trace."""
    if promise.cut:
        kept = {*found, *lost}
        missing = [held.base_offset for held in promise.cut if held not in kept]
        assert not missing, f"batches at {missing} were durable, and are neither served nor in quarantine"


def check_epochs(log: Log, found: tuple[Held, ...]) -> None:
    """Every batch's epoch is known, epochs never go back, and none begins past the end."""
    newest = -1
    for held in found:
        assert held.epoch >= newest, "epochs go back"
        newest = held.epoch
        assert log.partition.epoch_for_offset(max(held.base_offset, log.log_start_offset)) == held.epoch
    starts = [entry.start_offset for entry in log.partition.epochs]
    assert starts == sorted(set(starts))
    assert not starts or starts[-1] <= log.log_end_offset


def _check_producers(log: Log, found: tuple[Held, ...]) -> None:
    if log.log_start_offset:
        return  # what lies below the start is remembered as long as a snapshot has it
    state = ProducerState()
    aborted: list[AbortedTransaction] = []
    for held in found:
        completed = state.replay(Batch(held.content))
        if completed is not None and (entry := completed.index_entry()) is not None:
            aborted.append(entry)
    assert entries_of(log.partition.producer_state) == entries_of(state), (
        "producers are not what the log says"
    )
    indexed = [entry for segment in log.partition.segments for entry in segment.aborts.index.entries]
    assert indexed == aborted, "aborted transactions are not what the log says"
    undecided = state.first_undecided_offset
    stable = log.log_end_offset if undecided is None else undecided
    assert log.partition.last_stable_offset == stable, "what is decided is not what the log says"
    committed = [
        record
        for batch in without_aborted((Batch(held.content) for held in found), aborted)
        if not batch.is_control
        for record in batch.records()
        if record.offset < stable
    ]
    assert list(log.read(isolation=FetchIsolation.TXN_COMMITTED)) == committed, "not what was committed"


def entries_of(state: ProducerState) -> list[tuple[object, ...]]:
    """A state as its snapshot keeps it, in order of producer."""
    return sorted(
        (
            entry.producer_id,
            entry.epoch,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
            entry.last_timestamp_ms,
            entry.last_sequence,
            entry.batches[-1].last_offset if entry.batches else -1,
        )
        for entry in decode_snapshot(state.encode_snapshot())
    )


def _check_indexes(log: Log, found: tuple[Held, ...]) -> None:
    for held in found:
        offset = max(held.base_offset, log.log_start_offset)
        assert log.read_bytes(offset, 1).records == held.content, f"offset {offset} is not found"
    times = [
        (record.timestamp_ms, record.offset)
        for held in found
        for record in Batch(held.content).records()
        if record.offset >= log.log_start_offset
    ]
    for time in (NOW_MS, NOW_MS + 25, NOW_MS + 49, *(time for time, _ in times[:2])):
        answer = log.offset_for_timestamp(time)
        right = next((offset for found_time, offset in times if found_time >= time), None)
        assert (None if answer is None else answer.offset) == right, f"time {time} is not found"


def _check_names(disk: Disk, log: Log) -> None:
    bases = {segment.base_offset for segment in log.partition.segments}
    for entry in disk.scan(DIRECTORY):
        if entry.name in SINGLE_FILES or (entry.name, entry.is_directory) == (LOST_DIRECTORY, True):
            continue
        digits, suffix = entry.name[:20], entry.name[20:]
        assert digits.isdigit(), f"stray file {entry.name}"
        if suffix != ".snapshot":
            assert suffix in SEGMENT_FILES, f"stray file {entry.name}"
            assert int(digits) in bases, f"{entry.name} is of no segment"
