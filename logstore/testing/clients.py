"""Clients of the simulation: producers of unique records, consumers that read below the high watermark.

A client learns the leader from the metadata of some node, which may be stale, or asks the right one by luck;
it continues after any response. A producer without sequence numbers never sends a record twice, so a
duplicate was made by the cluster. An idempotent producer (producer id, epoch, sequence) sends the same batch
until it is answered.
"""

from __future__ import annotations

from itertools import takewhile

from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.replication.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
    ResponseBody,
)
from logstore.testing.hosts import rack_of
from logstore.testing.stored import ConsumerView, Violation, has_right_checksum, parse
from logstore.testing.swarm import stream
from logstore.testing.world import World

ALL = -1
_MOST_UNANSWERED = 3


class _Client:
    """The shared part of producers and consumers: a partition, and a guess at its leader."""

    def __init__(self, world: World, number: int, kind: str, topic_partition: TopicPartition) -> None:
        self.world = world
        self.name = f"{kind} {number}"
        self.number = number
        self.topic_partition = topic_partition
        self.random = stream(world.swarm.seed, self.name)
        self.checker = world.checkers[topic_partition]

    def guess(self) -> tuple[int, int]:
        """Return a node that may be the leader, and the leader epoch it would lead in."""
        state = self.checker.state
        draw = self.random.random()
        nodes = list(self.world.hosts)
        if state is None:
            return nodes[int(draw * 1000) % len(nodes)], 0
        if draw < 0.7 or self.world.network.is_calm:
            return (state.leader if state.leader >= 0 else nodes[0]), state.leader_epoch
        host = self.world.hosts[nodes[int(draw * 1000) % len(nodes)]]
        if host.node is not None:
            known = host.node.replicas.metadata.partitions.get(self.topic_partition)
            if known is not None and known.leader >= 0:
                return known.leader, known.leader_epoch
        return host.node_id, state.leader_epoch

    def pause_ms(self, mean_ms: int) -> int:
        return 1 + int(self.random.expovariate(1.0 / mean_ms))


class Producer(_Client):
    """Send batches of one to three unique records; with `is_idempotent`, number and retry them."""

    def __init__(
        self, world: World, number: int, topic_partition: TopicPartition, *, is_idempotent: bool
    ) -> None:
        super().__init__(world, number, "producer", topic_partition)
        self.is_idempotent = is_idempotent
        self.acks = ALL if is_idempotent else self.random.choice((0, 1, ALL, ALL, ALL))
        self.is_finishing = False
        self.most_sends: int | None = None
        """The largest number of batches to send; None: no limit."""
        self._batches = 0
        self._unanswered = 0
        self._sent = 0
        self._epoch = 0
        self._sequence = 0
        self._records: list[Record] = []
        self._pending: bytes | None = None
        self._asked_in_calm = False

    @property
    def is_done(self) -> bool:
        """Nothing is under way and nothing must be retried."""
        if self.checker.is_retired:
            return True
        return not self._unanswered and self._pending is None

    def run(self) -> None:
        """Send due batches, then wait."""
        if self.checker.is_retired:
            return
        if self._pending is not None:
            if not self._unanswered:
                self._send(self._pending)
        elif (
            not self.is_finishing
            and (self.most_sends is None or self._batches < self.most_sends)
            and self._unanswered < (1 if self.is_idempotent else _MOST_UNANSWERED)
        ):
            self._batches += 1
            self._send_new()
        if not (self.is_finishing and self.is_done):
            self.world.time.at(self.pause_ms(self.world.swarm.produce_interval_ms), self.run)

    def send_now(self) -> None:
        """Send one more batch with acks=all, at once."""
        self.acks = ALL
        self._send_new(may_be_bad=False)

    def _send_new(self, *, may_be_bad: bool = True) -> None:
        size = self.random.choice((0, 0, 10, 200))
        self._records = []
        for slot in range(self.random.choice((1, 1, 2, 3))):
            self._sent += 1
            value = f"{self.number}-{self._sent}-".encode() + self.random.randbytes(size)
            self._records.append(Record(slot, self.world.now_ms, None, value))
        batch = self._encode()
        if may_be_bad and self.world.swarm.features.bad_batches and self.random.random() < 0.05:
            spoilt = bytearray(batch)
            spoilt[self.random.randrange(61, len(batch))] ^= 1 << self.random.randrange(8)
            self.checker.refused(bytes(spoilt)[17:])
            self._call(bytes(spoilt))
            return
        self.world.tally.sent += 1
        if self.is_idempotent:
            self._pending = batch
        self._send(batch)

    def _encode(self) -> bytes:
        batch = encode_batch(
            self._records,
            producer_id=self.number if self.is_idempotent else -1,
            producer_epoch=self._epoch if self.is_idempotent else -1,
            base_sequence=self._sequence if self.is_idempotent else -1,
        )
        return batch

    def _send(self, batch: bytes) -> None:
        self.checker.sent(batch[17:])
        self._call(batch)

    def _call(self, batch: bytes) -> None:
        self._unanswered += 1
        self._asked_in_calm = self.world.network.is_calm
        swarm = self.world.swarm
        self.world.client_link.call(
            self.guess()[0],
            ProduceRequest({self.topic_partition: batch}, self.acks, 2 * swarm.request_timeout_ms),
            self._answered,
            timeout_ms=4 * swarm.request_timeout_ms,
            is_single=not self.is_idempotent,
        )

    def _answered(self, body: ResponseBody | None) -> None:
        self._unanswered -= 1
        if not self.is_idempotent or not isinstance(body, ProduceResponse) or self._pending is None:
            return
        if self.checker.is_retired:
            return
        error = body.partitions[self.topic_partition].error
        if error is ErrorCode.NONE:
            self._sequence += len(self._records)
            self._pending = None
        elif error in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            # A superseded leader may lack batches that another leader acknowledged, and its response may be
            # slow: only a request made after all repairs went to the current leader. After an
            # unclean election every leader may lack them: then sequence numbers start again in a new epoch.
            if self.checker.floor is not None:
                self._epoch, self._sequence = self._epoch + 1, 0
                self._pending = self._encode()
            elif self._asked_in_calm:
                raise Violation("C4", f"{self.topic_partition}: earlier batches of {self.name} are unknown")


