"""Every setting does what it says: one test a setting, named for it, and none without."""

from __future__ import annotations

import gzip
import sys
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from logstore.checkpoint.entry_files import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from logstore.config import MAX_LONG, LogConfig, kafka_name
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryFile
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import (
    DiskFull,
    InvalidConfig,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTransactionState,
    PolicyViolation,
    RecordTooLarge,
)
from logstore.format.batch import HEADER_BYTES, encode_batch
from logstore.format.compression import Codec
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.manager_config import PARTS, LogManagerConfig, settings_of
from logstore.replication import InProcessCluster, NodeConfig
from logstore.replication.driver import three_nodes
from logstore.replication.messages import NewTopic, ProduceResponse
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk
from tests.logstore.logs import DIRECTORY, content_of, log_file, names

NOW_MS = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)
WORDS = b" ".join(b"%d and then some" % (number % 97) for number in range(2000))


def one(time_ms: int = NOW_MS) -> bytes:
    return encode_batch([Record(0, time_ms, b"k", b"value")])


BATCH = len(one())


def opened(disk: MemoryDisk | FaultyDisk | None = None, **settings: str) -> Log:
    """A log with these settings, given as Kafka gives them: `segment_bytes="100"` is segment.bytes=100."""
    config = LogConfig.from_kafka({kafka_name(name): text for name, text in settings.items()})
    return Log.open(DIRECTORY, config, disk=disk or MemoryDisk(directories=["/data"]), clock=lambda: NOW_MS)


def filled(count: int, disk: MemoryDisk | None = None, **settings: str) -> Log:
    log = opened(disk, **settings)
    for _ in range(count):
        log.append_batches(one())
    return log


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.partition.segments]


def managed(disk: MemoryDisk, **settings: str) -> LogManager:
    """A node's logs with these broker settings."""
    config = LogManagerConfig.from_kafka({kafka_name(name): text for name, text in settings.items()})
    return LogManager(["/a"], disk=disk, clock=lambda: NOW_MS, random=Random(1), settings=config)


def times_written(disk: MemoryDisk, manager: LogManager, name: str, until_ms: int) -> list[int]:
    """At which moments from now on the checkpoint is written, ticking at every deadline."""
    found, now_ms = [], NOW_MS
    while (now_ms := max(manager.deadline_ms, now_ms + 1)) <= NOW_MS + until_ms:
        if f"/a/{name}" in disk.files():
            disk.remove(f"/a/{name}")
        manager.tick(now_ms)
        if f"/a/{name}" in disk.files():
            found.append(now_ms - NOW_MS)
    return found


# --- a topic's ---------------------------------------------------------------------------------------


def test_segment_bytes() -> None:
    assert bases(filled(7, segment_bytes=str(3 * BATCH))) == [0, 3, 6]
    assert bases(filled(7, segment_bytes=str(3 * BATCH - 1))) == [0, 2, 4, 6]


def test_segment_ms() -> None:
    log = opened(segment_ms="1000")
    for time_ms in (0, 1000, 1001, 2001, 2002):
        log.append_batches(one(NOW_MS + time_ms))
    assert bases(log) == [0, 2, 4]


def test_segment_jitter_ms() -> None:
    log = opened(segment_ms="1000", segment_jitter_ms="900")
    waits = []
    for _ in range(20):
        wait_ms = 1000 - log.partition.segments[-1].jitter_ms
        assert 100 < wait_ms <= 1000
        waits.append(wait_ms)
        for time_ms in (0, wait_ms, wait_ms + 1):
            before = len(log.partition.segments)
            log.append_batches(one(NOW_MS + time_ms))
            assert len(log.partition.segments) - before == (time_ms > wait_ms)
        log.partition.roll()
    assert len(set(waits)) > 10


def test_segment_index_bytes() -> None:
    """Four offsets of eight bytes fit, and a segment's first batch needs none."""
    log = filled(11, index_interval_bytes="0", segment_index_bytes="39")
    assert bases(log) == [0, 5, 10]


def test_index_interval_bytes() -> None:
    counts = [
        filled(20, index_interval_bytes=str(size)).partition.segments[0].indexes.offsets.entry_count
        for size in (0, BATCH, 2 * BATCH, 100 * BATCH)
    ]
    assert counts == [19, 9, 6, 0]


def test_flush_messages() -> None:
    log = opened(flush_messages="3")
    points = []
    for _ in range(7):
        log.append_batches(one())
        points.append(log.partition.recovery_point)
    assert points == [0, 0, 3, 3, 3, 6, 6]


def test_flush_ms() -> None:
    log = filled(3, flush_ms="1000")
    log.maintain(NOW_MS)
    log.maintain(NOW_MS + 999)
    assert log.partition.recovery_point == 0
    log.maintain(NOW_MS + 1000)
    assert log.partition.recovery_point == 3


