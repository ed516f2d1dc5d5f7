"""The power fails before every call that a log dir makes of its disk: its marks and checkpoints.

What a partition promises is held to in `test_log_points.py`; here it is what the dir says of them: a stop
that was not clean is never called clean, no checkpoint claims more than there is, a deleted partition does
not come back, and one with its id keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from checkpoint.disks import MemoryDisk, Operation, Profile, RecordingDisk
from checkpoint.offset_checkpoint import RECOVERY_POINT_CHECKPOINT, read_offset_checkpoint
from checkpoint.topic_partition import TopicPartition
from logstore.batch import Batch, encode_batch, set_offsets_and_epoch
from logstore.config import LogConfig
from logstore.log import Log
from logstore.log_manager import LogManager
from logstore.record import Record
from tests.crash.script import CONFIG, NOW_MS, ROOT, ForgetfulDisk, Held, held_by

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 3)
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
    partitions: dict[TopicPartition, Known]
    may_be_clean: bool = False
    topic_id_is_durable: bool = False


@dataclass
class DirScript:
    """Runs operations on the partitions of one log dir and collects images on the way."""

    seed: int
    forgets: Callable[[str, str], bool] | None = None
    config: LogConfig = CONFIG
    images: list[tuple[MemoryDisk, Expected, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.expected = Expected({})
        self.disk = MemoryDisk() if self.forgets is None else ForgetfulDisk(self.forgets, [])
        self._through = RecordingDisk(self.disk, before=self._before)
        self.manager = manager_on(self._through, self.config)

    def _before(self, operation: Operation) -> None:
        for profile in Profile:
            image = self.disk.image(self.random, profile)
            self.images.append((image, self.expected, f"{operation.name} {operation.path}"))

    def _note(self, partition: TopicPartition, known: Known) -> None:
        self.expected = replace(self.expected, partitions={**self.expected.partitions, partition: known})

    def known(self, partition: TopicPartition) -> Known:
        return self.expected.partitions.get(partition, Known())

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
        log.append_as_leader(data, leader_epoch=2, now_ms=NOW_MS)

    def flush(self, partition: TopicPartition) -> None:
        self.log(partition).flush()
        known = self.known(partition)
        self._note(partition, replace(known, durable=len(known.history)))

    def commit(self, partition: TopicPartition, offset: int) -> None:
        """Move the high watermark."""
        known = self.known(partition)
        self._note(partition, replace(known, high_watermarks=(*known.high_watermarks, offset)))
        self.log(partition).set_high_watermark(offset)

    def advance_start(self, partition: TopicPartition, offset: int) -> None:
        known = self.known(partition)
        self._note(partition, replace(known, starts=(known.starts[0], offset)))
        self.log(partition).advance_log_start_offset(offset)
        self._note(partition, replace(self.known(partition), starts=(offset, offset)))

    def retain(self, now_ms: int) -> None:
        """Old segments of every partition go, and files that went before are unlinked."""
        for partition in self.expected.partitions:
            known = self.known(partition)
            highest = self.log(partition).high_watermark
            self._note(partition, replace(known, starts=(known.starts[0], highest)))
        self.manager.delete_old_segments(now_ms)
        self.manager.tick(now_ms)
        for partition in self.expected.partitions:
            start = self.log(partition).log_start_offset
            self._note(partition, replace(self.known(partition), starts=(start, start)))

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        known = self.known(partition)
        kept = tuple(held for held in known.history if held.next_offset <= offset)
        self._note(partition, replace(known, durable=min(known.durable, len(kept))))
        self.log(partition).truncate_to(offset)
        self._note(partition, replace(self.known(partition), history=kept))

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
        for partition, known in self.expected.partitions.items():
            self._note(partition, replace(known, durable=len(known.history)))
        self.manager = manager_on(self._through, self.config)
        self.expected = replace(self.expected, may_be_clean=False)


def manager_on(disk: MemoryDisk | RecordingDisk, config: LogConfig = CONFIG) -> LogManager:
    return LogManager([ROOT], disk=disk, clock=lambda: NOW_MS, random=Random(5), config=config)


def check(image: MemoryDisk, expected: Expected) -> None:
    points = read_offset_checkpoint(image, ROOT, RECOVERY_POINT_CHECKPOINT) if image.files() else {}
    manager = manager_on(image)
    assert not manager.offline_dirs
    assert not manager.damaged, f"{manager.damaged} after nothing but a power cut"
    assert expected.may_be_clean or not manager.was_clean, "I14: an unclean stop that is called clean"
    for partition, known in expected.partitions.items():
        log = manager.get(partition)
        if log is None:
            assert known.durable == 0 or known.deletion != "none", f"{partition} is gone"
            continue
        assert known.deletion != "done", f"{partition} came back"
        start = log.log_start_offset
        assert known.starts[0] <= start <= known.starts[1]
        served = tuple(held for held in known.history if held.next_offset > start)
        found = held_by(log)
        assert found == served[: len(found)]
        assert len(found) >= sum(held.next_offset > start for held in known.history[: known.durable])
        assert start <= log.high_watermark <= log.log_end_offset
        assert manager.checkpointed_high_watermark(partition) in known.high_watermarks
        assert points.get(partition, 0) <= log.log_end_offset, "a checkpoint claims more than there is"
        if expected.topic_id_is_durable and partition == ORDERS and known.deletion == "none":
            assert log.topic_id == TOPIC_ID


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


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "script",
    [two_partitions, clean_stops, truncations, deletions, retention],
    ids=lambda script: script.__name__,
)
def test_every_point(script: Callable[[DirScript], None], seed: int) -> None:
    run = DirScript(seed)
    script(run)
    assert len(run.images) > 50
    for image, expected, call in run.images:
        try:
            check(image, expected)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, power cut before {call}: {error}") from error


@pytest.mark.parametrize(
    "script", [clean_stops, deletions, two_partitions], ids=lambda script: script.__name__
)
def test_the_checker_notices_names_that_are_not_synced(script: Callable[[DirScript], None]) -> None:
    """A mark that comes back, a partition that comes back, one that never was there."""
    for seed in range(4):
        run = DirScript(seed, lambda call, path: (call, path) == ("sync_dir", ROOT))
        script(run)
        try:
            for image, expected, _ in run.images:
                check(image, expected)
        except AssertionError:
            return
    raise AssertionError("nobody noticed")


def test_the_checker_notices_renames_that_are_not_synced() -> None:
    """The checkpoint forgets a log start that the first segment implies: by then the others must be gone."""
    for seed in range(4):
        run = DirScript(seed, lambda call, path: (call, path) == ("sync_dir", f"{ROOT}/orders-0"))
        retention(run)
        try:
            for image, expected, _ in run.images:
                check(image, expected)
        except AssertionError:
            return
    raise AssertionError("nobody noticed")