class Consumer(_Client):
    """Read from the start on, below the high watermark, in leader epochs that never go back."""

    def __init__(self, world: World, number: int, topic_partition: TopicPartition) -> None:
        super().__init__(world, number, "consumer", topic_partition)
        self.view = ConsumerView()
        self._epoch = -1
        self._cuts_seen = 0
        self._rack = rack_of(world.swarm, number) or None
        self._preferred: int | None = None
        """The replica in its own rack that the leader named; used until it has no new records."""

    def run(self) -> None:
        """Fetch from the current position."""
        if self.checker.is_retired:
            return
        if self.checker.unclean_elections != self._cuts_seen:
            self._cuts_seen = self.checker.unclean_elections
            self.view.position = min(self.view.position, self.checker.floor or 0)
        node_id, epoch = self.guess()
        node_id = node_id if self._preferred is None else self._preferred
        self._epoch = max(self._epoch, epoch)
        wanted, epoch = self.view.position, self._epoch
        state = self.checker.state
        leads = state is not None and (node_id, epoch) == (state.leader, state.leader_epoch)
        asks_leader = self._rack is None or leads
        swarm = self.world.swarm
        limit = self.random.choice((1, 400, 1 << 20))
        self.world.client_link.call(
            node_id,
            FetchRequest(
                -1,
                self.random.choice((0, swarm.fetch_wait_ms, 2 * swarm.fetch_wait_ms)),
                1,
                limit,
                {self.topic_partition: FetchPartition(wanted, limit, current_leader_epoch=epoch)},
                rack=self._rack,
            ),
            lambda body: self._answered(wanted, epoch, body, asks_leader=asks_leader),
            timeout_ms=3 * swarm.request_timeout_ms,
        )

    def _answered(self, wanted: int, epoch: int, body: ResponseBody | None, *, asks_leader: bool) -> None:
        self._preferred = None
        if isinstance(body, FetchResponse) and not self.checker.is_retired:
            result = body.partitions[self.topic_partition]
            if result.preferred_read_replica >= 0:
                self._preferred = result.preferred_read_replica
            elif result.error is ErrorCode.OFFSET_OUT_OF_RANGE and not asks_leader:
                pass  # a follower may be behind: ask the leader again
            elif result.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                self._out_of_range(wanted, epoch)
            elif result.records:
                batches = parse(bytes(result.records))
                if self.world.swarm.rot_interval_ms:
                    batches = list(takewhile(has_right_checksum, batches))
                self.world.tally.consumed += len(batches)
                self.checker.consumed(self.view, wanted, batches, leader_epoch=epoch)
        self.world.time.at(self.pause_ms(2 * self.world.swarm.produce_interval_ms), self.run)

    def _out_of_range(self, wanted: int, epoch: int) -> None:
        # A leader holds everything committed before its epoch, and the request named that epoch.
        if wanted < self.checker.log_start:
            # Retention removed the position: continue where logs start now.
            self.view.position = max(self.view.position, self.checker.log_start)
        elif self.checker.unclean_elections == 0:
            raise Violation(
                "C8", f"{self.topic_partition}: {self.name} at {wanted} is out of range in epoch {epoch}"
            )
