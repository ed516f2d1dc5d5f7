"""A log dir with every kind of file, what a program gets to see of it, and how a changed byte is noticed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from logstore.cli.inspection import role_of
from logstore.cli.whole_trees import verify_tree
from logstore.config import LogConfig
from logstore.disk.errors import EngineError
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch, encode_marker_batch
from logstore.format.record import ControlType, EndTransactionMarker, Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.manager_config import LogManagerConfig
from logstore.log.producer_state import AppendOrigin, ProducerStateConfig
from logstore.log.upkeep import advance_log_start_offset
from logstore.testing.disks import MemoryDisk

ROOT = "/data"
NOW_MS = 1_700_000_000_000
ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 3)
CONFIG = LogConfig(segment_bytes=60_000, index_interval_bytes=1000, segment_index_bytes=4096)
SETTINGS = LogManagerConfig(producers=ProducerStateConfig(transaction_partition_verification_enable=False))
TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"


def manager_on(disk: Disk) -> LogManager:
    return LogManager(
        [ROOT], disk=disk, clock=lambda: NOW_MS, random=random.Random(5), config=CONFIG, settings=SETTINGS
    )


def reference() -> MemoryDisk:
    """The dir, closed in order: sealed and active segments, producers, aborts, epochs, a loss, leftovers."""
    disk = MemoryDisk(directories=[ROOT])
    manager = manager_on(disk)
    chance = random.Random(11)
    for partition, count in ((ORDERS, 240), (PAYMENTS, 80)):
        log = manager.get_or_create(partition, topic_id=TOPIC_ID)
        sequences = {7: 0, 8: 0}
        for number in range(count):
            records = [
                Record(delta, NOW_MS + chance.randrange(5000), b"k%d" % delta, chance.randbytes(180))
                for delta in range(chance.randrange(1, 8))
            ]
            producer = (-1, 7, 8)[number % 3]
            data = encode_batch(
                records,
                producer_id=producer,
                producer_epoch=-1 if producer < 0 else 0,
                base_sequence=sequences.get(producer, -1),
                is_transactional=producer == 8,
            )
            epoch = number // 50
            append_as_leader(log.partition, data, leader_epoch=epoch, now_ms=NOW_MS)
            if producer >= 0:
                sequences[producer] += len(records)
            if number % 30 == 29 or number == count - 1:
                marker = encode_marker_batch(
                    EndTransactionMarker(ControlType.ABORT if number % 60 else ControlType.COMMIT, 0),
                    producer_id=8,
                    producer_epoch=0,
                    timestamp_ms=NOW_MS,
                )
                append_as_leader(
                    log.partition, marker, leader_epoch=epoch, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR
                )
        log.partition.assign_epoch(9, log.log_end_offset)
        log.partition.set_high_watermark(log.log_end_offset - 5)
    orders = manager.logs()[ORDERS]
    orders.truncate_to(orders.log_end_offset - 20)
    orders.partition.set_high_watermark(orders.log_end_offset - 3)
    advance_log_start_offset(orders.partition, 3)
    manager.close()
    # What a deletion leaves until its delay is over, and what only a broker writes.
    for path, content in (
        (f"{ROOT}/payments-3/{0:020d}.timeindex.deleted", bytes(60)),
        (f"{ROOT}/meta.properties", b"#\nversion=1\nnode.id=3\ncluster.id=AAECAwQFBgcICQoLDA0ODw\n"),
        (f"{ROOT}/cleaner-offset-checkpoint", b"0\n1\norders 0 40\n"),
    ):
        file = disk.open(path, create=True, write=True)
        file.pwrite(content, 0)
        file.close()
    manager = manager_on(disk)
    manager.close()
    file = disk.open(f"{ROOT}/payments-3/{0:020d}.timeindex.deleted", create=True, write=True)
    file.pwrite(bytes(60), 0)
    return disk.copy()


def kind_of(path: str) -> str:
    """The kind of file, for counting."""
    name = path.rsplit("/", 1)[1]
    if "/lost/" in path:
        return "lost/"
    role = role_of(name)
    if role is None:
        return name
    return f".{role.kind}" + (f".{role.state}" if role.state else "")


# --- what a program sees -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """Everything that the logs of the dir answer; `complaint` is what opening or reading said."""

    logs: tuple[object, ...] = ()
    complaint: str = ""


def seen_on(disk: Disk) -> Seen:
    """Open the dir and ask its logs for all they have."""
    try:
        manager = manager_on(disk)
    except (EngineError, OSError) as error:
        return Seen(complaint=str(error))
    try:
        if manager.damaged or manager.offline_dirs:
            return Seen(complaint=f"{manager.damaged} {manager.offline_dirs}")
        logs = manager.logs()
        notes = [note for log in logs.values() for note in log.partition.report.notes]
        return Seen(tuple(_answers(manager, log) for log in logs.values()), "; ".join(notes))
    except EngineError as error:
        return Seen(complaint=str(error))
    finally:
        manager.close()


def _answers(manager: LogManager, log: Log) -> tuple[object, ...]:
    start = log.log_start_offset
    return (
        log.partition.topic_partition,
        log.partition.topic_id,
        start,
        log.log_end_offset,
        log.partition.high_watermark,
        manager.checkpointed_high_watermark(log.partition.topic_partition),
        log.partition.epochs,
        tuple(bytes(batch.buffer) for batch in log.read_batches()),
        tuple((record.offset, record.timestamp_ms, record.key, record.value) for record in log.read()),
        tuple(log.offset_for_timestamp(NOW_MS + after) for after in range(0, 5001, 500)),
        tuple(log.read_bytes(offset, 1).position for offset in range(start, log.log_end_offset, 17)),
        tuple(entry for segment in log.partition.segments for entry in segment.aborts.index.entries),
        log.partition.producer_state.encode_snapshot(),
    )


# --- noticing ---------------------------------------------------------------------------------------------


def verified(disk: Disk, path: str) -> str | None:
    """What `logstore verify` finds damaged: in the partition of `path` first, then in the whole dir."""
    directory = path.rsplit("/", 1)[0].split("/lost", 1)[0]
    for place in dict.fromkeys((directory, ROOT)):
        for finding in verify_tree(disk, place, lambda _: None):
            if finding.is_damage:
                return str(finding)
    return None


def verdict(disk: MemoryDisk, path: str, truth: Seen) -> str:
    """`verified`, `opened` (it or a read complained), `harmless`, or `believed`."""
    if verified(disk, path) is not None:
        return "verified"
    image = disk.copy()
    seen = seen_on(image)
    if seen.complaint:
        return "opened"
    if seen == truth and seen_on(image) == truth:
        return "harmless"
    return "believed"