def test_flush_ms_after_the_clock_was_set_back() -> None:
    """It would have had to come to the old time again."""
    log = filled(3, flush_ms="1000")
    log.maintain(NOW_MS)
    log.maintain(NOW_MS - 3_600_000)
    assert log.partition.recovery_point == 0
    log.maintain(NOW_MS - 3_600_000 + 1000)
    assert log.partition.recovery_point == 3


def test_retention_bytes() -> None:
    log = filled(9, segment_bytes=str(3 * BATCH), retention_bytes=str(6 * BATCH))
    log.maintain()
    assert bases(log) == [3, 6]
    log = filled(9, segment_bytes=str(3 * BATCH), retention_bytes="-1")
    assert log.maintain() == ()


def test_retention_ms() -> None:
    log = filled(9, segment_bytes=str(3 * BATCH), retention_ms="1000")
    assert log.maintain(NOW_MS + 1000) == ()
    assert len(log.maintain(NOW_MS + 1001)) == 3
    assert filled(9, retention_ms="-1").maintain(NOW_MS * 2) == ()


def test_retain_for_cursors() -> None:
    for retains, first in (("true", 3), ("false", 9)):
        log = filled(9, segment_bytes=str(3 * BATCH), retention_ms="1000", retain_for_cursors=retains)
        log.cursor("slow").commit(4)
        log.maintain(NOW_MS + 1001)
        assert log.log_start_offset == first


def test_max_message_bytes() -> None:
    assert filled(1, max_message_bytes=str(BATCH)).log_end_offset == 1
    with pytest.raises(RecordTooLarge):
        filled(1, max_message_bytes=str(BATCH - 1))


def test_max_compaction_lag_ms() -> None:
    """A record must not sit in an active segment, where nobody compacts it, for longer than this."""
    log = opened(cleanup_policy="compact", max_compaction_lag_ms="500")
    for time_ms in (0, 500, 501):
        log.append_batches(one(NOW_MS + time_ms))
    assert bases(log) == [0, 2]


def keyed(key: bytes, value: bytes | None = b"value", time_ms: int = NOW_MS) -> bytes:
    return encode_batch([Record(0, time_ms, key, value)])


def put(log: Log, *keys: bytes) -> None:
    """A segment of its own with these keys."""
    for key in keys:
        log.append_batches(keyed(key))
    log.partition.roll()


def keys_of(log: Log) -> list[bytes | None]:
    return [record.key for record in log.read()]


def test_delete_retention_ms() -> None:
    """A tombstone is there for as long as that after the pass that saw it first, whenever others come."""
    log = opened(cleanup_policy="compact", delete_retention_ms="1000")
    log.append_batches(keyed(b"gone"))
    log.append_batches(keyed(b"gone", None, NOW_MS - 900_000))
    log.partition.roll()
    found = {}
    for wait_ms in (0, 999, 1000):
        put(log, b"%d" % wait_ms)
        log.compact(NOW_MS + wait_ms)
        found[wait_ms] = [record.value for record in log.read() if record.key == b"gone"]
    assert found == {0: [None], 999: [None], 1000: []}


def test_min_compaction_lag_ms() -> None:
    """Whole segments wait for their youngest record."""
    log = opened(cleanup_policy="compact", min_compaction_lag_ms="1000")
    put(log, b"a", b"a")
    log.append_batches(keyed(b"b", time_ms=NOW_MS - 5000))
    log.append_batches(keyed(b"b", time_ms=NOW_MS + 1))
    log.partition.roll()
    found = {}
    for wait_ms in (999, 1000, 1001):
        log.maintain(NOW_MS + wait_ms)
        found[wait_ms] = keys_of(log)
    assert found == {999: [b"a", b"a", b"b", b"b"], 1000: [b"a", b"b", b"b"], 1001: [b"a", b"b"]}


@pytest.mark.parametrize(("ratio", "is_cleaned"), [("0.24", True), ("0.25", False), ("0.26", False)])
def test_min_cleanable_dirty_ratio(ratio: str, is_cleaned: bool) -> None:
    """Three batches are clean, one is dirty: a quarter, which has to be more than the setting."""
    log = opened(cleanup_policy="compact", min_cleanable_dirty_ratio=ratio)
    put(log, b"a", b"b", b"c")
    log.compact()
    put(log, b"a")
    log.maintain()
    assert keys_of(log) == ([b"b", b"c", b"a"] if is_cleaned else [b"a", b"b", b"c", b"a"])


def test_cleanup_policy() -> None:
    with pytest.raises(InvalidRecord, match="key"):
        opened(cleanup_policy="compact").append(b"no key")
    with pytest.raises(PolicyViolation):
        filled(3, cleanup_policy="compact").delete_records(1)
    assert filled(3, cleanup_policy="delete").delete_records(1) == 1


def test_an_empty_cleanup_policy_keeps_everything() -> None:
    """Kafka takes it, and means this."""
    log = filled(9, cleanup_policy="", retention_bytes="0", retention_ms="0")
    log.append(b"no key")
    log.maintain(NOW_MS)
    assert (log.log_start_offset, log.log_end_offset) == (0, 10)
    with pytest.raises(PolicyViolation, match="all kept"):
        log.delete_records(1)


