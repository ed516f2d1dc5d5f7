"""Every call of an operation to the disk fails in turn, in every way that a call can fail.

For each case: what comes out of the call is a documented error or nothing; what the log still shows, what a
restart of the process finds, and what a loss of power leaves are all within the operation's rules; and the
log, or the one opened in its place, takes appends again once the disk works.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import NamedTuple

from logstore.errors import LogDirOffline
from logstore.log.log import Log
from logstore.log.losses import Quarantine
from logstore.testing.disks import Fault, MemoryDisk
from tests.faults.operations import DIRECTORY, NOW_MS, Operation, Row, Rows, World, rows_of, rows_on

ERRORS = (
    "EIO", "ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EMFILE", "ENFILE", "EACCES", "ENOMEM", "short", "lost",
)  # fmt: skip
"""`short`: a write stops half way for want of room. `lost`: the call takes effect and reports EIO."""


class Case(NamedTuple):
    """The `at`-th call from now fails with `error`: once, or it and all after it."""

    at: int
    error: str
    forever: bool

    @property
    def fault(self) -> Fault:
        if self.error == "short":
            return Fault(at=self.at, errno=errno.ENOSPC, short=37, forever=self.forever)
        if self.error == "lost":
            return Fault(at=self.at, errno=errno.EIO, done=True, forever=self.forever)
        return Fault(at=self.at, errno=getattr(errno, self.error), forever=self.forever)


def prepared(operation: Operation) -> World:
    world = World(config=operation.config, is_managed=operation.is_managed)
    operation.prepare(world)
    return world


def calls_of(operation: Operation) -> int:
    """How many calls to the disk the operation makes when nothing fails."""
    world = prepared(operation)
    before = world.faulty.calls
    operation.act(world)
    return world.faulty.calls - before


def cases_of(operation: Operation) -> Iterator[Case]:
    """All of them: every call, every error, once and for ever."""
    for at in range(1, calls_of(operation) + 1):
        for error in ERRORS:
            yield Case(at, error, False)
            yield Case(at, error, True)


def rows_before(operation: Operation) -> Rows:
    """What is there when the operation begins, looked at on another disk."""
    world = prepared(operation)
    world.abandon()
    world.open(world.memory)
    return rows_of(world.log)


def durable_before(operation: Operation) -> Rows:
    """What a loss of power just before the operation leaves of it."""
    return after_power_loss(prepared(operation))


def after_power_loss(world: World) -> Rows:
    again = World.__new__(World)
    again.__dict__.update(world.__dict__)
    again.memory = world.memory.durable_image()
    again.manager = None
    again.open(again.memory)
    return rows_of(again.log)


class Expected(NamedTuple):
    """What an operation may leave: worked out once for all its cases."""

    before: Rows
    durable: Rows
    after: Rows
    stored: frozenset[Row]
    stored_durably: frozenset[Row]

    @classmethod
    def of(cls, operation: Operation) -> Expected:
        world = prepared(operation)
        stored, stored_durably = rows_on(world.memory), rows_on(world.memory.durable_image())
        operation.act(world)
        world.abandon()
        world.open(world.memory)
        before, durable = rows_before(operation), durable_before(operation)
        return cls(before, durable, rows_of(world.log), stored, stored_durably)


def check_case(operation: Operation, case: Case, expected: Expected) -> str:
    """Run one case; raises `AssertionError` where it breaks a rule. Returns how it ended, in a word."""
    world = prepared(operation)
    world.faulty.inject(case.fault)
    failed = False
    try:
        operation.act(world)
    except operation.errors:  # any other exception comes out: nobody was told to expect it
        failed = True
    possible = operation.possible(expected.before)
    needed = operation.needed(expected.before) if failed else expected.after
    promised = tuple(row for row in needed if row in expected.durable)
    if not failed and operation.makes_durable:
        promised = expected.after
    needed = tuple(sorted({*needed, *world.acknowledged}))
    promised = tuple(sorted({*promised, *world.acknowledged}))
    may_leave_gaps = operation.may_leave_gaps

    is_open = operation.ends_open and not world.log.partition.is_closed
    world.faulty.heal()
    if operation.keeps_what_it_cuts:
        check_kept(world.memory, expected.stored, "the disk")
        check_kept(world.memory.durable_image(), expected.stored_durably, "the disk, after a loss of power,")
    # Before anything else is synced, and what the operation left with it.
    check_rows(after_power_loss(world), promised, possible, "a loss of power leaves", may_leave_gaps)
    ended = "refused" if failed else "done"
    if is_open and world.log.partition.is_offline:
        ended = "offline"
        for row in rows_shown_offline(world.log, is_swapping=operation.may_leave_gaps):
            assert row in possible, f"the log, offline, shows {row}"
    elif is_open:
        check_rows(rows_of(world.log), needed, possible, "the log shows", may_leave_gaps)
        last = goes_on(world.log)
        possible = needed = rows_of(world.log)
        promised = tuple(row for row in (*promised, last) if row in possible)
        check_rows(after_power_loss(world), promised, possible, "a later power loss leaves", may_leave_gaps)

    world.abandon()
    world.open(world.memory)
    check_rows(rows_of(world.log), needed, possible, "a restart finds", may_leave_gaps)
    if operation.keeps_what_it_cuts:
        check_kept(world.memory, expected.stored, "the disk, after a restart,")
    goes_on(world.log)
    return ended


def check_rows(found: Rows, needed: Rows, possible: Rows, where: str, may_leave_gaps: bool) -> None:
    """All of `needed`, nothing but `possible`, in order and, unless gaps are allowed, in one piece."""
    for row in found:
        assert row in possible, f"{where} {row}, which was never there"
    missing = [row for row in needed if row not in found]
    assert not missing, f"{where} no {missing}"
    offsets = [row.offset for row in found]
    if may_leave_gaps:
        assert offsets == sorted(set(offsets)), f"{where} offsets out of order: {offsets}"
        return
    first = possible.index(found[0]) if found else 0
    whole = [row.offset for row in possible[first : first + len(found)]]
    assert offsets == whole, f"{where} a gap: {offsets}"


def check_kept(memory: MemoryDisk, stored: frozenset[Row], where: str) -> None:
    """All of `stored` is in the log or in quarantine, or the ledger says that it was not kept."""
    losses = [loss for loss in Quarantine(memory, DIRECTORY).losses() if loss.not_kept]
    gone = sorted(
        row
        for row in stored - rows_on(memory)
        if not any(loss.first_offset <= row.offset <= loss.last_offset for loss in losses)
    )
    assert not gone, f"{where} holds no {gone} any more, in the log or in quarantine"


def rows_shown_offline(log: Log, *, is_swapping: bool) -> Rows:
    """What can still be read; of segments in the middle of a swap, only the next opening knows."""
    try:
        return rows_of(log)
    except LogDirOffline:
        if is_swapping:
            return ()
        raise


def goes_on(log: Log) -> Row:
    """The log takes a durable append, and shows it; returns the row."""
    end = log.log_end_offset
    key = b"on" if log.partition.config.is_compacted else None
    log.append(b"on %d" % end, key=key, timestamp_ms=NOW_MS, sync=True)
    last = rows_of(log)[-1]
    assert last == Row(end, b"on %d" % end)
    return last
