"""Fetches of replicas from the brokers that have them, to compare them (`replica_judging.py`).

Fetches with replica id -2 are answered by followers, too, and change nothing at the leader. All replicas of a
partition are read from the same offset. A replica that does not answer is left out for the pass, with its
reason.
What differs is fetched again before it counts: between two answers a replica may have been replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.broker.translation import by_topic, from_wire, to_wire
from logstore.broker.wire import types as t
from logstore.cli.broker_operator import TOPIC, BrokerOperator, described_settings
from logstore.cli.brokers import Brokers, check
from logstore.cli.cluster_plans import is_unavailable
from logstore.cli.replica_judging import Difference, Fetched, judge
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import walk
from logstore.replication import messages as m
from logstore.replication.messages import DEBUGGING_REPLICA_ID, EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

PATIENCE_S: Final = 10.0
_BYTES: Final = 32 << 20
"""The most that one answer is to hold."""
_POLICY: Final = "cleanup.policy"


@dataclass(slots=True)
class Compared:
    """A partition while it is compared: from `start` to `offset`, and in this pass up to `goal`."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    is_compacted: bool = False
    start: int = 0
    offset: int = 0
    goal: int = -1
    high_watermarks: dict[int, int] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)
    """Replicas that are not compared in this pass, and why."""
    not_comparable: int = 0
    suspect: Difference | None = None
    difference: Difference | None = None
    is_alone: bool = False
    is_over: bool = False

    @property
    def asked(self) -> list[int]:
        """The brokers that are asked for it."""
        return [] if self.is_over else [each for each in self.replicas if each not in self.left_out]

    @property
    def lag(self) -> int:
        """How many records the last replica is behind the first one, by their high watermarks."""
        found = self.high_watermarks.values()
        return max(found) - min(found) if found else 0

    def begin(self) -> None:
        """Begin another pass; a difference ends it for good."""
        self.goal, self.is_over, self.is_alone = -1, self.difference is not None, False
        self.left_out.clear()
        self.high_watermarks.clear()

    def leave_out(self, broker: int, why: str) -> None:
        """Go on without a replica."""
        self.left_out[broker] = why
        self.high_watermarks.pop(broker, None)

    def take(self, answers: dict[int, Fetched], *, was_alone: bool) -> None:
        """Learn of answers to fetches from `offset`."""
        for broker, each in answers.items():
            self.high_watermarks[broker] = each.high_watermark
            if each.problem:
                self.leave_out(broker, each.problem)
            elif was_alone and each.records and next(walk(each.records), None) is None:
                self.leave_out(broker, f"its batch at offset {self.offset} is larger than --fetch-size")
        answers = {broker: each for broker, each in answers.items() if broker in self.high_watermarks}
        if len(answers) < 2:
            self.is_over = True
            return
        self.goal = max(self.high_watermarks.values()) if self.goal < 0 else self.goal
        found = judge(self.offset, answers, is_compacted=self.is_compacted, is_alone=was_alone)
        if found.difference is not None:
            # Only what a second look confirms; it is taken alone, as a first look may have been.
            if self.suspect is not None:
                self.difference, self.is_over = found.difference, True
            self.suspect, self.is_alone = found.difference, True
            return
        self.suspect = None
        self.is_alone = found.next_offset == self.offset
        self.not_comparable += found.not_comparable
        self.offset = found.next_offset
        committed = min(each.high_watermark for each in answers.values())
        self.is_over = self.offset >= min(self.goal, committed)


def partitions_to_compare(brokers: Brokers, topics: Iterable[str]) -> list[Compared]:
    """Return the partitions of these topics that have two replicas or more."""
    names = sorted(topics)
    policies = described_settings(brokers, TOPIC, names, keys=[_POLICY])
    compacted = {
        name
        for name, found in policies.items()
        if any(each.name == _POLICY and "compact" in (each.value or "") for each in found)
    }
    cluster = BrokerOperator(brokers).read(names, may_lack_controller=True)
    return [
        Compared(each, replicas, each.topic in compacted)
        for each, replicas in cluster.partitions()
        if len(replicas) > 1
    ]


