"""A log dir that a sink writes to: partition directories that nobody else has open meanwhile.

Each partition that gets rows is opened (`Log.open`: locked, recovered), appended to, synced and closed in
order. A crash leaves a log that the next open recovers, and an intent that says what else was to come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from logstore.checkpoint.meta_properties import META_PROPERTIES
from logstore.config import LogConfig
from logstore.disk.errors import DirectoryLocked, InvalidTopic
from logstore.disk.files import DirectoryEntry, Disk, make_durable_dir
from logstore.disk.topic_partition import TopicPartition, parse_directory_name
from logstore.errors import OutOfOrderSequence
from logstore.format.batch import Batch
from logstore.log.log import Clock, Log
from logstore.log.stand_alone import check_not_locked
from logstore.spark.errors import WriteRefused
from logstore.spark.publishing import Payment, Producer
from logstore.spark.sink_rows import Topic

_MOST_OPEN: Final = 64
"""Logs kept open from the plan to the end of it; beyond that, one at a time."""
_TRIES: Final = 600
_FIRST_PRODUCER: Final = 1 << 61
"""Brokers count their producers from 0: ours are none of theirs."""


class DirectoryTarget:
    """`Target` over the log dir `path`."""

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
        """`pause` waits a twentieth of a second: for another sink that has a partition open."""
        self._disk, self._path, self._config, self._clock = disk, path, config, clock
        self._random, self._pause = random, pause
        self._counts: dict[str, int] | None = None
        self._logs: dict[TopicPartition, Log] = {}

    def topic(self, name: str) -> Topic | None:
        """Raises `WriteRefused` for a directory that is not ours to write."""
        if self._counts is None:
            self._counts = _partition_counts(self._path, self._entries())
        if (count := self._counts.get(name)) is None:
            return None
        if count < 0:
            raise WriteRefused(
                f"{self._path} has not all partitions of topic {name}: it is a part of a cluster's, or a "
                "write that made the topic was broken off; in that case run that write again"
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
                f"{self._path} belongs to a broker, whose replicas would not know what is written here: "
                "start it, and write with the option kafka.bootstrap.servers"
            )
        if any(name.endswith(".log") for name in names):
            raise WriteRefused(f"{self._path} is a partition's directory: give the log dir above it")
        return entries

    def create(self, name: str, partitions: int) -> None:
        # The last one first: until all are there, who counts them sees that some are missing.
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

    def pay(self, payments: Sequence[Payment]) -> Mapping[TopicPartition, int]:
        return {
            payment.owed.topic_partition: self._pay(payment)
            for payment in sorted(payments, key=lambda payment: payment.owed.topic_partition)
        }

    def _pay(self, payment: Payment) -> int:
        owed = payment.owed
        log = self._open(owed.topic_partition)
        try:
            start = max(min(owed.end_offset, log.log_end_offset), log.log_start_offset)
            stands = owed.standing(log.read_batches(start), payment.producer)
            for data in payment.batches(stands):
                try:
                    log.append_batches(data)
                except OutOfOrderSequence:
                    break
                stands += Batch(data).record_count
            log.flush()
            return stands
        finally:
            self._close(owed.topic_partition, log)

    def close(self) -> None:
        for partition in list(self._logs):
            self._close(partition, self._logs[partition])

    def _close(self, partition: TopicPartition, log: Log) -> None:
        self._logs.pop(partition, None)
        log.close()

    def _open(self, partition: TopicPartition) -> Log:
        """The partition's log, once nobody else has it open. Raises `DirectoryLocked`, as `Log.open`."""
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
                f"{self._path} is in use by a broker, or by another program that owns the log dir: write "
                "through the broker (option kafka.bootstrap.servers), or stop it first"
            ) from error


def _partition_counts(path: str, entries: Sequence[DirectoryEntry]) -> dict[str, int]:
    """How many partitions each topic has; -1 where some are missing. Others' directories are passed over."""
    found: dict[str, set[int]] = {}
    for entry in entries:
        if entry.is_directory:
            try:
                partition = parse_directory_name(entry.name)
            except InvalidTopic:
                continue
            found.setdefault(partition.topic, set()).add(partition.partition)
    return {
        topic: len(partitions) if max(partitions) == len(partitions) - 1 else -1
        for topic, partitions in found.items()
    }
