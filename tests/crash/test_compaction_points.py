"""The power fails before every call of a compaction: what opens is the log before a swap or after it.

The crash lab enumerates the images, those of crashes during the recovery of a swap among them. What may be
found is known from a first run on a disk that does not fail: the log's content before the pass and after each
of its swaps, batch by batch. Then one rule of the swap is switched off each: some image must break a promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from logstore.compact.cleanable import cleanable_of
from logstore.compact.cleaner_config import CleanerConfig
from logstore.compact.compaction_pass import compaction_pass
from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.format.batch import Batch, encode_batch, encode_marker_batch
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.producer_state import AppendOrigin
from logstore.log.read import FetchIsolation
from logstore.testing.crash import CrashLab, CrashReport, CrashRun
from logstore.testing.disks import MemoryDisk
from tests.crash.script import DIRECTORY, NOW_MS, ROOT, ForgetfulDisk, Held, held_by, log_parent

CONFIG = LogConfig(
    segment_bytes=420,
    index_interval_bytes=60,
    segment_index_bytes=240,
    cleanup_policy="compact",
    delete_retention_ms=1000,
)
LATER_MS = NOW_MS + 5000
SMALL_STEPS = CleanerConfig(io_buffer_size=1024)

State = tuple[Held, ...]


@dataclass(frozen=True)
class Promise:
    """One of `states` is found; the log was compacted up to `dirty` at the most."""

    states: tuple[State, ...]
    dirty: int


@dataclass(frozen=True)
class Found:
    batches: State
    committed: tuple[tuple[int, bytes | None], ...]
    dirty: int


def put(log: Log, *pairs: tuple[bytes, bytes | None], producer: int = -1, transaction: bool = False) -> None:
    records = [Record(delta, NOW_MS + delta, *pair) for delta, pair in enumerate(pairs)]
    entry = next((each for each in log.partition.producers() if each.producer_id == producer), None)
    data = encode_batch(
        records,
        producer_id=producer,
        producer_epoch=-1 if producer < 0 else 0,
        base_sequence=-1 if producer < 0 else (entry.last_sequence + 1 if entry else 0),
        is_transactional=transaction,
    )
    append_as_leader(log.partition, data, leader_epoch=0, now_ms=NOW_MS)


def end(log: Log, producer: int, kind: ControlType) -> None:
    data = encode_marker_batch(
        EndTransactionMarker(kind, 0), producer_id=producer, producer_epoch=0, timestamp_ms=NOW_MS
    )
    append_as_leader(log.partition, data, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)


def several_to_one(log: Log) -> None:
    """Small segments by hand: one group, whose last segments lose all they held."""
    for number in range(4):
        put(log, (b"a", b"%d" % number), (b"b", b"%d" % number))
        log.partition.roll()
    put(log, (b"a", None), (b"c", b"1"))
    log.partition.roll()
    put(log, (b"a", b"1"), (b"b", b"1"), (b"c", b"2"))
    log.partition.roll()


def two_to_one(log: Log) -> None:
    """As little as there can be: for exploring further."""
    put(log, (b"a", b"1"))
    log.partition.roll()
    put(log, (b"a", b"2"))
    log.partition.roll()


def one_to_one(log: Log) -> None:
    """Full segments: each is a group of its own, and one stays as it is."""
    for number in range(7):
        put(log, (b"%d" % (number % 3), b"v" * 80), (b"only %d" % number, b"w"))
    log.partition.roll()


def with_producers(log: Log) -> None:
    """Sequences that must outlive their records, an aborted transaction, a committed one."""
    put(log, (b"a", b"1"), producer=5)
    put(log, (b"a", b"2"), producer=7, transaction=True)
    put(log, (b"b", b"3"), producer=8, transaction=True)
    end(log, 7, ControlType.ABORT)
    log.partition.roll()
    put(log, (b"a", b"4"), producer=8, transaction=True)
    end(log, 8, ControlType.COMMIT)
    put(log, (b"b", b"5"))
    log.partition.roll()
    put(log, (b"b", b"6"))
    put(log, (b"a", None))
    log.partition.roll()


def nothing_left(log: Log) -> None:
    """Every record of the first segments is superseded."""
    for number in range(2):
        put(log, (b"a", b"v" * 150), (b"a", b"%d" % number))
        put(log, (b"a", b"v" * 150))
        log.partition.roll()


LOGS: list[Callable[[Log], None]] = [two_to_one, several_to_one, one_to_one, with_producers, nothing_left]


def opened(disk: Disk) -> Log:
    return Log.open(DIRECTORY, CONFIG, disk=disk, clock=lambda: NOW_MS)


def filled(disk: MemoryDisk, fill: Callable[[Log], None], *, passes: int) -> MemoryDisk:
    """The log before the pass that matters: `passes` were made before it, and a tail was written since."""
    log = opened(disk)
    fill(log)
    for _ in range(passes):
        log.compact(NOW_MS)
        put(log, (b"z", b"1"))
        log.partition.roll()
    put(log, (b"a", b"in the active segment"))
    log.close()
    return disk


def steps(log: Log) -> Iterator[int]:
    cleanable = cleanable_of(log.partition, LATER_MS)
    assert cleanable.cleanable_bytes
    return compaction_pass(log.partition, cleanable, SMALL_STEPS, now_ms=LATER_MS)


def states_of(fill: Callable[[Log], None], passes: int) -> list[State]:
    """The log's content before the pass and after each swap."""
    log = opened(filled(log_parent(), fill, passes=passes))
    states = [held_by(log)]
    for _ in steps(log):
        if held_by(log) != states[-1]:
            states.append(held_by(log))
    return states


