"""The targets that a sink writes to: a log dir without an owner, or a cluster.

`DirectoryTarget` opens each partition that gets rows (`Log.open`: locked, recovered), appends, syncs and
closes it, one after the other. After a crash the next open recovers the log, and the ledger's intent names
the rest.

`BrokerTarget` is an idempotent producer that can find out, after a crash, how much it had written. It sends
one batch per partition at a time, with acks=all. It reads its own batches back up to the high watermark; a
batch above that is sent again, and the leader drops the duplicate by its sequence number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from random import Random
from typing import Any, Final, TypeVar

from logstore.broker.errors import RequestRefused
from logstore.broker.loop import fastest_loop
from logstore.checkpoint.identity import META_PROPERTIES
from logstore.config import LogConfig
from logstore.disk.errors import DirectoryLocked, EngineError, ErrorCode
from logstore.disk.files import DirectoryEntry, Disk, make_durable_dir
from logstore.disk.topic_partition import TopicPartition, partitions_among
from logstore.errors import OutOfOrderSequence
from logstore.format.batch import Batch, walk
from logstore.log.log import Log
from logstore.log.partition_log import Clock
from logstore.log.stand_alone import check_not_locked
from logstore.replication.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from logstore.spark.client import ClientSettings
from logstore.spark.errors import PublicationBroken, WriteRefused
from logstore.spark.publishing import PartWrite, Producer
from logstore.spark.sink_rows import Topic

T = TypeVar("T")

_MOST_OPEN: Final = 64
"""Logs kept open from the plan to the end of its publication; above that, one at a time."""
_TRIES: Final = 600
_FIRST_PRODUCER: Final = 1 << 61
"""Brokers number their producers from 0, so these never collide with theirs."""


class DirectoryTarget:
    """The `Target` of the log dir `path`."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        config: LogConfig,
        clock: Clock,
        random: Random,
        pause: Callable[[], None],
    ) -> None:
        """`pause` waits 50 ms for another sink that has a partition open."""
        self._disk, self._path, self._config, self._clock = disk, path, config, clock
        self._random, self._pause = random, pause
        self._counts: dict[str, int] | None = None
        self._logs: dict[TopicPartition, Log] = {}

    def cluster(self) -> str:
        return ""

    def topic(self, name: str) -> Topic | None:
        """Return the topic; None if it does not exist. Raises `WriteRefused` for a broker's directory."""
        if self._counts is None:
            self._counts = _partition_counts(self._entries())
        if (count := self._counts.get(name)) is None:
            return None
        if count < 0:
            raise WriteRefused(
                f"{self._path} lacks partitions of topic {name}: it belongs to a cluster, or a write that "
                "created the topic was interrupted; in that case run that write again"
            )
        return Topic(count, self._config)

    def _entries(self) -> list[DirectoryEntry]:
        try:
            entries = self._disk.scan(self._path)
        except FileNotFoundError:
            return []
        names = {entry.name for entry in entries}
        if META_PROPERTIES in names:
            raise WriteRefused(
                f"{self._path} belongs to a broker, and its replicas would miss what is written here: start "
                "the broker and write with option kafka.bootstrap.servers"
            )
        if any(name.endswith(".log") for name in names):
            raise WriteRefused(f"{self._path} is a partition's directory; name the log dir above it")
        return entries

    def create(self, name: str, partitions: int) -> None:
        # The last partition first: until all exist, a count of them shows that some are missing.
        for partition in reversed(range(partitions)):
            self._close(TopicPartition(name, partition), self._open(TopicPartition(name, partition)))
        self._counts = None

    def ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._entries()
        ends = {}
        for partition in sorted(partitions):
            log = self._open(partition)
            ends[partition] = log.log_end_offset
            if len(partitions) <= _MOST_OPEN:
                self._logs[partition] = log
            else:
                log.close()
        return ends

    def new_producer(self) -> Producer:
        return Producer(_FIRST_PRODUCER + self._random.getrandbits(61), 0)

    def write(self, parts: Sequence[PartWrite]) -> Mapping[TopicPartition, int]:
        return {
            part.owed.topic_partition: self._write(part)
            for part in sorted(parts, key=lambda part: part.owed.topic_partition)
        }

    def _write(self, part: PartWrite) -> int:
        owed = part.owed
        log = self._open(owed.topic_partition)
        try:
            start = max(min(owed.end_offset, log.log_end_offset), log.log_start_offset)
            written = owed.written(log.read_batches(start), part.producer)
            for data in part.batches(written):
                try:
                    log.append_batches(data)
                except OutOfOrderSequence:
                    break
                written += Batch(data).record_count
            log.flush()
            return written
        finally:
            self._close(owed.topic_partition, log)

    def close(self) -> None:
        with ExitStack() as stack:  # one that cannot be closed well must not keep the others locked
            for log in self._logs.values():
                stack.callback(log.close)
            self._logs = {}

    def _close(self, partition: TopicPartition, log: Log) -> None:
        self._logs.pop(partition, None)
        log.close()

    def _open(self, partition: TopicPartition) -> Log:
        """Open the partition's log once it is free. Raises `DirectoryLocked`, and as `Log.open`."""
        if partition in self._logs:
            return self._logs[partition]
        make_durable_dir(self._disk, self._path)
        directory = f"{self._path}/{partition.directory_name}"
        for _ in range(_TRIES):
            self._check_unowned()
            try:
                return Log.open(directory, self._config, disk=self._disk, clock=self._clock)
            except DirectoryLocked:
                self._pause()
        return Log.open(directory, self._config, disk=self._disk, clock=self._clock)

    def _check_unowned(self) -> None:
        try:
            check_not_locked(self._disk, self._path)
        except DirectoryLocked as error:
            raise DirectoryLocked(
                f"{self._path} is in use by a broker or another program: write through the broker (option "
                "kafka.bootstrap.servers), or stop it first"
            ) from error