def test_file_delete_delay_ms() -> None:
    disk = MemoryDisk(directories=["/data"])
    log = filled(3, disk, retention_bytes="0", file_delete_delay_ms="700")
    log.maintain(NOW_MS)
    log.maintain(NOW_MS + 699)
    assert f"{log_file(0)}.deleted" in names(disk)
    log.maintain(NOW_MS + 700)
    assert f"{log_file(0)}.deleted" not in names(disk)


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_compression_type(codec: str) -> None:
    """For what the application appends, and for what producers send in another codec; else it is theirs."""
    target = Codec.NONE if codec == "uncompressed" else Codec[codec.upper()]
    other = Codec.GZIP if target is not Codec.GZIP else Codec.NONE
    theirs = encode_batch([Record(0, NOW_MS, b"k", WORDS)], codec=other)
    log = opened(compression_type=codec)
    log.append(WORDS)
    log.append_batches(theirs)
    assert [batch.codec for batch in log.read_batches()] == [target, target]
    log = opened(compression_type="producer")
    log.append_batches(theirs)
    assert [batch.codec for batch in log.read_batches()] == [other]


def stored_sizes(codec: str, level: str) -> list[int]:
    """Bytes of the same records: appended as values, and recompressed from a producer's batch."""
    log = opened(None, **{"compression_type": codec, f"compression_{codec}_level": level})
    log.append(WORDS)
    log.append([WORDS, WORDS])
    log.append_batches(encode_batch([Record(0, NOW_MS, None, WORDS)]))
    return [batch.size for batch in log.read_batches()]


def level_counts(codec: str, fast: str, small: str) -> None:
    pairs = zip(stored_sizes(codec, fast), stored_sizes(codec, small), strict=True)
    assert all(larger > smaller for larger, smaller in pairs)


def test_compression_gzip_level() -> None:
    level_counts("gzip", "1", "9")
    log = opened(compression_type="gzip", compression_gzip_level="9")
    log.append(WORDS)
    payload = bytes(next(log.read_batches()).buffer)[HEADER_BYTES:]
    assert WORDS in gzip.decompress(payload)


def test_compression_lz4_level() -> None:
    level_counts("lz4", "9", "12")


def test_compression_zstd_level() -> None:
    level_counts("zstd", "-50", "19")


def test_preallocate() -> None:
    """The file has its full size at once; what is read, and what is left of it, is the batches."""
    disk = MemoryDisk(directories=["/data"])
    log = filled(2, disk, preallocate="true", segment_bytes=str(3 * BATCH))
    assert (len(content_of(disk, log_file(0))), log.size) == (3 * BATCH, 2 * BATCH)
    assert [record.offset for record in log.read()] == [0, 1]
    for _ in range(2):
        log.append_batches(one())
    assert len(content_of(disk, log_file(0))) == 3 * BATCH
    assert (len(content_of(disk, log_file(3))), log.partition.segments[1].size) == (3 * BATCH, BATCH)
    log.partition.roll()
    assert len(content_of(disk, log_file(3))) == BATCH, "sealed before it was full"
    log.close()
    assert len(content_of(disk, log_file(4))) == 0


def test_row_52_a_preallocated_file_that_is_opened_again() -> None:
    disk = MemoryDisk(directories=["/data"])
    log = filled(2, disk, preallocate="true", segment_bytes="5000")
    assert len(content_of(disk, log_file(0))) == 5000
    log.close()
    assert len(content_of(disk, log_file(0))) == 2 * BATCH
    log = opened(disk, preallocate="true", segment_bytes="5000")
    assert log.append_batches(one()).first_offset == 2
    assert len(content_of(disk, log_file(0))) == 3 * BATCH


def test_a_preallocated_file_after_a_crash() -> None:
    disk = MemoryDisk(directories=["/data"])
    log = filled(2, disk, preallocate="true", segment_bytes="5000")
    log.flush()
    image = disk.durable_image()
    log = opened(image, preallocate="true", segment_bytes="5000")
    assert (log.log_end_offset, len(content_of(image, log_file(0)))) == (2, 2 * BATCH)
    assert log.losses() == [], "room that was not used yet is no loss"


def test_no_room_to_preallocate() -> None:
    """The roll is refused and can be tried again: no empty file keeps the next one's name."""
    memory = MemoryDisk(directories=["/data"])
    disk = FaultyDisk(memory)
    log = opened(disk, preallocate="true", segment_bytes=str(2 * BATCH))
    log.append_batches(one())
    log.append_batches(one())
    disk.inject(Fault(operation="truncate", path=lambda path: path.endswith(log_file(2)), errno=28))
    with pytest.raises(DiskFull):
        log.append_batches(one())
    assert log.append_batches(one()).first_offset == 2


