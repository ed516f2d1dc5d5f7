"""From staged files to a topic, once: what a publication owes to each partition, and how it is paid.

    plan        files  [[name, size], …] in the order of Spark's partitions
                topics {topic: partitions} that have to be made first
                producer [id, epoch]
                owed   [[topic, partition, end_offset, first_sequence, skip, records], …]

Of a partition's staged records the first `skip` are in the log already; the others follow as batches of the
sink's producer, numbered from `first_sequence`, somewhere behind `end_offset`: other writers may come in
between, so what stands of them is told by producer and sequence. Batches go in order, one after the other, so
those that stand are the first ones, and the rest is sent. That makes it safe to carry a plan out again, after
any crash; whatever of it had an unknown fate is looked up, or sent again with the number it had.

A log that does not know the producer's last number any more (it lost records, or was replaced) refuses the
next one. Then the plan is made anew for what is left, under another producer, before anything else is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, Self

from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch, set_producer
from logstore.format.record import add_sequence, subtract_sequence
from logstore.spark.errors import PublicationBroken, WriteRefused
from logstore.spark.ledger import Intent, Json, Ledger, staging_directory
from logstore.spark.sink_rows import Topic
from logstore.spark.staging import Staged, StagedFile

_RENEWALS: Final = 3


class Producer(NamedTuple):
    """Who a sink's batches are from. One ledger's alone."""

    id: int
    epoch: int


class Owed(NamedTuple):
    """What of a plan goes to one partition."""

    topic_partition: TopicPartition
    end_offset: int
    first_sequence: int
    skip: int
    records: int

    @property
    def left(self) -> int:
        return self.records - self.skip

    def standing(self, batches: Iterable[Batch], producer: Producer) -> int:
        """How many of the records that are left stand in the log, given all batches behind the end offset.

        By the last of ours, for compaction may have taken others.
        """
        found = 0
        for batch in batches:
            if batch.producer_id == producer.id and batch.producer_epoch == producer.epoch:
                found = subtract_sequence(batch.last_sequence, self.first_sequence) + 1
        if found > self.left:
            raise PublicationBroken(
                f"{self.topic_partition}: producer {producer.id} has written sequence numbers behind offset "
                f"{self.end_offset} that are not of this write: its ledger was copied, or is an old one"
            )
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """A publication as its intent has it."""

    files: Sequence[tuple[str, int]]
    producer: Producer
    owed: Sequence[Owed]
    topics: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> Json:
        return {
            "files": [list(file) for file in self.files],
            "topics": dict(self.topics),
            "producer": list(self.producer),
            "owed": [[*owed.topic_partition, *owed[1:]] for owed in self.owed],
        }

    @classmethod
    def of_json(cls, plan: Json) -> Self:
        return cls(
            [(name, size) for name, size in plan["files"]],
            Producer(*plan["producer"]),
            [Owed(TopicPartition(topic, partition), *rest) for topic, partition, *rest in plan["owed"]],
            plan["topics"],
        )


class Payment(NamedTuple):
    """One partition's part of a plan, with the batches to pay it."""

    owed: Owed
    producer: Producer
    files: Sequence[StagedFile]

    def batches(self, standing: int) -> Iterator[memoryview]:
        """The batches behind the first `standing` records of those that are left, numbered and summed."""
        done, start = 0, self.owed.skip + standing
        for file in self.files:
            for data in file.batches(self.owed.topic_partition):
                count = Batch(data).record_count
                if done >= start:
                    sequence = add_sequence(self.owed.first_sequence, done - self.owed.skip)
                    set_producer(
                        data,
                        producer_id=self.producer.id,
                        producer_epoch=self.producer.epoch,
                        base_sequence=sequence,
                    )
                    yield data
                elif done + count > start:
                    raise PublicationBroken(
                        f"{self.owed.topic_partition}: {start} records stand, which is within a staged "
                        "batch: somebody else has written with this sink's producer id"
                    )
                done += count


class Target(Protocol):
    """Where a sink's partitions are. For one thread; raises `EngineError`."""

    def topic(self, name: str) -> Topic | None:
        """What is there under that name; None for nothing."""

    def create(self, name: str, partitions: int) -> None:
        """Make the topic, or what is missing of it."""

    def ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where each log ends. What is published from now on lies behind."""

    def new_producer(self) -> Producer:
        """One that nobody else is."""

    def pay(self, payments: Sequence[Payment]) -> Mapping[TopicPartition, int]:
        """Have appended, durably, what does not stand yet; how many records of each then stand.

        Fewer than are left only where the log refuses the producer's next sequence number.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Message:
    """What a task tells the commit. `new_topics` are those that were not there."""

    ledger: str
    number: int
    spark_partition: int
    staged: Staged
    new_topics: Mapping[str, int] = field(default_factory=dict)


