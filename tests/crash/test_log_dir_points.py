"""The power fails before every call that a log dir makes of its disk: its marks and checkpoints.

What a partition promises is held to in `test_log_points.py`; here it is what the dir says of them: a stop
that was not clean is never called clean, no checkpoint claims more than there is, a deleted partition does
not come back, and one with its id keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest

from logstore.checkpoint.entry_files import RECOVERY_POINT_CHECKPOINT, read_offset_checkpoint
from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch, encode_batch, set_offsets_and_epoch
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.upkeep import advance_log_start_offset
from logstore.testing.crash import CrashLab, CrashReport, CrashRun
from logstore.testing.disks import MemoryDisk
from tests.crash.script import CONFIG, NOW_MS, ROOT, ForgetfulDisk, Held, check_epochs, held_by

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 3)
NEW = TopicPartition("new", 0)
TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"


@dataclass(frozen=True)
class Known:
    """What is promised of one partition."""

    history: tuple[Held, ...] = ()
    durable: int = 0
    starts: tuple[int, int] = (0, 0)
    high_watermarks: tuple[int, ...] = (0,)
    deletion: str = "none"  # begun, done


@dataclass(frozen=True)
class Expected:
    """What is promised of a log dir. `clean` says whether it may call its last stop clean."""

    partitions: tuple[tuple[TopicPartition, Known], ...] = ()
    may_be_clean: bool = False
    topic_id_is_durable: bool = False


@dataclass
class DirScript:
    """Runs operations on the partitions of one log dir, in a crash lab."""

    lab: CrashRun[Expected]
    seed: int = 0
    config: LogConfig = CONFIG
    roots: tuple[str, ...] = (ROOT,)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._expected = Expected()
        self.manager = manager_on(self.lab.disk, self.config, self.roots)

    @property
    def expected(self) -> Expected:
        return self._expected

    @expected.setter
    def expected(self, expected: Expected) -> None:
        self._expected = expected
        self.lab.promise(expected)

    @property
    def partitions(self) -> list[TopicPartition]:
        return [partition for partition, _ in self.expected.partitions]

    def _note(self, partition: TopicPartition, known: Known) -> None:
        partitions = {**dict(self.expected.partitions), partition: known}
        self.expected = replace(self.expected, partitions=tuple(sorted(partitions.items())))

    def known(self, partition: TopicPartition) -> Known:
        return dict(self.expected.partitions).get(partition, Known())

    def log(self, partition: TopicPartition) -> Log:
        return self.manager.get_or_create(partition)

    def append(self, partition: TopicPartition, count: int = 1) -> None:
        log = self.log(partition)
        value = b"%d" % self.random.getrandbits(40)
        data = encode_batch([Record(delta, NOW_MS, None, value) for delta in range(count)])
        placed = bytearray(data)
        set_offsets_and_epoch(placed, base_offset=log.log_end_offset, leader_epoch=2)
        known = self.known(partition)
        self._note(partition, replace(known, history=(*known.history, Held.of(Batch(placed)))))
        append_as_leader(log.partition, data, leader_epoch=2, now_ms=NOW_MS)

    def flush(self, partition: TopicPartition) -> None:
        self.log(partition).flush()
        known = self.known(partition)
        self._note(partition, replace(known, durable=len(known.history)))

    def commit(self, partition: TopicPartition, offset: int) -> None:
        """Move the high watermark."""
        known = self.known(partition)
        self._note(partition, replace(known, high_watermarks=(*known.high_watermarks, offset)))
        self.log(partition).partition.set_high_watermark(offset)

    def advance_start(self, partition: TopicPartition, offset: int) -> None:
        known = self.known(partition)
        self._note(partition, replace(known, starts=(known.starts[0], offset)))
        advance_log_start_offset(self.log(partition).partition, offset)
        self._note(partition, replace(self.known(partition), starts=(offset, offset)))

    def retain(self, now_ms: int) -> None:
        """Old segments of every partition go, and files that went before are unlinked."""
        for partition in self.partitions:
            known = self.known(partition)
            highest = self.log(partition).partition.high_watermark
            self._note(partition, replace(known, starts=(known.starts[0], highest)))
        self.manager.delete_old_segments(now_ms)
        self.manager.tick(now_ms)
        for partition in self.partitions:
            start = self.log(partition).log_start_offset
            self._note(partition, replace(self.known(partition), starts=(start, start)))

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        known = self.known(partition)
        kept = tuple(held for held in known.history if held.next_offset <= offset)
        marks = (*known.high_watermarks, offset)
        durable = min(known.durable, len(kept))
        self._note(partition, replace(known, durable=durable, high_watermarks=marks))
        self.log(partition).truncate_to(offset)
        # What is written there now was committed by nobody yet.
        marks = tuple(mark for mark in marks if mark <= offset)
        self._note(partition, replace(self.known(partition), history=kept, high_watermarks=marks))

    def delete(self, partition: TopicPartition) -> None:
        self._note(partition, replace(self.known(partition), deletion="begun", durable=0))
        self.manager.delete(partition)
        self._note(partition, Known(deletion="done"))

    def name(self, partition: TopicPartition) -> None:
        self.manager.get_or_create(partition, topic_id=TOPIC_ID)
        self.expected = replace(self.expected, topic_id_is_durable=True)

    def checkpoint(self) -> None:
        self.manager.checkpoint_high_watermarks()
        self.manager.checkpoint_recovery_points()
        self.manager.checkpoint_log_start_offsets()

    def restart(self) -> None:
        """A clean stop and the next start."""
        self.expected = replace(self.expected, may_be_clean=True)
        self.manager.close()
        for partition, known in self.expected.partitions:
            self._note(partition, replace(known, durable=len(known.history)))
        self.manager = manager_on(self.lab.disk, self.config, self.roots)
        self.expected = replace(self.expected, may_be_clean=False)

    def crash(self) -> None:
        """A power cut, and the start after it: what that shows is promised."""
        self.lab.power_cut(self.random)
        self.manager = manager_on(self.lab.disk, self.config, self.roots)
        for partition, known in self.expected.partitions:
            log = self.manager.get(partition)
            if log is None:
                self._note(partition, Known(deletion=known.deletion))
                continue
            start, found = log.log_start_offset, held_by(log)
            below = tuple(held for held in known.history if held.next_offset <= start)
            history = (*below, *found)
            marks = (self.manager.checkpointed_high_watermark(partition),)
            self._note(partition, Known(history, len(history), (start, start), marks))


def manager_on(disk: Disk, config: LogConfig = CONFIG, roots: Sequence[str] = (ROOT,)) -> LogManager:
    return LogManager(roots, disk=disk, clock=lambda: NOW_MS, random=Random(5), config=config)


# --- the checker -------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """One partition after a start."""

    start: int
    end: int
    batches: tuple[Held, ...]
    high_watermarks: tuple[int, int]
    """What the log has, and what the checkpoint says."""
    topic_id: str | None


@dataclass(frozen=True, slots=True)
class FoundDir:
    partitions: tuple[tuple[TopicPartition, Shown], ...]
    was_clean: bool = field(compare=False)


def lab(*, config: LogConfig = CONFIG, **options: Any) -> CrashLab[FoundDir, Expected]:
    """A crash lab that knows what a log dir owes."""
    return CrashLab(partial(recover, config=config), judge, goes_on=goes_on, clock=lambda: NOW_MS, **options)


def explored(script: Callable[[DirScript], None], **options: Any) -> CrashReport:
    def workload(run: CrashRun[Expected]) -> None:
        script(DirScript(run))

    disk = options.pop("disk", MemoryDisk)
    return lab(**options).explore(workload, Expected(), name=script.__name__, disk=disk)


def recover(disk: Disk, *, config: LogConfig = CONFIG) -> FoundDir:
    names = [entry.name for entry in disk.scan("/")]
    points = read_offset_checkpoint(disk, ROOT, RECOVERY_POINT_CHECKPOINT) if ROOT[1:] in names else {}
    manager = manager_on(disk, config)
    assert not manager.offline_dirs
    assert not manager.damaged, f"{manager.damaged} after nothing but a power cut"
    shown = []
    for partition, log in manager.logs().items():
        check_epochs(log, held_by(log))
        assert points.get(partition, 0) <= log.log_end_offset, "a checkpoint claims more than there is"
        mark = manager.checkpointed_high_watermark(partition)
        assert log.log_start_offset <= log.partition.high_watermark <= log.log_end_offset
        marks = (log.partition.high_watermark, mark)
        found = Shown(log.log_start_offset, log.log_end_offset, held_by(log), marks, log.partition.topic_id)
        shown.append((partition, found))
    return FoundDir(tuple(shown), manager.was_clean)


def judge(found: FoundDir, expected: Expected) -> None:
    assert expected.may_be_clean or not found.was_clean, "I14: an unclean stop that is called clean"
    shown = dict(found.partitions)
    for partition, known in expected.partitions:
        log = shown.get(partition)
        if log is None:
            assert known.durable == 0 or known.deletion != "none", f"{partition} is gone"
            continue
        assert known.deletion != "done", f"{partition} came back"
        assert known.starts[0] <= log.start <= known.starts[1], f"{partition} starts at {log.start}"
        served = tuple(held for held in known.history if held.next_offset > log.start)
        assert log.batches == served[: len(log.batches)], "something is there that was not written"
        promised = sum(held.next_offset > log.start for held in known.history[: known.durable])
        assert len(log.batches) >= promised, f"{promised} batches were durable, {len(log.batches)} are left"
        if found.was_clean and known.deletion == "none":
            assert len(log.batches) == len(served), "a clean stop is claimed of a log that is not whole"
        # What a power cut took is not called committed by whatever comes to lie there.
        assert log.high_watermarks[1] in {min(mark, log.end) for mark in known.high_watermarks}
        if expected.topic_id_is_durable and partition == ORDERS and known.deletion == "none":
            assert log.topic_id == TOPIC_ID


def goes_on(disk: MemoryDisk) -> None:
    """Every log takes an append that lasts, and a new partition can be made."""
    manager = manager_on(disk)
    ends = {}
    for partition, log in [*manager.logs().items(), (NEW, manager.get_or_create(NEW))]:
        ends[partition] = log.append(b"on", timestamp_ms=NOW_MS, sync=True).first_offset
    again = manager_on(disk.durable_image())
    for partition, offset in ends.items():
        log = again.logs()[partition]
        assert [record.value for record in log.read(offset)] == [b"on"], f"{partition}: an append is gone"


# --- the scripts -------------------------------------------------------------------------------------


def first_start(run: DirScript) -> None:
    """A dir that is not there yet."""


def topic_create(run: DirScript) -> None:
    run.name(ORDERS)
    run.append(ORDERS)
    run.flush(ORDERS)
    run.name(PAYMENTS)


def high_watermark_checkpoints(run: DirScript) -> None:
    for number in range(4):
        run.append(ORDERS, 2)
        run.commit(ORDERS, 2 * number + 1)
        run.checkpoint()
    run.truncate(ORDERS, 4)
    run.append(ORDERS)
    run.commit(ORDERS, 5)
    run.checkpoint()


def crashes(run: DirScript) -> None:
    """Two unclean starts, the second with marks of the first."""
    for number in range(5):
        run.append(ORDERS, 2)
        run.append(PAYMENTS)
        if number == 2:
            run.checkpoint()
    run.crash()
    run.append(ORDERS)
    run.flush(ORDERS)
    run.checkpoint()
    run.crash()
    run.append(PAYMENTS)


def delete_and_crash(run: DirScript) -> None:
    """A deletion that was under way, and the same name made again."""
    run.append(ORDERS, 2)
    run.flush(ORDERS)
    run.append(PAYMENTS)
    run.delete(ORDERS)
    run.crash()
    run.manager.tick(NOW_MS + CONFIG.file_delete_delay_ms)
    run.append(PAYMENTS)
    run.flush(PAYMENTS)


def stand_alone_log_taken_over(run: DirScript) -> None:
    """A log that kept its own checkpoints comes under a dir's: its own must not count any more."""
    run.expected = replace(run.expected, may_be_clean=True)
    run.manager.close()
    with Log.open(f"{ROOT}/{ORDERS.directory_name}", CONFIG, disk=run.lab.disk, clock=lambda: NOW_MS) as log:
        for _ in range(4):
            log.append(b"x", timestamp_ms=NOW_MS)
    with Log.open(f"{ROOT}/{ORDERS.directory_name}", CONFIG, disk=run.lab.disk, clock=lambda: NOW_MS) as log:
        history = held_by(log)
    run.expected = Expected(((ORDERS, Known(history, len(history))),), may_be_clean=True)
    run.manager = manager_on(run.lab.disk)
    run.expected = replace(run.expected, may_be_clean=False)
    run.append(ORDERS)
    run.truncate(ORDERS, 2)
    run.append(ORDERS)
    run.flush(ORDERS)