def _partition_counts(entries: Sequence[DirectoryEntry]) -> dict[str, int]:
    """Return the partitions of each topic, -1 if some are missing; other directories are ignored."""
    found: dict[str, set[int]] = {}
    for partition, _ in partitions_among(entry.name for entry in entries if entry.is_directory):
        found.setdefault(partition.topic, set()).add(partition.partition)
    return {
        topic: len(partitions) if max(partitions) == len(partitions) - 1 else -1
        for topic, partitions in found.items()
    }


# --- brokers ------------------------------------------------------------------------------------------------

_AT_A_TIME: Final = 8
"""Partitions written concurrently."""
_FETCH_BYTES: Final = 4 << 20
_RULES: Final[tuple[str, ...]] = (
    *("max.message.bytes", "cleanup.policy", "message.timestamp.type"),
    *("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"),
)
"""The settings of a topic that decide whether it accepts a row."""
SEQUENCE_LOST: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)


class BrokerTarget:
    """The `Target` of a cluster. Its event loop runs only during calls."""

    def __init__(self, settings: ClientSettings) -> None:
        self._runner = asyncio.Runner(loop_factory=fastest_loop())
        self._client = settings.client()
        self._counts: Mapping[str, int] | None = None

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def cluster(self) -> str | None:
        return self._wait(self._client.cluster_id())

    def topic(self, name: str) -> Topic | None:
        if self._counts is None:
            self._counts = self._wait(self._client.topics())
        if name not in self._counts:
            return None
        settings = self._wait(self._client.topic_settings(name))
        rules = {rule: settings[rule] for rule in _RULES if rule in settings}
        return Topic(self._counts[name], LogConfig.from_kafka(rules))

    def create(self, name: str, partitions: int) -> None:
        try:
            self._wait(self._client.create_topic(name, partitions))
        except RequestRefused as refusal:
            if refusal.error is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        self._counts = None

    def ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        if not partitions:
            return {}
        return self._wait(self._client.offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP)))

    def new_producer(self) -> Producer:
        return Producer(self._wait(self._client.producer_id()), 0)

    def write(self, parts: Sequence[PartWrite]) -> Mapping[TopicPartition, int]:
        return self._wait(self._write_all(parts))

    async def _write_all(self, parts: Sequence[PartWrite]) -> dict[TopicPartition, int]:
        turns = asyncio.Semaphore(_AT_A_TIME)

        async def write(part: PartWrite) -> int:
            async with turns:
                return await self._write(part)

        # Let all of them finish, even if one raises: the outcome of a batch under way would be unknown.
        results = await asyncio.gather(*map(write, parts), return_exceptions=True)
        written = {}
        for part, result in zip(parts, results, strict=True):
            where = part.owed.topic_partition
            if isinstance(result, EngineError):
                raise PublicationBroken(
                    f"{where}: failed to write its part: {result}. Run the same query or transaction again: "
                    "that completes the write, and writes nothing twice"
                ) from result
            if isinstance(result, BaseException):
                raise result
            written[where] = result
        return written

    async def _write(self, part: PartWrite) -> int:
        owed = part.owed
        written = await self._written(part)
        while True:
            try:
                for data in part.batches(written):
                    await self._client.produce(owed.topic_partition, data)
                    written += Batch(data).record_count
                return written
            except RequestRefused as refusal:
                if refusal.error not in SEQUENCE_LOST:
                    raise
            # The log may be ahead of what was read; it lost our sequence only if it is not.
            before, written = written, max(written, await self._written(part))
            if written == before:
                return written

    async def _written(self, part: PartWrite) -> int:
        """Return how many of the records are in the log below the high watermark."""
        owed = part.owed
        partition = owed.topic_partition
        # The end first: a new leader that does not know its predecessor's high watermark yet refuses the
        # request.
        end = (await self._client.offsets({partition: LATEST_TIMESTAMP}))[partition]
        start = (await self._client.offsets({partition: EARLIEST_TIMESTAMP}))[partition]
        offset = max(min(owed.end_offset, end), start)
        written = 0
        while offset < end:
            result = await self._client.fetch(partition, offset, max_bytes=_FETCH_BYTES, max_wait_ms=0)
            batches = list(walk(result.records))
            written = max(written, owed.written(batches, part.producer))
            offset = max([offset, *(batch.next_offset for batch in batches)])
        return written

    def close(self) -> None:
        self._wait(self._client.close())
        self._runner.close()