class Publisher:
    """Plans and carries out what one ledger decides: the two callables of `publish_once`."""

    def __init__(self, disk: Disk, ledger: Ledger, target: Target) -> None:
        self._disk, self._ledger, self._target = disk, ledger, target

    def plan(self, number: int, messages: Sequence[Message]) -> Json:
        """What publishing these messages takes. Raises `StagedFileGone`, and what the target raises."""
        ordered = sorted(messages, key=lambda message: message.spark_partition)
        records: dict[TopicPartition, int] = {}
        topics: dict[str, int] = {}
        files = []
        for message in ordered:
            if message.staged.name:
                files.append((message.staged.name, message.staged.size))
            topics.update(message.new_topics)
            for partition, count in message.staged.records.items():
                records[partition] = records.get(partition, 0) + count
        topics = {name: count for name, count in topics.items() if not self._is_there(name, count)}
        self._open(number, files)  # all of it is there, or nothing is decided
        producer, sequences = self._producer(bool(records))
        counts = {partition: (0, records[partition]) for partition in sorted(records)}
        owed = self._owed(counts, sequences, topics)
        return Plan(files, producer, owed, topics).to_json()

    def _is_there(self, topic: str, partitions: int) -> bool:
        """Whether the topic has been made since tasks did not find it."""
        found = self._target.topic(topic)
        if found is not None and found.partitions != partitions:
            raise WriteRefused(
                f"topic {topic} has been made by somebody else, with {found.partitions} partitions, while "
                f"rows were placed in {partitions}: write them again. Nothing was published"
            )
        return found is not None

    def carry_out(self, intent: Intent) -> Json:
        """Carry the plan out. Raises `PublicationBroken`, `StagedFileGone`, and what the target raises."""
        plan = Plan.of_json(intent.plan)
        for topic, partitions in sorted(plan.topics.items()):
            self._target.create(topic, partitions)
        files = self._open(intent.number, plan.files)
        for _ in range(_RENEWALS):
            stands = self._target.pay([Payment(owed, plan.producer, files) for owed in plan.owed])
            if all(stands[owed.topic_partition] == owed.left for owed in plan.owed):
                return self._state(plan)
            plan = self._renewed(plan, stands)
            self._ledger.decide(intent.number, plan.to_json())
        raise PublicationBroken(
            "the log refuses the sequence numbers of new producers as well: verify its partitions"
        )

    def _open(self, number: int, files: Iterable[tuple[str, int]]) -> list[StagedFile]:
        directory = staging_directory(self._ledger.directory, number)
        return [StagedFile(self._disk, f"{directory}/{name}", size) for name, size in files]

    def _producer(self, is_needed: bool) -> tuple[Producer, Mapping[str, int]]:
        """Who publishes, and which sequence number is next in each partition (else 0)."""
        state = self._ledger.state
        if "producer" in state:
            return Producer(*state["producer"]), state["sequences"]
        return (self._target.new_producer() if is_needed else Producer(-1, -1)), {}

    def _owed(
        self,
        records: Mapping[TopicPartition, tuple[int, int]],
        sequences: Mapping[str, int],
        new_topics: Mapping[str, int],
    ) -> list[Owed]:
        """`records`: how many are in the log, and how many there are."""
        there = [partition for partition in records if partition.topic not in new_topics]
        ends = self._target.ends(there)
        return [
            Owed(partition, ends.get(partition, 0), sequences.get(str(partition), 0), *counts)
            for partition, counts in records.items()
        ]

    def _renewed(self, plan: Plan, stands: Mapping[TopicPartition, int]) -> Plan:
        records = {
            owed.topic_partition: (owed.skip + stands[owed.topic_partition], owed.records)
            for owed in plan.owed
            if stands[owed.topic_partition] < owed.left
        }
        return Plan(plan.files, self._target.new_producer(), self._owed(records, {}, {}), plan.topics)

    def _state(self, plan: Plan) -> Json:
        if plan.producer.id < 0:
            return self._ledger.state
        producer, sequences = self._producer(False)
        kept = dict(sequences) if producer == plan.producer else {}
        for owed in plan.owed:
            kept[str(owed.topic_partition)] = add_sequence(owed.first_sequence, owed.left)
        return {"producer": list(plan.producer), "sequences": kept}