def test_message_timestamp_type() -> None:
    log = opened(message_timestamp_type="LogAppendTime")
    log.append_batches(one(NOW_MS - 5000))
    assert [record.timestamp_ms for record in log.read()] == [NOW_MS]
    log = opened(message_timestamp_type="CreateTime")
    log.append_batches(one(NOW_MS - 5000))
    assert [record.timestamp_ms for record in log.read()] == [NOW_MS - 5000]


def accepts(time_ms: int, **settings: str) -> bool:
    try:
        opened(None, **settings).append_batches(one(NOW_MS + time_ms))
    except InvalidTimestamp:
        return False
    return True


def test_message_timestamp_before_max_ms() -> None:
    found = [accepts(time, message_timestamp_before_max_ms="1000") for time in (-1001, -1000, 0, 1000_000)]
    assert found == [False, True, True, True]


def test_message_timestamp_after_max_ms() -> None:
    found = [accepts(time, message_timestamp_after_max_ms="1000") for time in (-1000_000, 0, 1000, 1001)]
    assert found == [True, True, True, False]


def test_message_timestamp_difference_max_ms() -> None:
    """Both windows, unless one has a value of its own."""
    both = {"message_timestamp_difference_max_ms": "1000"}
    assert [accepts(time, **both) for time in (-1001, -1000, 1000, 1001)] == [False, True, True, False]
    own = {"message_timestamp_difference_max_ms": "10", "message_timestamp_after_max_ms": "1000"}
    assert [accepts(time, **own) for time in (-11, -10, 1000, 1001)] == [False, True, True, False]


def stored(**settings: str) -> bytes:
    log = opened(None, **settings)
    log.append_batches(one())
    return log.read_bytes(0).records


def test_message_format_version() -> None:
    for each in ("0.9.0", "0.10.2-IV0", "2.0.1", " 3.9 "):
        assert stored(message_format_version=each) == stored()
    for wrong in ("", "x", "0.10", "2.9", "4.0", "2,0", "2.0-"):
        with pytest.raises(InvalidConfig, match="expected one of Kafka"):
            LogConfig(message_format_version=wrong)


def test_message_downconversion_enable() -> None:
    assert stored(message_downconversion_enable="false") == stored()


def cluster_of_two(disks: dict[int, MemoryDisk], **settings: Any) -> InProcessCluster:
    node = NodeConfig(
        node_id=0,
        zookeeper_session_timeout_ms=6000,
        replica_lag_time_max_ms=6000,
        request_timeout_ms=5000,
        **settings,
    )
    cluster = InProcessCluster(three_nodes(base=node)[:2], disk_of=lambda node_id: disks[node_id])
    cluster.start()
    return cluster


def with_topic(**configs: str) -> InProcessCluster:
    """Two nodes, both with a replica; node 0 leads."""
    cluster = cluster_of_two({0: MemoryDisk(), 1: MemoryDisk()})
    settings = {kafka_name(name): text for name, text in configs.items()}
    cluster.create_topic(NewTopic("orders", assignment=((0, 1),), configs=settings))
    return cluster


def error_of(cluster: InProcessCluster) -> ErrorCode:
    reply = cluster.produce(ORDERS, one(), timeout_ms=2000)
    cluster.run_until(lambda: reply.is_done, 60_000)
    assert isinstance(reply.body, ProduceResponse)
    return reply.body.partitions[ORDERS].error


@pytest.mark.parametrize(("wanted", "answer"), [("1", ErrorCode.NONE), ("2", ErrorCode.NOT_ENOUGH_REPLICAS)])
def test_min_insync_replicas(wanted: str, answer: ErrorCode) -> None:
    cluster = with_topic(min_insync_replicas=wanted)
    assert error_of(cluster) is ErrorCode.NONE
    cluster.kill_node(1)
    cluster.advance(20_000)
    assert error_of(cluster) is answer


@pytest.mark.parametrize(("wanted", "flushed"), [("replicated", 0), ("synced", 1)])
def test_durability_level(wanted: str, flushed: int) -> None:
    """An acknowledgement of acks=all says what every in-sync replica has done with the record."""
    cluster = with_topic(durability_level=wanted)
    assert error_of(cluster) is ErrorCode.NONE
    logs = [node.replicas.partitions[ORDERS].log for node in cluster.nodes.values()]
    assert [log.recovery_point for log in logs] == [flushed, flushed]


@pytest.mark.parametrize(("wanted", "leader"), [("false", None), ("true", 1)])
def test_unclean_leader_election_enable(wanted: str, leader: int | None) -> None:
    """Node 1 missed a record that was acknowledged; may it lead when node 0 is gone for good?"""
    cluster = with_topic(unclean_leader_election_enable=wanted)
    assert error_of(cluster) is ErrorCode.NONE
    cluster.kill_node(1)
    cluster.advance(20_000)
    assert error_of(cluster) is ErrorCode.NONE
    cluster.kill_node(0)
    cluster.advance(20_000)
    cluster.start_node(1)
    cluster.advance(20_000)
    assert cluster.leader_of(ORDERS) == leader


