"""Changes of a log that an exception from outside may end: Ctrl-C, or what a signal handler raises.

Python raises such an exception between any two instructions of the main thread. A batch may be in the file
then without being counted, or counted in one place and not in another: the next append would write a second
batch at the same offset. So a change leaves a note in `log.changing` while it goes on. If the next change
finds one, an append (with its roll) is undone as far as the log end had not moved, the log start of a
deletion of records is written again, and any other change takes the log offline: recovery completes or undoes
it.

A signal handler may also call the log, in the middle of a change of its own thread, which the lock lets in.
`log.is_interrupted` tells such a change from one that an exception has ended: nothing may change then. Only
`close` may, since the handler may end the program after it; the change that it undoes raises `LogClosed`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from logstore.disk.errors import EngineError
from logstore.disk.files import remove_if_exists
from logstore.disk.marks import mark
from logstore.errors import DiskFull, LogClosed
from logstore.log.derived import rebuild_producers
from logstore.log.loading import offset_in
from logstore.segment.seal import SEAL_SUFFIX
from logstore.segment.segment import SEGMENT_SUFFIXES
from logstore.segment.segments import last_before

if TYPE_CHECKING:
    from logstore.log.partition_log import PartitionLog

APPENDING: Final = "an append"
DELETING: Final = "a deletion of records"


def begin_change(log: PartitionLog) -> None:
    """Check that the log may change, and undo what an interrupt left. The caller holds the lock.

    Raises as `PartitionLog.check_writable`, and as `mend`; `RuntimeError` in the handler of a signal that
    came in the middle of a change.
    """
    log.check_writable()
    if not log.changing:
        return
    if not log.is_interrupted:
        raise RuntimeError(
            f"{log.directory}: a signal handler cannot change the log in the middle of {log.changing}. "
            "Set a flag in the handler, or raise an exception, as sys.exit() does"
        )
    mend(log)


def end_change(log: PartitionLog) -> None:
    """Remove the note of a change. Raises `LogClosed` if a signal handler has closed the log meanwhile."""
    if not log.changing:
        raise _closed_meanwhile(log)
    log.changing = ""


def change_failed(log: PartitionLog, error: BaseException) -> None:
    """Remove the note of a change that was refused, and keep it for one that an interrupt ended.

    The caller has set `log.is_interrupted`, since even this call may be interrupted, or too deep. Raises
    `LogClosed` instead of what a change meets after a signal handler has closed the log.
    """
    if log.is_closed and isinstance(error, Exception):
        raise _closed_meanwhile(log) from error
    if isinstance(error, EngineError):
        log.changing, log.is_interrupted = "", False


def _closed_meanwhile(log: PartitionLog) -> LogClosed:
    return LogClosed(f"{log.directory} was closed in the middle of a change, which was undone")


@contextmanager
def changing(log: PartitionLog, what: str) -> Iterator[None]:
    """Hold the log's lock during a change, which an `EngineError` ends in order.

    Raises as `begin_change`.
    """
    with log.lock:
        begin_change(log)
        try:
            log.changing = what
            yield
            end_change(log)
        except BaseException as error:
            log.is_interrupted = True
            change_failed(log, error)
            raise


def mend(log: PartitionLog) -> None:
    """Undo or complete what was interrupted, or take the log offline. The caller holds the lock.

    Raises `LogDirOffline`, and `DiskFull` for a deletion of records.
    """
    if log.changing == DELETING:
        mark("interrupt: a log start is written again")
        start_at(log, log.log_start_offset)
    elif log.changing == APPENDING:
        mark("interrupt: an append is undone")
        log.or_offline(lambda: _undo_append(log))
    else:
        log.fail(InterruptedError(errno.EINTR, f"{log.changing} was interrupted"))
    log.changing, log.is_interrupted = "", False
    log.waiters.wake()


def start_at(log: PartitionLog, offset: int) -> None:
    """Let the log and its epochs start at `offset`, durably. The caller holds the lock.

    On a full disk, too: a deletion frees space, but has to write first where the log begins. The producer
    snapshots of segments below make room; recovery does without them.
    """
    try:
        _start_at(log, offset)
    except DiskFull:
        below = [each for each in log.snapshots.offsets if each < offset]
        if not below:
            raise
        for each in below:
            log.guarded(lambda each=each: log.snapshots.remove(each))  # type: ignore[misc]
        _start_at(log, offset)


def _start_at(log: PartitionLog, offset: int) -> None:
    log.publish_log_start(offset)
    log.replicated_offset = max(log.replicated_offset, offset)
    log.change_epochs(lambda epochs: epochs.truncate_from_start(offset))


def _undo_append(log: PartitionLog) -> None:
    active, end_offset = log.segments.active, log.log_end_offset
    with active.lock:
        # A roll may have sealed it, and begun to make its successor, which is empty.
        remove_if_exists(log.disk, active.path(SEAL_SUFFIX))
        active.seal = None
        for entry in log.disk.scan(log.directory):
            if entry.name.endswith(SEGMENT_SUFFIXES) and (offset_in(entry.name) or 0) > active.base_offset:
                log.disk.remove(f"{log.directory}/{entry.name}")
        log.disk.sync_dir(log.directory)
        # An entry of the batch may lead past the end.
        active.indexes.truncate_to(end_offset)
        last = last_before(active, end_offset)
        active.cut(0 if last is None else last.position + last.size, end_offset, log.clock())
    log.stretch = None
    rebuild_producers(log, end_offset)
