"""Every call to the disk fails in turn, in eleven ways, once and for ever, under everything that a log does.

`make faults` runs all cases; here most calls fail in one of the ways, which shifts from call to call.
The last tests plant what the sweep is there to find.
"""

from __future__ import annotations

import pytest

from logstore.disk.errors import EngineError
from logstore.disk.files import Buffer
from logstore.disk.memory import MemoryFile
from logstore.errors import DamagedLog, LogDirOffline
from logstore.log.losses import Quarantine
from logstore.log.partition_log import PartitionLog
from logstore.segment.segment import LOG_SUFFIX, Extents, Segment
from logstore.segment.swap import CLEANED_SUFFIX
from tests.faults.operations import OPERATIONS, Operation
from tests.faults.sweep import ERRORS, Case, Expected, cases_of, check_case

BY_NAME = {operation.name: operation for operation in OPERATIONS}


def sweep(operation: Operation, *, every: int = 1) -> tuple[int, list[str]]:
    """Run the operation's cases, or one in `every`; how many there were, and what was found."""
    expected = Expected.of(operation)
    count, found = 0, []
    for number, case in enumerate(cases_of(operation)):
        if number % every:
            continue
        count += 1
        try:
            check_case(operation, case, expected)
        except (AssertionError, EngineError, OSError) as error:
            found.append(f"{operation.name}, {case}: {error!r}")
    return count, found


@pytest.mark.parametrize("name", BY_NAME)
def test_every_call_fails(name: str) -> None:
    """Each call or so, with one error of the twenty-two: the step is prime to their number."""
    count, found = sweep(BY_NAME[name], every=29)
    assert count > 0
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BY_NAME)
def test_every_call_fails_in_every_way(name: str) -> None:
    """All of it."""
    _, found = sweep(BY_NAME[name])
    assert not found, "\n".join(found)


def test_there_are_enough_cases() -> None:
    """Fifty operations or so and thirty thousand cases at the least, none of them counted twice."""
    assert len(OPERATIONS) >= 48
    assert len(BY_NAME) == len(OPERATIONS)
    assert len(ERRORS) == 11
    cases = {operation.name: list(cases_of(operation)) for operation in OPERATIONS}
    assert all(len(set(each)) == len(each) > 0 for each in cases.values())
    assert sum(map(len, cases.values())) >= 30_000


# --- controls: the sweep finds what is wrong ------------------------------------------------------------


def found_by(name: str) -> str:
    return "\n".join(sweep(BY_NAME[name])[1])


def test_a_half_written_batch_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """W2, W3: an append that found no room is cut back."""

    def append(self: Segment, data: Buffer, batches: Extents) -> int:
        position = self.size
        self.size += len(data)  # what is behind it is taken for what was written
        self.log_file.pwrite(data, position)
        return position

    monkeypatch.setattr(Segment, "append", append)
    assert found_by("append")


def test_an_fsync_that_is_tried_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """F1: the second one succeeds over pages that are lost."""
    sync_log = Segment.sync_log

    def sync_twice(self: Segment) -> None:
        try:
            sync_log(self)
        except OSError:
            sync_log(self)

    monkeypatch.setattr(Segment, "sync_log", sync_twice)
    assert "a loss of power leaves no" in found_by("append durably")


def test_a_failure_that_is_swallowed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: an append that says it is durable, is."""

    def sync_up_to(self: PartitionLog, offset: int) -> None:
        try:
            self.sync_segments(offset)
        except LogDirOffline:
            self.failure = None

    monkeypatch.setattr(PartitionLog, "sync_up_to", sync_up_to)
    assert "a loss of power leaves no" in found_by("append durably")


def test_an_error_that_nobody_was_told_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only documented errors come out of a log."""

    def guarded(self: PartitionLog, action: object) -> object:
        return action()  # type: ignore[operator]

    monkeypatch.setattr(PartitionLog, "guarded", guarded)
    assert "OSError" in found_by("assign an epoch")


def test_a_compaction_that_is_not_synced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7: what takes the place of segments is durable before they go."""
    sync_log = Segment.sync_log

    def sync_no_cleaned(self: Segment) -> None:
        if not self.path(LOG_SUFFIX).endswith(CLEANED_SUFFIX):
            sync_log(self)

    monkeypatch.setattr(Segment, "sync_log", sync_no_cleaned)
    operation = BY_NAME["compact"]
    expected = Expected.of(operation)
    with pytest.raises(DamagedLog):
        check_case(operation, Case(1000, "EIO", False), expected)


def test_a_cut_that_keeps_no_durable_copy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncation takes nothing that is not in quarantine by then."""
    monkeypatch.setattr(Quarantine, "_copy", lambda self, tail, path: None)
    operation = BY_NAME["truncate inside a segment"]
    expected = Expected.of(operation)
    with pytest.raises(AssertionError, match="in the log or in quarantine"):
        check_case(operation, Case(1000, "EIO", False), expected)


def test_an_undo_that_is_not_synced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put back is durable when the call returns: its copy in quarantine may go from then on."""
    monkeypatch.setattr(PartitionLog, "flush", lambda self: None)
    operation = BY_NAME["undo a truncation"]
    expected = Expected.of(operation)
    with pytest.raises(AssertionError, match="a loss of power leaves no"):
        check_case(operation, Case(1000, "EIO", False), expected)


def test_a_disk_that_keeps_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that does nothing breaks the promise of every operation that makes one."""
    monkeypatch.setattr(MemoryFile, "sync", lambda self, *, data_only=False: None)
    operation = BY_NAME["flush"]
    with pytest.raises(AssertionError, match="a loss of power leaves no"):
        check_case(operation, Case(1000, "EIO", False), Expected.of(operation))