def takes_only_the_default(name: str, other: str, reason: str) -> None:
    """Refused by name, with the reason; but what a broker's tool writes out can be read in."""
    default = LogConfig().to_kafka()[name]
    assert LogConfig.from_kafka({name: default}) == LogConfig()
    with pytest.raises(InvalidConfig, match=f"{name} is .*{reason}"):
        LogConfig.from_kafka({name: other})


def test_leader_replication_throttled_replicas() -> None:
    changed = LogConfig.from_kafka({"leader.replication.throttled.replicas": "0:1,1:2"})
    assert changed.leader_replication_throttled_replicas == "0:1,1:2"
    with pytest.raises(InvalidConfig, match="expected partition:broker"):
        LogConfig.from_kafka({"leader.replication.throttled.replicas": "all"})


def test_follower_replication_throttled_replicas() -> None:
    changed = LogConfig.from_kafka({"follower.replication.throttled.replicas": "*"})
    assert changed.follower_replication_throttled_replicas == "*"
    with pytest.raises(InvalidConfig, match="expected partition:broker"):
        LogConfig.from_kafka({"follower.replication.throttled.replicas": "0:1,"})


def test_remote_storage_enable() -> None:
    takes_only_the_default("remote.storage.enable", "true", "no tiered storage")


def test_local_retention_ms() -> None:
    takes_only_the_default("local.retention.ms", "1000", "no tiered storage")


def test_local_retention_bytes() -> None:
    takes_only_the_default("local.retention.bytes", "1000", "no tiered storage")


def test_remote_log_copy_disable() -> None:
    takes_only_the_default("remote.log.copy.disable", "true", "no tiered storage")


def test_remote_log_delete_on_disable() -> None:
    takes_only_the_default("remote.log.delete.on.disable", "true", "no tiered storage")


# --- changed while the log is open -------------------------------------------------------------------


def test_settings_that_change_take_effect_at_once_or_with_the_next_segment() -> None:
    """As in Kafka: sizes and ages are looked up when needed, an index keeps what it was made with."""
    disk = MemoryDisk()
    manager = managed(disk)
    log = manager.get_or_create(ORDERS)
    for _ in range(6):
        append_as_leader(log.partition, one(), leader_epoch=0, now_ms=NOW_MS)
    new = LogConfig(segment_bytes=2 * BATCH, index_interval_bytes=0, flush_ms=50, segment_jitter_ms=1000)
    manager.get_or_create(ORDERS, config=new)
    assert manager.deadline_ms == NOW_MS + 50
    for _ in range(3):
        append_as_leader(log.partition, one(), leader_epoch=0, now_ms=NOW_MS)
    assert bases(log) == [0, 6, 8]
    assert [segment.indexes.offsets.entry_count for segment in log.partition.segments] == [0, 1, 0]
    assert log.partition.segments[0].jitter_ms == 0 < log.partition.segments[1].jitter_ms


# --- a node's ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"log.segment.bytes": "5000"}, "segment_bytes", 5000),
        ({"log.roll.hours": "2"}, "segment_ms", 7_200_000),
        ({"log.roll.hours": "2", "log.roll.ms": "5"}, "segment_ms", 5),
        ({"log.roll.jitter.ms": "7", "log.roll.jitter.hours": "1"}, "segment_jitter_ms", 7),
        ({"log.retention.hours": "2"}, "retention_ms", 7_200_000),
        ({"log.retention.minutes": "3", "log.retention.hours": "2"}, "retention_ms", 180_000),
        (
            {"log.retention.hours": "2", "log.retention.ms": "-1", "log.retention.minutes": "3"},
            "retention_ms",
            -1,
        ),
        ({"log.retention.hours": "-1"}, "retention_ms", -1),
        ({"log.flush.scheduler.interval.ms": "500"}, "flush_ms", 500),
        ({"log.flush.scheduler.interval.ms": "500", "log.flush.interval.ms": "9"}, "flush_ms", 9),
        ({"message.max.bytes": "9"}, "max_message_bytes", 9),
        ({"log.cleaner.min.cleanable.ratio": "0.25"}, "min_cleanable_dirty_ratio", 0.25),
        ({"log.segment.delete.delay.ms": "9"}, "file_delete_delay_ms", 9),
        ({"log.preallocate": "true"}, "preallocate", True),
    ],
)
def test_topic_defaults(given: dict[str, str], name: str, value: object) -> None:
    """A broker's names for them, and which one wins; topics without settings of their own go by these."""
    config = LogManagerConfig.from_kafka(given)
    assert config.topic_defaults == replace(LogConfig(), **{name: value})  # type: ignore[arg-type]
    manager = LogManager(["/a"], disk=MemoryDisk(), clock=lambda: 0, random=Random(1), settings=config)
    assert getattr(manager.get_or_create(ORDERS).partition.config, name) == value
    own = manager.get_or_create(TopicPartition("own", 0), config=LogConfig())
    assert own.partition.config == LogConfig()