def workload(fill: Callable[[Log], None], passes: int) -> Callable[[CrashRun[Promise]], None]:
    states = states_of(fill, passes)

    def run(crash: CrashRun[Promise]) -> None:
        log = opened(crash.disk)
        dirty = log.partition.first_dirty_offset
        current = 0
        pending = steps(log)
        while True:
            crash.promise(Promise(tuple(states[current : current + 2]), dirty))
            try:
                next(pending)
            except StopIteration:
                break
            current += held_by(log) != states[current]
            crash.note(f"{current} swaps of {len(states) - 1}")
        assert current == len(states) - 1

    return run


def recover(disk: Disk) -> Found:
    """Open the log; whatever set of segments stands must be sound in itself."""
    log = opened(disk)
    batches = held_by(log)
    assert not log.partition.report.cuts, f"a swap made recovery cut {log.partition.report.cuts}"
    for held in batches:
        Batch(held.content).check_crc()
        offset = max(held.base_offset, log.log_start_offset)
        assert log.read_bytes(offset, 1).records == held.content, f"offset {offset} is not found"
    for name in (entry.name for entry in disk.scan(DIRECTORY)):
        assert not name.endswith((".cleaned", ".swap", ".deleted", ".tmp")), f"stray file {name}"
    bases = {segment.base_offset for segment in log.partition.segments}
    for name in (entry.name for entry in disk.scan(DIRECTORY)):
        if name[:20].isdigit() and not name.endswith(".snapshot"):
            assert int(name[:20]) in bases, f"{name} is of no segment"
    known = {entry.producer_id: entry.last_sequence for entry in log.partition.producers()}
    told: dict[int, int] = {}
    for held in batches:
        batch = Batch(held.content)
        if batch.has_producer_id and not batch.is_control:
            told[batch.producer_id] = batch.last_sequence
    assert {pid: known.get(pid) for pid in told} == told, "producers are not what the log says"
    committed = log.read(isolation=FetchIsolation.TXN_COMMITTED)
    return Found(
        batches, tuple((each.offset, each.value) for each in committed), log.partition.first_dirty_offset
    )


def judge(found: Found, promise: Promise) -> None:
    assert found.batches in promise.states, "neither the old set nor the new one"
    if found.dirty > promise.dirty:
        assert found.batches == promise.states[-1], "it says that it was compacted, and was not"


def explore(
    fill: Callable[[Log], None],
    passes: int = 0,
    *,
    disk: Callable[[], MemoryDisk] = log_parent,
    depth: int = 1,
    images: int = 3,
    second_images: int = 1,
    kills: bool = True,
    seed: int = 0,
) -> CrashReport:
    lab: CrashLab[Found, Promise] = CrashLab(
        recover,
        judge,
        clock=lambda: NOW_MS,
        depth=depth,
        images=images,
        second_images=second_images,
        kills=kills,
        seed=seed,
        stop_after=1,
    )
    before = opened(filled(log_parent(), fill, passes=passes))
    return lab.explore(
        workload(fill, passes),
        Promise((held_by(before),), before.partition.first_dirty_offset),
        name=f"{fill.__name__} {passes}",
        disk=lambda: filled(disk(), fill, passes=passes),
    )


@pytest.mark.slow
@pytest.mark.parametrize("passes", [0, 1, 2])
@pytest.mark.parametrize("fill", LOGS, ids=lambda fill: fill.__name__)
def test_every_point_further(fill: Callable[[Log], None], passes: int) -> None:
    """More of what may survive at each of them, and a second crash in each recovery."""
    report = explore(fill, passes, depth=2, images=24)
    assert report.is_good, str(report)


@pytest.mark.parametrize(
    ("fill", "passes"),
    [(two_to_one, 0), (several_to_one, 0), (one_to_one, 0), (with_producers, 1), (nothing_left, 0)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_rows_207_and_208_every_point_of_a_pass(fill: Callable[[Log], None], passes: int) -> None:
    """Processes killed with the power on are `make crash`'s, and those of one log the next test's."""
    report = explore(fill, passes, kills=False)
    assert report.is_good, str(report)
    assert report.moments > 20


def test_rows_207_and_208_a_process_killed_at_every_point_of_a_pass() -> None:
    report = explore(two_to_one, images=1)
    assert report.is_good, str(report)
    assert report.second > 500


def test_row_208_every_point_of_the_recovery_from_a_crash_in_a_pass() -> None:
    report = explore(two_to_one, depth=2, images=3, kills=False)
    assert report.is_good, str(report)
    assert report.second > 500


def test_passes_that_change_something() -> None:
    """The scripts reach what they are for: several swaps, and segments that vanish."""
    assert [len(states_of(fill, 0)) for fill in LOGS] == [2, 2, 3, 3, 4]


RULES_OFF: dict[str, tuple[str, Callable[[str], bool]]] = {
    "the new segment is not synced": ("sync", lambda path: ".log.cleaned" in path),
    "names are not": ("sync_dir", lambda path: path == DIRECTORY),
}


@pytest.mark.parametrize("name", RULES_OFF)
def test_the_checker_notices_a_rule_that_is_off(name: str) -> None:
    """S7 without one of its syncs: a checker that never complains is not one."""
    call, concerns = RULES_OFF[name]

    def forgets(what: str, path: str) -> bool:
        return what == call and concerns(path)

    for fill in LOGS:
        report = explore(fill, disk=lambda: ForgetfulDisk(forgets, [ROOT]), kills=False)
        if not report.is_good:
            return
    raise AssertionError(f"nobody noticed that {name}")