def begin_at(brokers: Brokers, compared: Sequence[Compared], time_ms: int) -> None:
    """Begin where the replicas begin (-2), at the end (-1), or at the first record from a time on."""
    for each in compared:
        each.begin()
    if time_ms != EARLIEST_TIMESTAMP:
        cluster = BrokerOperator(brokers).read(
            {each.partition.topic for each in compared}, may_lack_controller=True
        )
        led = [each for each in compared if not is_unavailable(cluster, each.partition)]
        found = brokers.offsets(dict.fromkeys((each.partition for each in led), time_ms))
        at_the_end = [each.partition for each in led if found.get(each.partition) is None]
        found |= brokers.offsets(dict.fromkeys(at_the_end, LATEST_TIMESTAMP))
        for each in led:
            each.start = each.offset = found[each.partition] or 0
    _to_the_latest_start(brokers, compared)


def _to_the_latest_start(brokers: Brokers, compared: Iterable[Compared]) -> None:
    """Move each partition to where the log of its last replica begins, if it is below."""
    for broker, wanted in _by_broker(compared):
        known = {each.partition: each for each in wanted}
        start = m.ListOffsetsPartition(EARLIEST_TIMESTAMP)
        request = m.ListOffsetsRequest(DEBUGGING_REPLICA_ID, dict.fromkeys(known, start))
        try:
            answer = brokers.broker(broker, to_wire(request, t.ListOffsetsRequest), timeout_s=PATIENCE_S)
        except (RequestRefused, RequestUnanswered) as error:
            for each in wanted:
                each.leave_out(broker, str(error))
            continue
        for where, found in from_wire(answer, m.ListOffsetsResponse).partitions.items():
            each = known[where]
            if found.error:
                each.leave_out(broker, found.error.name)
            elif found.offset > each.offset:
                each.start = each.offset = found.offset


def compare(brokers: Brokers, compared: Sequence[Compared], fetch_size: int) -> None:
    """Compare the partitions up to their high watermarks of now, as far as all replicas reach."""
    while pending := [each for each in compared if not each.is_over]:
        together = max(_BYTES // fetch_size, 1)
        some = [each for each in pending if not each.is_alone][:together] or pending[:1]
        answers: dict[TopicPartition, dict[int, Fetched]] = {each.partition: {} for each in some}
        out_of_range: list[Compared] = []
        for broker, wanted in _by_broker(some):
            for each, fetched in zip(wanted, _fetched(brokers, broker, wanted, fetch_size), strict=True):
                if fetched.problem == ErrorCode.OFFSET_OUT_OF_RANGE.name:
                    out_of_range.append(each)
                answers[each.partition][broker] = fetched
        moved = _moved(brokers, out_of_range)
        for each in some:
            if each.partition not in moved:
                each.take(answers[each.partition], was_alone=len(some) == 1)


def _moved(brokers: Brokers, out_of_range: Sequence[Compared]) -> set[TopicPartition]:
    """Return the partitions whose logs now begin later, so that they are asked again from there."""
    before = {each.partition: each.offset for each in out_of_range}
    _to_the_latest_start(brokers, out_of_range)
    return {each.partition for each in out_of_range if each.offset > before[each.partition]}


def _by_broker(compared: Iterable[Compared]) -> Iterator[tuple[int, list[Compared]]]:
    found: dict[int, list[Compared]] = {}
    for each in compared:
        for broker in each.asked:
            found.setdefault(broker, []).append(each)
    yield from sorted(found.items())


def _fetched(brokers: Brokers, broker: int, wanted: Sequence[Compared], fetch_size: int) -> list[Fetched]:
    """Fetch these partitions from one broker; the answers are in the same order."""
    offsets = {each.partition: each.offset for each in wanted}
    request = t.FetchRequest(
        replica_id=DEBUGGING_REPLICA_ID,
        topics=[
            t.FetchRequestFetchTopic(
                topic=topic,
                partitions=[
                    t.FetchRequestFetchPartition(
                        partition=number, fetch_offset=offset, partition_max_bytes=fetch_size
                    )
                    for number, offset in found
                ],
            )
            for topic, found in by_topic(offsets.items()).items()
        ],
    )
    try:
        answer = brokers.broker(broker, request, timeout_s=PATIENCE_S)
        check(answer.error_code, f"broker {broker}")
    except (RequestRefused, RequestUnanswered) as error:
        return [Fetched(str(error))] * len(wanted)
    found = {
        TopicPartition(topic.topic, one.partition_index): Fetched(
            ErrorCode(one.error_code).name if one.error_code else "", one.high_watermark, one.records or b""
        )
        for topic in answer.responses
        for one in topic.partitions
    }
    return [found.get(each.partition, Fetched("the answer lacks it")) for each in wanted]