def test_log_dirs() -> None:
    assert LogManagerConfig.from_kafka({"log.dirs": "/a, /b"}).directories == ("/a", "/b")
    assert LogManagerConfig.from_kafka({"log.dir": "/c"}).directories == ("/c",)
    assert LogManagerConfig.from_kafka({"log.dir": "/c", "log.dirs": "/a"}).directories == ("/a",)
    with pytest.raises(InvalidConfig, match=r"log\.dirs is empty"):
        _ = LogManagerConfig().directories


def test_log_retention_check_interval_ms() -> None:
    """The second look is that much after the first."""
    disk = MemoryDisk()
    manager = managed(
        disk, log_retention_check_interval_ms="7000", log_retention_ms="1", log_initial_task_delay_ms="0"
    )
    manager.tick(NOW_MS)
    log = manager.get_or_create(ORDERS)
    append_as_leader(log.partition, one(NOW_MS - 5000), leader_epoch=0, now_ms=NOW_MS)
    log.partition.set_high_watermark(1)
    manager.tick(NOW_MS + 6999)
    assert log.log_start_offset == 0
    manager.tick(NOW_MS + 7000)
    assert log.log_start_offset == 1


def test_log_flush_scheduler_interval_ms() -> None:
    manager = managed(MemoryDisk(), log_flush_scheduler_interval_ms="1000", log_flush_interval_ms="10")
    log = manager.get_or_create(ORDERS)
    append_as_leader(log.partition, one(), leader_epoch=0, now_ms=NOW_MS)
    points = {}
    for time_ms in (500, 999, 1000, 1999, 2000):
        manager.tick(NOW_MS + time_ms)
        points[time_ms] = log.partition.recovery_point
    assert points == {500: 0, 999: 0, 1000: 0, 1999: 0, 2000: 1}, "seen at 1000, older than 10 ms at 2000"


def test_log_flush_offset_checkpoint_interval_ms() -> None:
    disk = MemoryDisk()
    manager = managed(disk, log_flush_offset_checkpoint_interval_ms="4000")
    assert times_written(disk, manager, RECOVERY_POINT_CHECKPOINT, 9000) == [4000, 8000]


def test_log_flush_start_offset_checkpoint_interval_ms() -> None:
    disk = MemoryDisk()
    manager = managed(disk, log_flush_start_offset_checkpoint_interval_ms="3000")
    assert times_written(disk, manager, LOG_START_OFFSET_CHECKPOINT, 9000) == [3000, 6000, 9000]


def test_log_initial_task_delay_ms() -> None:
    disk = MemoryDisk()
    manager = managed(disk, log_flush_offset_checkpoint_interval_ms="4000", log_initial_task_delay_ms="100")
    assert times_written(disk, manager, RECOVERY_POINT_CHECKPOINT, 9000) == [100, 4100, 8100]


def test_replica_high_watermark_checkpoint_interval_ms() -> None:
    """The node that replicates writes them: its settings take it over."""
    settings = LogManagerConfig.from_kafka({"replica.high.watermark.checkpoint.interval.ms": "1500"})
    disks = {0: MemoryDisk(), 1: MemoryDisk()}
    interval_ms = settings.replica_high_watermark_checkpoint_interval_ms
    cluster = cluster_of_two(disks, replica_high_watermark_checkpoint_interval_ms=interval_ms)
    cluster.create_topic(NewTopic("orders", assignment=((0, 1),)))
    cluster.advance(1500)
    before = [path for path in disks[0].files() if path.endswith(HIGH_WATERMARK_CHECKPOINT)]
    assert error_of(cluster) is ErrorCode.NONE
    cluster.advance(1500)
    (path,) = [path for path in disks[0].files() if path.endswith(HIGH_WATERMARK_CHECKPOINT)]
    assert before in ([], [path])
    assert b"orders 0 1" in disks[0].files()[path]


def test_num_recovery_threads_per_data_dir() -> None:
    """Taken, and without effect: whoever copies a broker's properties need not leave it out."""
    disk = MemoryDisk()
    managed(disk).get_or_create(ORDERS)
    assert list(managed(disk.durable_image(), num_recovery_threads_per_data_dir="8").logs()) == [ORDERS]


def test_log_dir_failure_timeout_ms() -> None:
    """Taken, and without effect: a dir that failed is known to have failed at once."""
    disk = FaultyDisk(MemoryDisk())
    config = LogManagerConfig.from_kafka({"log.dir.failure.timeout.ms": "1"})
    manager = LogManager(["/a"], disk=disk, clock=lambda: NOW_MS, random=Random(1), settings=config)
    log = manager.get_or_create(ORDERS)
    append_as_leader(log.partition, one(), leader_epoch=0, now_ms=NOW_MS)
    disk.inject(Fault(operation="sync"))
    with pytest.raises(Exception, match="offline"):
        log.flush()
    assert list(manager.offline_dirs) == ["/a"]


