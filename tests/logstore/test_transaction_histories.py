"""Any history of producers, markers, high watermarks, truncations and restarts against a naive model.

The model keeps the batches in a list and answers every question by looking at all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.config import LogConfig
from logstore.errors import InvalidTransactionState, OutOfOrderSequence
from logstore.log import read
from logstore.log.log import Log
from logstore.log.partition_log import PartitionLog
from logstore.log.producer_state import REMEMBERED_BATCHES
from logstore.log.read import FetchIsolation
from logstore.log.upkeep import advance_log_start_offset
from logstore.segment.segment import SNAPSHOT_SUFFIX
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import names
from tests.logstore.producing import ABORT, COMMIT, ORDERS, committed, end, manager_on, plain, produce

DIRECTORY = "/data/orders-0"
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, segment_index_bytes=240)
PRODUCERS = (1, 2, 3)


class Kept(NamedTuple):
    """A batch of the model. `kind`: plain, data (of a producer), transactional, commit or abort."""

    kind: str
    producer_id: int
    first: int
    last: int
    epoch: int = 0
    sequence: int = 0


@dataclass
class Known:
    """What the model says of one producer, found by reading everything from the start."""

    epoch: int = -1
    last_sequence: int = -1
    open_since: int = -1
    batches: int = 0


class Model:
    def __init__(self) -> None:
        self.batches: list[Kept] = []
        self.high_watermark = 0
        self.start = 0
        self.end = 0

    def known(self) -> dict[int, Known]:
        found: dict[int, Known] = {}
        for batch in self.batches:
            if batch.kind == "plain":
                continue
            known = found.setdefault(batch.producer_id, Known())
            if batch.epoch != known.epoch:
                known.epoch, known.last_sequence, known.batches = batch.epoch, -1, 0
            if batch.kind in ("commit", "abort"):
                known.open_since = -1
                continue
            known.last_sequence = batch.sequence + batch.last - batch.first
            known.batches = min(known.batches + 1, REMEMBERED_BATCHES)
            if batch.kind == "transactional" and known.open_since < 0:
                known.open_since = batch.first
        return found

    def fate(self, number: int) -> Kept | None:
        """The marker that decides the transactional batch at `number`; None while there is none."""
        mine = self.batches[number].producer_id
        later = self.batches[number + 1 :]
        return next((b for b in later if b.kind in ("commit", "abort") and b.producer_id == mine), None)

    def stable(self, *, waits_for_replication: bool) -> int:
        for number, batch in enumerate(self.batches):
            if batch.kind == "transactional":
                marker = self.fate(number)
                undecided = marker is None or (waits_for_replication and marker.last >= self.high_watermark)
                if undecided:
                    first = next(b.first for b in self.batches[self.opening(number) :])
                    return min(max(first, self.start), self.high_watermark)
        return self.high_watermark

    def opening(self, number: int) -> int:
        """Where the transaction of the batch at `number` begins."""
        while number and not (
            self.batches[number - 1].producer_id == self.batches[number].producer_id
            and self.batches[number - 1].kind in ("commit", "abort")
        ):
            earlier = [
                n for n in range(number)
                if self.batches[n].producer_id == self.batches[number].producer_id
                and self.batches[n].kind in ("transactional", "commit", "abort")
            ]  # fmt: skip
            if not earlier or self.batches[earlier[-1]].kind != "transactional":
                break
            number = earlier[-1]
        return number

    def committed(self, stable: int, start: int) -> list[int]:
        seen: list[int] = []
        for number, batch in enumerate(self.batches):
            if batch.kind in ("commit", "abort"):
                continue
            if batch.kind == "transactional":
                marker = self.fate(number)
                if marker is None or marker.kind == "abort":
                    continue
            seen.extend(o for o in range(batch.first, batch.last + 1) if start <= o < stable)
        return seen

    def truncate(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.last < offset]
        self.end = offset
        self.high_watermark = min(self.high_watermark, offset)
        self.start = min(self.start, offset)


class History:
    """The log and the model, in step."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.model = Model()
        self.exact = True
        """Whether the log must remember which markers are not replicated: a snapshot does not tell."""
        self.manager = manager_on(self.disk, CONFIG)
        self.log: Log = self.manager.get_or_create(ORDERS)

    def add(self, kind: str, producer_id: int, count: int, epoch: int = 0, sequence: int = 0) -> None:
        model = self.model
        last = model.end + count - 1
        model.batches.append(Kept(kind, producer_id, model.end, last, epoch, sequence))
        model.end = last + 1

    def step(self, action: str, producer_id: int, size: int) -> None:
        known = self.model.known().get(producer_id, Known())
        epoch = max(known.epoch, 0)
        sequence = known.last_sequence + 1
        match action:
            case "plain":
                plain(self.log, size)
                self.add("plain", -1, size)
            case "data" | "transactional":
                transaction = action == "transactional" or known.open_since >= 0
                produce(self.log, producer_id, sequence, count=size, epoch=epoch, transaction=transaction)
                self.add("transactional" if transaction else "data", producer_id, size, epoch, sequence)
            case "again" if known.batches:
                last = next(
                    b for b in reversed(self.model.batches)
                    if b.producer_id == producer_id and b.kind in ("data", "transactional")
                )  # fmt: skip
                info = produce(
                    self.log, producer_id, last.sequence, count=last.last - last.first + 1, epoch=epoch,
                    transaction=last.kind == "transactional",
                )  # fmt: skip
                assert info.is_duplicate
                assert (info.first_offset, info.last_offset) == (last.first, last.last)
            case "skip" if known.epoch >= 0:
                with pytest.raises((OutOfOrderSequence, InvalidTransactionState)):
                    produce(self.log, producer_id, sequence + 3, epoch=epoch, transaction=False)
            case "commit" | "abort":
                bumped = epoch + (size == 4)
                kind = COMMIT if action == "commit" else ABORT
                end(self.log, producer_id, kind, epoch=bumped)
                self.add(action, producer_id, 1, bumped)
            case "roll":
                self.log.partition.roll()
            case "replicate":
                # High watermarks lie between batches.
                ends = [b.last + 1 for b in self.model.batches if b.last >= self.model.high_watermark]
                self.model.high_watermark = [self.model.high_watermark, *ends][: size + 1][-1]
                self.log.partition.set_high_watermark(self.model.high_watermark)
            case "start":
                start = min(self.model.start + size, self.model.high_watermark)
                advance_log_start_offset(self.log.partition, start)
                self.model.start = start
            case "truncate":
                bounds = [b.first for b in self.model.batches if b.first >= self.model.start]
                if bounds:
                    self.log.truncate_to(bounds[-size:][0])
                    self.model.truncate(bounds[-size:][0])
            case "flush":
                self.log.flush()
            case "stop" | "crash" | "power cut":
                self.restart(action, producer_id * 5 + size)
        if self.model.high_watermark == self.model.end:
            self.exact = True  # every marker is replicated: nothing left to remember

    def restart(self, action: str, seed: int) -> None:
        """`crash`: all that was written is there, nothing was put in order; a power cut takes some of it."""
        if action == "stop":
            self.manager.close()
        elif action == "crash":
            self.manager.checkpoint_high_watermarks()
            self.disk = self.disk.copy()
        else:
            self.disk = self.disk.power_cut(Random(seed))
        self.manager = manager_on(self.disk, CONFIG)
        log = self.manager.get(ORDERS)
        assert log is not None
        self.log, self.exact = log, False
        if action == "power cut":
            # What was not durable may be gone, from the end; the last checkpoint's mark is as good as any.
            ends = [self.model.batches[0].first if self.model.batches else self.model.end]
            ends += [b.last + 1 for b in self.model.batches] + [self.model.start, self.model.end]
            assert log.log_end_offset in ends
            assert log.log_start_offset == self.model.start
            self.model.truncate(log.log_end_offset)
            # All that was left may have been deleted records: then the log begins anew at its start.
            first = log.partition.segments[0].base_offset
            self.model.batches = [batch for batch in self.model.batches if batch.first >= first]
            assert log.partition.high_watermark <= max(self.model.high_watermark, self.model.start)
            self.model.high_watermark = log.partition.high_watermark

    def check(self) -> None:
        log, model = self.log, self.model
        assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        assert log.partition.high_watermark == model.high_watermark
        known = model.known()
        assert {
            e.producer_id: (e.epoch, e.last_sequence, e.transaction_first_offset)
            for e in log.partition.producers()
        } == {pid: (k.epoch, k.last_sequence, k.open_since) for pid, k in known.items()}
        strict = model.stable(waits_for_replication=True)
        loose = model.stable(waits_for_replication=False)
        stable = log.partition.last_stable_offset
        assert stable == strict if self.exact else strict <= stable <= loose
        for start in {model.start, max(model.start, stable // 2)}:
            assert committed(log, start) == model.committed(stable, start)
        offset = model.start
        while (fetched := log.read_bytes(offset, 200, isolation=FetchIsolation.TXN_COMMITTED)).records:
            assert fetched.next_offset <= max(stable, offset + 1)
            offset = fetched.next_offset


ACTIONS = [
    "plain", "data", "transactional", "transactional", "transactional", "again", "skip", "commit", "abort",
    "abort", "roll", "replicate", "replicate", "start", "truncate", "stop", "crash",
    "flush", "power cut",
]  # fmt: skip
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from(PRODUCERS), st.integers(1, 4)), max_size=40
)


