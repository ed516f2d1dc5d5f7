"""More of what a log does, as crash scripts: each operation that `test_log_points.py` has no script for.

What they share with those is in `script.py`; which script shows which operation is in `catalogue.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.log.reader import LogReader
from logstore.segment.segment import SEGMENT_SUFFIXES, file_name
from tests.crash.script import CONFIG, DIRECTORY, Script

BY_RECORD_TIME = replace(CONFIG, segment_bytes=10_000, segment_ms=30)
BY_INDEX = replace(CONFIG, segment_bytes=10_000, index_interval_bytes=0, segment_index_bytes=24)
FLUSHED_EVERY_THIRD = replace(CONFIG, flush_messages=3)


# --- appending ------------------------------------------------------------------------------------


def one_long_batch(run: Script) -> None:
    """Longer than sectors: torn at each of them, and in any order."""
    run.append(40, sync=True)
    run.append(60)
    run.append(50, sync=True)


def one_record_and_a_flush(run: Script) -> None:
    for _ in range(5):
        run.append()
        run.flush()


def flush_by_count(run: Script) -> None:
    """`flush.messages`: some appends sync by themselves, and promise nothing of it."""
    for count in (1, 1, 1, 2, 2, 1):
        run.append(count)
    run.flush()


def flush_of_nothing(run: Script) -> None:
    run.flush()
    run.append(sync=True)
    run.flush()
    run.roll()
    run.flush()


def follower_appends(run: Script) -> None:
    """Several batches in one write, epochs that begin inside the log."""
    run.follow(3, epoch=1)
    run.follow(2, epoch=1, sync=True)
    run.follow(1, epoch=4)
    run.follow(4, epoch=4)
    run.follow(2, epoch=5, sync=True)


def follower_truncates_and_follows(run: Script) -> None:
    """A follower whose tail another leader never had."""
    run.follow(4, epoch=1, sync=True)
    run.follow(2, epoch=2)
    run.truncate(6)
    run.follow(3, epoch=3)
    run.crash_and_open()
    run.truncate(4)
    run.follow(2, epoch=4, sync=True)


def group_commit(run: Script) -> None:
    """While one flush is under way another record comes, and its flush waits for the next sync."""
    waiting: list[threading.Thread] = []

    def flush_too() -> None:
        run.meanwhile(None)
        run.append()
        thread = threading.Thread(target=run.log.flush)
        thread.start()
        while not run.log.partition.group_commit._waiting:  # until it has its place behind the one under way
            pass
        waiting.append(thread)

    for _ in range(3):
        run.append()
        promised = len(run.promise.history)
        run.meanwhile(flush_too)
        run.log.flush()
        run.promise = replace(run.promise, durable=promised)
        waiting.pop().join()
        run.promise = replace(run.promise, durable=promised + 1)


# --- rolling ----------------------------------------------------------------------------------------


def roll_by_time(run: Script) -> None:
    """Records whose times lie far enough apart begin a segment."""
    for number in range(12):
        run.append(1 + number % 2, sync=number == 6)


def roll_by_index_full(run: Script) -> None:
    for number in range(9):
        run.append(1 + number % 3, sync=number == 4)


def roll_and_crash(run: Script) -> None:
    """Recovery over segments of which only the last was written since the sync."""
    for _ in range(5):
        run.append()
    run.roll()
    run.append(2)
    run.crash_and_open()
    run.append()
    run.roll()
    run.crash_and_open()
    run.append(sync=True)


# --- truncating -------------------------------------------------------------------------------------


def truncate_and_crash(run: Script) -> None:
    for _ in range(7):
        run.append(2)
    run.truncate(9)
    run.crash_and_open()
    run.append(2, sync=True)
    run.truncate(1)
    run.crash_and_open()
    run.append(sync=True)


def truncate_what_was_rolled(run: Script) -> None:
    """Back into a sealed segment, whose indexes were cut to their entries."""
    for _ in range(8):
        run.append()
    run.flush()
    run.truncate(2)
    for _ in range(3):
        run.append(2)
    run.flush()


def truncate_nothing(run: Script) -> None:
    """At the log end no record goes, but an epoch may."""
    run.append(2, epoch=1)
    run.flush()
    run.assign_epoch(3)
    run.truncate(2)
    run.append(epoch=2, sync=True)
    run.truncate(50)


def restart_and_crash(run: Script) -> None:
    for _ in range(5):
        run.append(2, sync=True)
    run.truncate_fully(100)
    run.crash_and_open()
    run.append(2)
    run.truncate_fully(0)
    run.append(sync=True)
    run.crash_and_open()


# --- stopping and starting ----------------------------------------------------------------------------


def open_and_close(run: Script) -> None:
    """A log that was never written to."""
    run.close_and_open()
    run.close_and_open()
    run.append(sync=True)


def open_unclean_again_and_again(run: Script) -> None:
    """Three starts after three power cuts, with nothing or little in between."""
    for _ in range(4):
        run.append(2)
    run.crash_and_open()
    run.crash_and_open()
    run.append()
    run.crash_and_open()


def close_after_a_crash(run: Script) -> None:
    for _ in range(5):
        run.append()
    run.crash_and_open()
    run.close_and_open()
    run.append()
    run.close_and_open()


def topic_id(run: Script) -> None:
    run.append()
    run.log.partition.set_topic_id("AAECAwQFBgcICQoLDA0ODw")
    run.append(sync=True)


def read_while_written(run: Script) -> None:
    """A reader without a lock: what it does changes nothing, and it sees what the log holds."""
    run.append(2)
    reader = LogReader(DIRECTORY, disk=run._through)
    for _ in range(4):
        run.append()
        before = len(run.calls)
        list(reader.batches())
        assert len(run.calls) == before, "a reader changed the disk"
    run.truncate(3)
    list(LogReader(DIRECTORY, disk=run._through).batches())
    run.append(sync=True)


# --- producers ----------------------------------------------------------------------------------------


def producer_snapshots(run: Script) -> None:
    """At every roll one more, the oldest goes; then a crash that has to replay."""
    for sequence in range(9):
        run.produce(5, sequence)
    run.roll()
    run.produce(6, 0, sync=True)
    run.crash_and_open()
    run.produce(6, 1, sync=True)


def commits_and_aborts(run: Script) -> None:
    """Two transactions that overlap, and one that nobody ends."""
    run.produce(1, 0, transaction=True)
    run.produce(2, 0, transaction=True)
    run.abort(1)
    run.produce(3, 0, transaction=True)
    run.commit(2, sync=True)
    run.produce(1, 1, transaction=True)
    run.abort(1)
    run.roll()
    run.produce(3, 1, transaction=True)
    run.append(sync=True)


def producers_across_a_clean_stop(run: Script) -> None:
    run.produce(4, 0)
    run.produce(4, 1, transaction=True)
    run.close_and_open()
    run.abort(4)
    run.roll()
    run.close_and_open()
    run.produce(4, 2, sync=True)


# --- compaction's swap, as Kafka's cleaner leaves it ------------------------------------------------------


def _copy(disk: Disk, source: str, target: str) -> None:
    """A copy that is durable, but for its name."""
    reader = disk.open(source)
    file = disk.open(target, create=True, write=True)
    file.truncate(0)
    file.pwrite(reader.pread(reader.size(), 0), 0)
    file.sync()
    reader.close()
    file.close()


def swap(run: Script, *, olds: int, news: int, commits: bool = True, is_cut_short: bool = False) -> None:
    """The first `olds` segments are replaced by `news` with the same batches, in the order of rule S7.

    What is written is what was there, split at segments' bounds: so every batch must survive, whichever
    set a crash leaves. Without `commits` the directory is not synced before the olds go. `is_cut_short`:
    the process dies once the new ones are `.swap`, and the next start has to do the rest.
    """
    for number in range(13):
        run.append(1 + number % 2)
    run.flush()
    run.close()
    disk = run._through
    bases = [segment.base_offset for segment in run.log.partition.segments]
    assert len(bases) > olds >= news
    names = {entry.name for entry in disk.scan(DIRECTORY)}

    def of(base: int) -> list[str]:
        return [name for suffix in SEGMENT_SUFFIXES if (name := file_name(base, suffix)) in names]

    kept = bases[:news]
    joined: dict[int, list[int]] = {base: [base] for base in kept}
    joined[kept[-1]] += bases[news:olds]
    made: list[str] = []
    for base, parts in joined.items():
        log = file_name(base, ".log")
        _copy(disk, f"{DIRECTORY}/{log}", f"{DIRECTORY}/{log}.cleaned")
        file = disk.open(f"{DIRECTORY}/{log}.cleaned", write=True)
        for part in parts[1:]:
            source = disk.open(f"{DIRECTORY}/{file_name(part, '.log')}")
            file.pwrite(source.pread(source.size(), 0), file.size())
        file.sync()
        made.append(log)
        if len(parts) == 1:  # the indexes of a joined segment are left for recovery to make
            for name in of(base)[1:]:
                _copy(disk, f"{DIRECTORY}/{name}", f"{DIRECTORY}/{name}.cleaned")
                made.append(name)
    disk.sync_dir(DIRECTORY)
    for name in reversed(made):
        disk.rename(f"{DIRECTORY}/{name}.cleaned", f"{DIRECTORY}/{name}.swap")
    if commits:
        disk.sync_dir(DIRECTORY)
    if is_cut_short:
        run.open()
        return
    for base in bases[:olds]:
        for name in of(base):
            disk.rename(f"{DIRECTORY}/{name}", f"{DIRECTORY}/{name}.deleted")
    disk.sync_dir(DIRECTORY)
    for name in made:
        disk.rename(f"{DIRECTORY}/{name}.swap", f"{DIRECTORY}/{name}")
    disk.sync_dir(DIRECTORY)
    run.open()
    run.append(sync=True)


def swap_one_for_one(run: Script) -> None:
    swap(run, olds=1, news=1)


def swap_many_for_one(run: Script) -> None:
    swap(run, olds=3, news=1)


def swap_many_for_two(run: Script) -> None:
    swap(run, olds=4, news=2)


def swap_recovery(run: Script) -> None:
    """A start that finds a swap half done, and is cut short in its turn."""
    swap(run, olds=3, news=1, is_cut_short=True)


def swap_recovery_of_two(run: Script) -> None:
    swap(run, olds=4, news=2, is_cut_short=True)
    run.crash_and_open()


SCRIPTS: list[Callable[[Script], None]] = [
    one_long_batch,
    one_record_and_a_flush,
    flush_by_count,
    flush_of_nothing,
    follower_appends,
    follower_truncates_and_follows,
    group_commit,
    roll_by_time,
    roll_by_index_full,
    roll_and_crash,
    truncate_and_crash,
    truncate_what_was_rolled,
    truncate_nothing,
    restart_and_crash,
    open_and_close,
    open_unclean_again_and_again,
    close_after_a_crash,
    topic_id,
    read_while_written,
    producer_snapshots,
    commits_and_aborts,
    producers_across_a_clean_stop,
    swap_one_for_one,
    swap_many_for_one,
    swap_many_for_two,
    swap_recovery,
    swap_recovery_of_two,
]

CONFIGS: dict[Callable[[Script], None], LogConfig] = {
    roll_by_time: BY_RECORD_TIME,
    roll_by_index_full: BY_INDEX,
    flush_by_count: FLUSHED_EVERY_THIRD,
    one_long_batch: replace(CONFIG, segment_bytes=4000),
}