def with_dirty_log(disk: MemoryDisk, *, keys: int = 5, **settings: str) -> tuple[LogManager, Log]:
    """A node with a compacted log of 200 records, all of them but the last few in sealed segments."""
    small = {"log_cleanup_policy": "compact", "log_segment_bytes": "5000"}
    manager = managed(disk, **small, **settings)
    log = manager.get_or_create(ORDERS)
    dirty(log, keys)
    return manager, log


def dirty(log: Log, keys: int = 5) -> None:
    for number in range(200):
        append_as_leader(log.partition, keyed(b"%03d" % (number % keys)), leader_epoch=0, now_ms=NOW_MS)
    log.partition.roll()
    log.partition.set_high_watermark(log.log_end_offset)


def is_compact(log: Log) -> bool:
    keys = keys_of(log)
    return len(keys) == len(set(keys))


def passes_after(manager: LogManager, wait_ms: int = 15_000) -> int:
    manager.tick(NOW_MS + wait_ms)
    return manager.cleaner.partitions[ORDERS].passes


def test_log_cleaner_enable() -> None:
    for text in ("false", "true"):
        manager, log = with_dirty_log(MemoryDisk(), log_cleaner_enable=text)
        for day in range(1, 4):
            manager.tick(NOW_MS + day * 86_400_000)
        assert is_compact(log) is (text == "true")


def test_log_cleaner_threads() -> None:
    """Taken, and without effect: the same is done in the same order. None at all cannot be meant so."""
    disks = [MemoryDisk(), MemoryDisk()]
    for disk, text in zip(disks, ("1", "8"), strict=True):
        manager, log = with_dirty_log(disk, log_cleaner_threads=text)
        assert passes_after(manager) == 1
        assert is_compact(log)
    assert disks[0].files() == disks[1].files()
    with pytest.raises(InvalidConfig, match=r"log\.cleaner\.threads is 0"):
        LogManagerConfig.from_kafka({"log.cleaner.threads": "0"})


def test_log_cleaner_backoff_ms() -> None:
    """Nothing to do at 7000: so the next look is that much later."""
    manager, log = with_dirty_log(MemoryDisk(), log_cleaner_backoff_ms="7000")
    assert manager.cleaner.deadline_ms == NOW_MS + 7000
    manager.tick(NOW_MS + 6999)
    assert not is_compact(log)
    assert passes_after(manager, 7000) == 1
    assert is_compact(log)
    dirty(log)
    assert passes_after(manager, 13_999) == 1
    assert passes_after(manager, 14_000) == 2
    assert is_compact(log)


@pytest.mark.parametrize(("slots", "passes"), [(211, 1), (101, 2), (53, 4)])
def test_log_cleaner_dedupe_buffer_size(slots: int, passes: int) -> None:
    """What there is no room for waits for the next pass: 24 bytes a key."""
    manager, log = with_dirty_log(
        MemoryDisk(),
        keys=199,
        log_cleaner_dedupe_buffer_size=str(24 * slots),
        log_cleaner_io_buffer_load_factor="1.0",
        log_cleaner_min_cleanable_ratio="0",
    )
    assert passes_after(manager) == passes
    assert is_compact(log)
    report = manager.cleaner.partitions[ORDERS].last_pass
    assert report is not None
    assert report.stats.map_bytes <= 24 * slots


@pytest.mark.parametrize(("factor", "passes"), [("1.0", 2), ("0.67", 3), ("0.5", 4)])
def test_log_cleaner_io_buffer_load_factor(factor: str, passes: int) -> None:
    """A map with 101 places takes 101, 67 or 50 of the 199 keys."""
    manager, log = with_dirty_log(
        MemoryDisk(),
        keys=199,
        log_cleaner_dedupe_buffer_size=str(24 * 101),
        log_cleaner_io_buffer_load_factor=factor,
        log_cleaner_min_cleanable_ratio="0",
    )
    assert passes_after(manager) == passes
    assert is_compact(log)