def two_partitions(run: DirScript) -> None:
    for number in range(6):
        run.append(ORDERS, 2)
        run.append(PAYMENTS)
        if number == 3:
            run.flush(ORDERS)
            run.checkpoint()
    run.commit(ORDERS, 8)
    run.advance_start(ORDERS, 5)
    run.checkpoint()
    run.append(ORDERS)
    run.flush(PAYMENTS)


def clean_stops(run: DirScript) -> None:
    run.name(ORDERS)
    for _ in range(5):
        run.append(ORDERS)
    run.append(PAYMENTS, 3)
    run.commit(ORDERS, 3)
    run.restart()
    run.append(PAYMENTS)
    run.restart()
    run.restart()
    run.append(ORDERS)


def truncations(run: DirScript) -> None:
    """The recovery point is lowered durably before a byte goes."""
    for _ in range(7):
        run.append(ORDERS)
    run.flush(ORDERS)
    run.checkpoint()
    run.truncate(ORDERS, 4)
    run.append(ORDERS, 2)
    run.checkpoint()
    run.flush(ORDERS)
    run.checkpoint()
    run.truncate(ORDERS, 1)
    run.append(ORDERS)


def deletions(run: DirScript) -> None:
    for partition in (ORDERS, PAYMENTS):
        for _ in range(4):
            run.append(partition)
        run.flush(partition)
    run.checkpoint()
    run.delete(ORDERS)
    run.append(PAYMENTS)
    run.manager.tick(NOW_MS + CONFIG.file_delete_delay_ms)
    run.flush(PAYMENTS)
    run.restart()