@settings(derandomize=True, deadline=None, max_examples=120)
@given(steps=STEPS)
def test_any_history(steps: list[tuple[str, int, int]]) -> None:
    """State, last stable offset and committed records are the model's after every step."""
    history = History()
    for step in steps:
        history.step(*step)
        history.check()
    history.step("replicate", 1, 1000)
    history.check()
    assert history.exact


@settings(derandomize=True, deadline=None, max_examples=40)
@given(steps=STEPS)
def test_snapshots_are_worth_nothing(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is derived may be lost: the log alone gives the same state and the same aborts."""
    history = History()
    for step in steps:
        history.step(*step)
    image = history.disk.copy()
    for name in names(image):
        if name.endswith((SNAPSHOT_SUFFIX, ".txnindex")):
            image.remove(f"{DIRECTORY}/{name}")
    if "/data/recovery-point-offset-checkpoint" in image.files():
        image.remove("/data/recovery-point-offset-checkpoint")
    again = manager_on(image, CONFIG).get(ORDERS)
    assert again is not None
    history.log = again
    again.partition.set_high_watermark(history.model.high_watermark)
    history.exact = False
    history.check()


def test_a_marker_above_the_high_watermark_decides_nothing_after_a_truncation_either() -> None:
    """A snapshot holds the marker's effect, and does not tell that other replicas lack the marker."""
    history = History()
    steps = [("transactional", 1, 1), ("replicate", 1, 1), ("commit", 1, 1), ("roll", 1, 1), ("plain", 1, 1)]
    for step in [*steps, ("truncate", 1, 1), ("plain", 1, 1)]:
        history.step(*step)
        history.check()
    assert history.exact
    assert history.log.partition.last_stable_offset == 0


def test_the_model_notices() -> None:
    """A log that shows what is not decided, or what was aborted, does not pass."""

    def fails(steps: list[tuple[str, int, int]]) -> bool:
        try:
            history = History()
            for step in steps:
                history.step(*step)
                history.check()
        except AssertionError:
            return True
        return False

    steps = [("transactional", 1, 1), ("plain", 2, 1), ("replicate", 1, 2), ("abort", 1, 1)]
    steps += [("replicate", 1, 1)]
    assert not fails(steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark))
        assert fails(steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "aborted_transactions", lambda log, start, end: ())
        assert fails(steps)