@pytest.mark.parametrize(("given", "effective"), [("0", 1024), ("2000", 2000), ("3000", 3000)])
def test_log_cleaner_io_buffer_size(given: str, effective: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much is read of a segment at a time; a batch that is larger is read whole."""
    manager, log = with_dirty_log(MemoryDisk(), log_cleaner_io_buffer_size=given)
    for _ in range(2):
        append_as_leader(log.partition, keyed(b"large", bytes(4000)), leader_epoch=0, now_ms=NOW_MS)
    log.partition.roll()
    log.partition.set_high_watermark(log.log_end_offset)
    sizes = set()
    pread = MemoryFile.pread

    def watched(file: MemoryFile, size: int, position: int) -> bytes:
        sizes.add(size)
        return pread(file, size, position)

    monkeypatch.setattr(MemoryFile, "pread", watched)
    assert passes_after(manager) == 1
    assert effective in sizes
    assert all(size <= effective for size in sizes if size < 4000)
    assert max(sizes) == len(keyed(b"large", bytes(4000)))
    monkeypatch.undo()
    assert is_compact(log)


@pytest.mark.parametrize("rate", [1000, 4000])
def test_log_cleaner_io_max_bytes_per_second(rate: int) -> None:
    """Ticking whenever it wants to be called, it reads and writes that much a second."""
    manager, log = with_dirty_log(
        MemoryDisk(), log_cleaner_io_max_bytes_per_second=str(rate), log_cleaner_io_buffer_size="1024"
    )
    cleaning, now_ms = None, NOW_MS
    while cleaning is None or cleaning.passes == 0:
        now_ms = max(manager.cleaner.deadline_ms, now_ms + 1)
        manager.cleaner.tick(now_ms)
        cleaning = manager.cleaner.partitions[ORDERS]
    assert is_compact(log)
    seconds = (now_ms - NOW_MS - 15_000) / 1000
    assert cleaning.bytes_cleaned > 20_000
    assert abs(cleaning.bytes_cleaned - rate * seconds) <= rate + 2048


def producing(producer_id: int, sequence: int, *, is_transactional: bool = False) -> bytes:
    return encode_batch(
        [Record(0, NOW_MS, b"k", b"v")],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


def test_producer_id_expiration_ms() -> None:
    manager = managed(
        MemoryDisk(), producer_id_expiration_ms="5000", producer_id_expiration_check_interval_ms="1"
    )
    log = manager.get_or_create(ORDERS)
    append_as_leader(log.partition, producing(7, 0), leader_epoch=0, now_ms=NOW_MS)
    manager.tick(NOW_MS + 4999)
    assert len(log.partition.producers()) == 1
    manager.tick(NOW_MS + 5000)
    assert len(log.partition.producers()) == 0


def test_producer_id_expiration_check_interval_ms() -> None:
    manager = managed(
        MemoryDisk(), producer_id_expiration_ms="1", producer_id_expiration_check_interval_ms="3000"
    )
    log = manager.get_or_create(ORDERS)
    append_as_leader(log.partition, producing(7, 0), leader_epoch=0, now_ms=NOW_MS)
    manager.tick(NOW_MS + 2999)
    assert len(log.partition.producers()) == 1
    manager.tick(NOW_MS + 3000)
    assert len(log.partition.producers()) == 0


def test_transaction_partition_verification_enable() -> None:
    for text in ("false", "true"):
        log = managed(MemoryDisk(), transaction_partition_verification_enable=text).get_or_create(ORDERS)
        try:
            append_as_leader(
                log.partition, producing(7, 0, is_transactional=True), leader_epoch=0, now_ms=NOW_MS
            )
        except InvalidTransactionState:
            assert text == "true"
        else:
            assert text == "false"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.retention.hours", "0"),
        ("log.retention.ms", "0"),
        ("log.retention.minutes", "-2"),
        ("log.roll.hours", "0"),
        ("log.retention.check.interval.ms", "0"),
        ("log.cleaner.io.buffer.load.factor", "1.5"),
        ("log.cleaner.enable", "yes"),
        ("num.recovery.threads.per.data.dir", "0"),
        ("log.cleaner.threads", "0"),
        ("log.flush.offset.checkpoint.interval.ms", "1e3"),
        ("log.local.retention.ms", "5"),
    ],
)
def test_a_value_that_a_node_cannot_take(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig):
        LogManagerConfig.from_kafka({name: text})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("segment.bytes", "log.segment.bytes"),
        ("retention.ms", "log.retention.ms"),
        ("log.retention.hour", "log.retention.hours"),
        ("log.cleaner.thread", "log.cleaner.threads"),
    ],
)
def test_a_name_that_a_node_does_not_know(name: str, meant: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"{name} \(did you mean {meant}\?\)"):
        LogManagerConfig.from_kafka({name: "1"})


def test_what_is_read_is_read_on_top_of_another() -> None:
    base = LogManagerConfig.from_kafka({"log.segment.bytes": "5000", "log.cleaner.backoff.ms": "7"})
    config = LogManagerConfig.from_kafka({"log.retention.ms": "9"}, base=base)
    assert (config.topic_defaults.segment_bytes, config.topic_defaults.retention_ms) == (5000, 9)
    assert config.log_cleaner_backoff_ms == 7
    assert LogManagerConfig().log_cleaner_io_max_bytes_per_second == sys.float_info.max
    assert LogManagerConfig().log_flush_scheduler_interval_ms == MAX_LONG


# --- none without ------------------------------------------------------------------------------------


def test_every_setting_has_a_test() -> None:
    known = {each.name for config in (LogManagerConfig, *PARTS.values()) for each in settings_of(config)}
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert known - tested == set()