def retention(run: DirScript) -> None:
    """A log start is checkpointed, then implied by the first segment, then inside one again."""
    run.config = replace(CONFIG, retention_bytes=300)
    run.manager.config = run.config
    for number in range(12):
        run.append(ORDERS, 2)
        run.append(PAYMENTS)
        if number % 4 == 3:
            run.commit(ORDERS, 2 * number)
            run.commit(PAYMENTS, number)
            run.retain(NOW_MS + number)
            run.checkpoint()
    run.advance_start(ORDERS, run.log(ORDERS).log_start_offset + 1)
    run.checkpoint()
    run.restart()
    run.append(ORDERS)
    run.retain(NOW_MS + CONFIG.file_delete_delay_ms)
    run.flush(ORDERS)


SCRIPTS: list[Callable[[DirScript], None]] = [
    first_start,
    topic_create,
    two_partitions,
    clean_stops,
    truncations,
    high_watermark_checkpoints,
    deletions,
    delete_and_crash,
    crashes,
    stand_alone_log_taken_over,
    retention,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_every_point(script: Callable[[DirScript], None]) -> None:
    """One image of each kind of file system at each of them; `make crash` takes four, and kills processes."""
    report = explored(script, images=1, kills=False)
    assert report.distinct >= 3
    assert report.is_good, str(report)


def without_syncs_of(directory: str) -> Callable[[], MemoryDisk]:
    return lambda: ForgetfulDisk(lambda call, path: (call, path) == ("sync_dir", directory), [])


@pytest.mark.parametrize(
    "script", [clean_stops, deletions, two_partitions], ids=lambda script: script.__name__
)
def test_the_checker_notices_names_that_are_not_synced(script: Callable[[DirScript], None]) -> None:
    """A mark that comes back, a partition that comes back, one that never was there."""
    assert not explored(script, images=6, kills=False, stop_after=1, disk=without_syncs_of(ROOT)).is_good


def test_the_checker_notices_renames_that_are_not_synced() -> None:
    """The checkpoint forgets a log start that the first segment implies: by then the others must be gone."""
    disk = without_syncs_of(f"{ROOT}/orders-0")
    assert not explored(retention, images=12, kills=False, stop_after=1, disk=disk).is_good
