"""Observe the cluster from outside and report to the checkers.

The observer looks at a node's replicas after each of its turns, before any other node can receive its
messages. It also sees every response to a client, every successful write to the store, and what a restart
finds on a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from logstore.config import MAX_LONG
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import CorruptBatch
from logstore.log.manager import LogManager
from logstore.log.partition_log import PartitionLog
from logstore.log.read import read_bytes
from logstore.replication.controller.context import UNCLEAN_ELECTION
from logstore.replication.isr import PendingExpand
from logstore.replication.messages import (
    AlterConfigsRequest,
    ControlledShutdownResponse,
    DeleteRecordsResponse,
    ElectionType,
    ElectLeadersRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
    RequestBody,
    ResponseBody,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import Check, Create, Delete, Multi, Operation, Outcome, Set
from logstore.replication.node import Node
from logstore.replication.partition import Partition
from logstore.replication.receipts import receipt_of
from logstore.replication.strays import is_of_another_incarnation
from logstore.testing.checkers import PartitionChecker, judge_disowned
from logstore.testing.client_link import Call
from logstore.testing.controller_checks import NewsChecker, StoreChecker
from logstore.testing.hosts import Host
from logstore.testing.recovery_checks import Remains, check_epochs, check_producers, check_recovery
from logstore.testing.rotting_disk import as_written
from logstore.testing.store_link import StoreLink
from logstore.testing.stored import IDENTITY_AT, ReplicaView, Stored, Violation, find, parse
from logstore.testing.swarm import Swarm
from logstore.testing.timeline import Timeline

_EVERYTHING = 1 << 30

# Errors that guarantee that nothing was appended. NOT_LEADER_OR_FOLLOWER (6) does not: a waiting acks=all
# gets it too when its leader steps down.
_NEVER_APPENDED = frozenset({
    ErrorCode.CORRUPT_MESSAGE, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_TIMESTAMP, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE,
})  # fmt: skip


class _Judged(NamedTuple):
    """A replica that is judged."""

    checker: PartitionChecker
    view: ReplicaView


class Observation:
    """The checkers of a run, one per partition, and all events that they get."""

    store: StoreLink
    """Source of the controller and broker epochs; set once it exists, since it reports here."""

    def __init__(self, time: Timeline, swarm: Swarm, hosts: Mapping[int, Host]) -> None:
        self.checkers: dict[TopicPartition, PartitionChecker] = {}
        self._to_be_deleted: dict[str, None] = {}
        """Topics with a deletion request in the store, whether they exist or not."""
        self._retired: dict[TopicPartition, PartitionChecker] = {}
        """The last checker of each deleted partition."""
        self.store_checker = StoreChecker()
        self.news_checker = NewsChecker()
        self.unclean_allowed: set[TopicPartition] = set()
        self.unclean_asked: set[TopicPartition] = set()
        """Partitions with an unclean election request that may arrive late."""
        self.is_unclean_allowed = False
        """For all partitions."""
        self.on_new_partition: Callable[[TopicPartition], None] = lambda topic_partition: None
        """Called for each partition that the cluster creates without an announcement."""
        self._proposals: dict[tuple[int, TopicPartition], PendingExpand] = {}
        """The last proposal of each leader that was looked at."""
        self._logs: dict[tuple[int, TopicPartition], PartitionLog] = {}
        """As last seen: a node does not return a log whose disk failed."""
        self._time = time
        self._swarm = swarm
        self._hosts = hosts
        self._failed_disks: set[int] = set()
        """Nodes that ended with a dead disk."""

    def expect(
        self, topic_partition: TopicPartition, replicas: tuple[int, ...], *, min_insync: int = 1
    ) -> PartitionChecker:
        """Judge this partition from now on."""
        checker = PartitionChecker(
            str(topic_partition),
            replicas,
            min_insync=min_insync,
            unclean_allowed=lambda: (
                self.is_unclean_allowed or topic_partition in self.unclean_allowed | self.unclean_asked
            ),
            incarnation=lambda node_id: self._hosts[node_id].broker_epoch,
        )
        # A deletion request may be older than the topic.
        checker.is_being_deleted = topic_partition.topic in self._to_be_deleted
        checker.is_deleted_by_hand = any(
            self._swarm.hand_rates.get(name) for name in ("delete_by_hand", "delete_what_moves")
        )
        if topic_partition in self._retired:
            checker.succeeds(self._retired[topic_partition])
        self.checkers[topic_partition] = checker
        return checker

    def expect_topic(
        self, topic: str, assignment: Sequence[tuple[int, ...]], settings: Mapping[str, str]
    ) -> list[TopicPartition]:
        """Judge the partitions of a topic that is about to be created; return them."""
        made = [TopicPartition(topic, number) for number in range(len(assignment))]
        for topic_partition, replicas in zip(made, assignment, strict=True):
            self.expect(topic_partition, replicas, min_insync=int(settings["min.insync.replicas"]))
            self.unclean_allowed.discard(topic_partition)  # of a deleted topic with this name
            if settings.get(UNCLEAN_ELECTION) == "true":
                self.unclean_allowed.add(topic_partition)
        return made

    def accept_risks(self, request: RequestBody) -> None:
        """Accept an operator's request that may lose records: unclean elections, fewer in-sync replicas."""
        allowed = self.unclean_allowed
        if isinstance(request, ElectLeadersRequest) and request.election_type is ElectionType.UNCLEAN:
            allowed.update(self.checkers if request.partitions is None else request.partitions)
        elif isinstance(request, AlterConfigsRequest):
            for topic_partition, checker in self.checkers.items():
                settings = request.topics.get(topic_partition.topic, {})
                if settings.get(UNCLEAN_ELECTION) == "true":
                    allowed.add(topic_partition)
                asked = int(settings.get("min.insync.replicas", str(checker.min_insync)) or 1)
                checker.asks_for(min(asked, checker.min_insync))

    # --- lives -----------------------------------------------------------------------------------

    def restarted(self, host: Host, logs: LogManager) -> None:
        held_something = any(remains.batches for remains in host.remains.values())
        # Of a process that was killed, the boot id may tell that nothing is lost.
        knows = self._swarm.boot_ids and all(each.cache_survived for each in host.remains.values())
        wanted = host.stopped_in_order or (None if knows else host.stopped_in_order)
        if held_something and wanted not in (None, logs.was_clean):
            raise Violation("I14", f"node {host.node_id}: it mistakes its last stop (clean or unclean)")
        host.views, host.seen = {}, {}
        found = {tp: log.partition for tp, log in logs.logs().items()}
        for topic_partition, remains in host.remains.items():
            log = found.get(topic_partition)
            is_rotten = topic_partition in {*host.rotten, *(rot.topic_partition for rot in host.rots)}
            if log is None and (is_rotten or host.disk_is_full):
                continue  # it is damaged or the disk is full: its leader has the records
            after = _read_as_written(host, log, log.log_start_offset) if log is not None else None
            check_recovery(
                remains,
                after,
                log_start=log.log_start_offset if log is not None else 0,
                log_end=log.log_end_offset if log is not None else 0,
                epochs=log.epochs if log is not None else (),
            )
            if log is not None and logs.checkpointed_high_watermark(topic_partition) > log.log_end_offset:
                raise Violation("I7", f"{remains.name}: the checkpointed high watermark is above the log end")
        left, host.remains = host.remains, {}
        host.rotten &= logs.damaged.keys()
        for topic_partition, log in found.items():
            self._look(host, topic_partition, log)
            if topic_partition in left:
                view = host.views[topic_partition]
                view.synced_before = min(left[topic_partition].durable_end, log.log_end_offset)
            if any(rot.topic_partition == topic_partition for rot in host.rots):
                continue  # the batches in rotten bytes count again once they are mended
            name = f"{topic_partition} on node {host.node_id}"
            check_producers(name, host.views[topic_partition].batches, log.producers(), self._time.now_ms)

    def ended(self, host: Host, *, cache_survives: bool) -> None:
        if host.disk_is_dead:
            self._failed_disks.add(host.node_id)
        if host.node is None:  # the machine of a node that is down loses its power
            host.remains = {each: replace(left, cache_survived=False) for each, left in host.remains.items()}
            return
        for topic_partition, log in host.node.logs.logs().items():
            view = host.views.get(topic_partition)
            how = cache_survives, host.disk_is_dead, log.log_end_offset
            host.remains[topic_partition] = Remains(
                f"{topic_partition} on node {host.node_id}",
                tuple(view.batches) if view is not None else (),
                log.log_start_offset,
                _synced_end(log.partition, view),
                *how,
            )

    # --- replicas --------------------------------------------------------------------------------

    def look(self, host: Host) -> None:
        node = host.node
        assert node is not None
        self._judge_news(host, node)
        truncations = node.replicas.counters.truncations
        for topic_partition in node.replicas.offline:
            view = host.views.get(topic_partition)
            if view is not None and view.is_leader:
                self._committed_at_last(topic_partition, view, self._logs[host.node_id, topic_partition])
                view.is_leader = False
        for topic_partition, partition in node.replicas.partitions.items():
            log = self._logs[host.node_id, topic_partition] = partition.log
            seen = (
                log.log_end_offset,
                log.high_watermark,
                partition.leader_epoch,
                partition.is_leader,
                truncations,
                log.log_start_offset,
            )
            before = host.seen.get(topic_partition)
            if before != seen:
                host.seen[topic_partition] = seen
                self._look(
                    host,
                    topic_partition,
                    log,
                    is_leader=partition.is_leader,
                    leader_epoch=partition.leader_epoch,
                    may_be_cut=before is None or before[4] != truncations,
                )
                if partition.is_leader and log.high_watermark > log.log_start_offset:
                    self._judge_receipt(host, topic_partition, partition)
            self._look_at_proposal(host, topic_partition, partition)

        if len(host.views) > len(node.replicas.partitions):
            self._forget_gone(host, node)

    def _judge_receipt(self, host: Host, topic_partition: TopicPartition, partition: Partition) -> None:
        """C26: a leader's receipt for its last committed record names no more disks than hold it."""
        checker = self.checkers.get(topic_partition)
        if checker is None or checker.is_being_deleted:
            return  # the copies go one after the other
        if checker.state is not None and checker.state.leader_epoch > partition.leader_epoch:
            return  # a reassignment that it has not heard of may have deleted a copy
        offset = partition.log.high_watermark - 1
        told = receipt_of(partition, offset)
        epoch = partition.log.epoch_for_offset(offset)
        held_on = sum(self._is_on_disk(each, topic_partition, offset, epoch) for each in self._hosts.values())
        if told.synced_on > held_on:
            claim = f"node {host.node_id} says that offset {offset} is synced on {told.synced_on} replicas"
            raise Violation("C26", f"{topic_partition}: {claim}; {held_on} disks hold it")

    def _is_on_disk(self, host: Host, topic_partition: TopicPartition, offset: int, epoch: int) -> bool:
        """Whether the record would outlive a power cut there now; a disk that fails or rots counts as yes."""
        is_rotten = topic_partition in {*host.rotten, *(rot.topic_partition for rot in host.rots)}
        if host.disk_is_dead or host.node_id in self._failed_disks or is_rotten:
            return True
        if host.node is None:
            left = host.remains.get(topic_partition)
            found = find(left.batches, offset) if left is not None and offset < left.durable_end else None
            return found is not None and found.epoch == epoch
        log = self._logs.get((host.node_id, topic_partition))
        return (
            log is not None
            and log.log_start_offset <= offset < _synced_end(log, host.views.get(topic_partition))
            and log.epoch_for_offset(offset) == epoch
        ) or (log is not None and offset < log.log_start_offset)

    def _judge_news(self, host: Host, node: Node) -> None:
        process, controller_epoch = (host.node_id, host.life), node.replicas.controller_epoch
        self.news_checker.obeys(process, controller_epoch)
        brokers = node.replicas.metadata.brokers
        if brokers is not host.live_brokers:
            host.live_brokers = brokers
            live = {broker_id: broker.epoch for broker_id, broker in brokers.items()}
            self.news_checker.heard(process, live)

    def _look_at_proposal(self, host: Host, topic_partition: TopicPartition, partition: Partition) -> None:
        """Judge a proposed ISR member at the end of the turn that proposed it."""
        pending, key = partition.isr, (host.node_id, topic_partition)
        if not isinstance(pending, PendingExpand) or self._proposals.get(key) is pending:
            return
        self._proposals[key] = pending
        view = host.views[topic_partition]
        checker = self._checker_of(topic_partition, view)
        if checker is not None:
            proposal, member = pending.proposal, pending.new_member
            checker.proposed(view, member, proposal.broker_epochs[proposal.new_isr.index(member)])

    def _forget_gone(self, host: Host, node: Node) -> None:
        """Forget replicas that were deleted or set aside, also if a later topic's log has their place.

        A node lists no log of a failed dir. On a dead disk only its own record of a deletion tells that a log
        is gone: some deletions still succeed there (seed 7700265).
        """
        held = {each: log.partition.topic_id for each, log in node.logs.logs().items()}
        for each, view in list(host.views.items()):
            deleted_id, _ = node.replicas.deleted.get(each, ("", 0))
            if (
                each not in node.replicas.partitions
                and each not in node.replicas.offline
                and (each not in held or is_of_another_incarnation(held[each], view.topic_id))
                and (not host.disk_is_dead or deleted_id == view.topic_id != "")
            ):
                del host.views[each]
                host.seen.pop(each, None)
                checker = self._checker_of(each, view)
                if checker is not None:
                    checker.replica_deleted(host.node_id)

    def _checker_of(self, topic_partition: TopicPartition, view: ReplicaView) -> PartitionChecker | None:
        """Return the checker of this replica; None if its topic is deleted or not known yet."""
        checker = self.checkers.get(topic_partition)
        if checker is None or (view.topic_id and checker.topic_id not in ("", view.topic_id)):
            return None
        return checker

    def _judged(self, host: Host, topic_partition: TopicPartition) -> _Judged | None:
        """Return the checker and the view of a node's replica; None if it is not judged."""
        view = host.views.get(topic_partition)
        checker = self._checker_of(topic_partition, view) if view is not None else None
        return _Judged(checker, view) if checker is not None and view is not None else None

    def _committed_at_last(
        self, topic_partition: TopicPartition, view: ReplicaView, log: PartitionLog
    ) -> None:
        """Judge what a replica committed, and announced, in the turn in which its disk failed later."""
        before, view.high_watermark = view.high_watermark, min(log.high_watermark, view.log_end)
        checker = self._checker_of(topic_partition, view)
        if checker is not None and view.high_watermark > before:
            known = len(view.batches)
            checker.replica_changed(view, first_new=known, cut_to=None, high_watermark_before=before)

    def _look(
        self,
        host: Host,
        topic_partition: TopicPartition,
        log: PartitionLog,
        *,
        is_leader: bool = False,
        leader_epoch: int = -1,
        may_be_cut: bool = False,
    ) -> None:
        view, topic_id = host.views.get(topic_partition), log.topic_id or ""
        if view is None or (view.topic_id and view.topic_id != topic_id):
            view = host.views[topic_partition] = ReplicaView(host.node_id, host.life)
        view.topic_id = topic_id
        if log.log_start_offset < view.log_start:  # recreated there: nothing from there on was synced
            view.synced_before = min(view.synced_before, log.log_start_offset)
        host.rotten.discard(topic_partition)
        self._forget_deleted(view, log.log_start_offset)
        known = len(view.batches)
        cut_to: int | None = None
        log_end = log.log_end_offset
        if (may_be_cut and not host.disk_is_dead) or log_end < view.log_end:
            found = _read_as_written(host, log, log.log_start_offset)
            first_new = 0
            for one, other in zip(view.batches, found, strict=False):
                if one != other:
                    break
                first_new += 1
            if first_new < known:
                cut_to = view.batches[first_new].base
                view.synced_before = min(view.synced_before, cut_to)
                self._time.tally.truncations += 1
                check_epochs(f"{topic_partition} on node {host.node_id}", found, log.epochs)
                self._judge_checkpoint(host, topic_partition, cut_to)
            view.batches[first_new:] = found[first_new:]
        else:
            first_new = known
            if log_end > view.log_end or not known:
                view.batches += _read_as_written(host, log, max(view.log_end, log.log_start_offset))
        before = view.high_watermark
        view.log_start, view.log_end = log.log_start_offset, log_end
        # An empty log may begin anew at a lower offset: no batch is cut then.
        view.synced_before = min(view.synced_before, log_end)
        view.high_watermark = log.high_watermark
        view.leader_epoch, view.is_leader = leader_epoch, is_leader
        self._time.stamp(f"{log_end},{view.high_watermark},{leader_epoch},{is_leader}")
        if self._time.is_traced:
            self._time.note("      ", topic_partition, view)
        checker = self._checker_of(topic_partition, view)
        if checker is not None:
            checker.replica_changed(view, first_new=first_new, cut_to=cut_to, high_watermark_before=before)

    def _judge_checkpoint(self, host: Host, topic_partition: TopicPartition, cut_to: int) -> None:
        """Check that a crash after this cannot leave a high watermark above a truncated log."""
        assert host.node is not None, "only running nodes truncate logs"
        recorded = host.node.logs.checkpointed_high_watermark(topic_partition)
        if recorded > cut_to and not host.disk_is_dead:
            name = f"{topic_partition} on node {host.node_id}"
            raise Violation(
                "I7", f"{name}: truncated to {cut_to}, below the checkpointed high watermark {recorded}"
            )

    def _forget_deleted(self, view: ReplicaView, log_start: int) -> None:
        """Retention removes batches without a truncation: the log starts behind them."""
        gone = sum(batch.end <= log_start for batch in view.batches)
        self._time.tally.batches_deleted += gone
        del view.batches[:gone]

    # --- answers to clients ----------------------------------------------------------------------

    def answered(self, host: Host, call: Call, body: ResponseBody | None) -> None:
        assert host.node is not None
        if isinstance(body, FetchResponse):
            for topic_partition, result in body.partitions.items():
                if result.records and (judged := self._judged(host, topic_partition)):
                    judged.checker.served(judged.view, parse(bytes(result.records)))
        elif isinstance(body, ProduceResponse) and isinstance(call.body, ProduceRequest):
            for topic_partition, produced in body.partitions.items():
                if (judged := self._judged(host, topic_partition)) is None:
                    continue
                checker, view = judged
                identity = bytes(call.body.records[topic_partition][IDENTITY_AT:])
                if produced.error is ErrorCode.NONE and call.body.acks == -1:
                    self._time.tally.acked += 1
                    partition = host.node.replicas.partitions.get(topic_partition)
                    checker.acknowledged(
                        identity,
                        produced.base_offset,
                        view,
                        # None: its disk failed later in this turn.
                        isr_size=len(partition.isr.maximal if partition is not None else checker.replicas),
                        is_leader=partition is None or partition.is_leader,
                        is_registered=partition is None or host.broker_epoch >= 0,
                        is_learned=partition is not None
                        and not partition.leads
                        and partition.agreed_epoch == partition.leader_epoch,
                    )
                elif produced.error is ErrorCode.NOT_LEADER_OR_FOLLOWER and call.is_single:
                    judge_disowned(checker, identity, view)
                elif produced.error in _NEVER_APPENDED and call.is_single:
                    is_gone = produced.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and (
                        checker.is_being_deleted or checker.is_deleted_by_hand
                    )
                    if not is_gone:  # it may have waited when its replica was deleted with the record
                        checker.refused(identity)

        elif isinstance(body, DeleteRecordsResponse):
            for topic_partition, deleted in body.partitions.items():
                if deleted.error is ErrorCode.NONE and (judged := self._judged(host, topic_partition)):
                    judged.checker.records_deleted(
                        deleted.low_watermark,
                        lambda node_id, epoch: self.store.broker_epoch(node_id) == epoch,
                    )

    def responded(self, host: Host, target: int, body: ResponseBody) -> None:
        """A node answers another node."""
        if not isinstance(body, ControlledShutdownResponse) or body.error is not ErrorCode.NONE:
            return
        assert host.node is not None
        context = host.node.controller.context
        if context is None or context.epoch != self.store.controller_epoch:
            return  # it may not know yet what its successor did
        remaining = [str(each) for each in body.remaining]
        for checker in self.checkers.values():
            checker.shutdown_allowed(target, remaining)

    # --- the store -------------------------------------------------------------------------------

    def written(self, operation: Operation, outcome: Outcome) -> None:
        writes = operation.writes if isinstance(operation, Multi) else (operation,)
        self.store_checker.written(
            [write.path for write in writes if isinstance(write, Set | Create | Delete)],
            is_fenced=any(
                isinstance(write, Check) and write.path == layout.CONTROLLER_EPOCH_PATH for write in writes
            ),
            controller_epoch=self.store.controller_epoch,
        )
        results = outcome.results if isinstance(operation, Multi) else (outcome,)
        for write in writes:
            if isinstance(write, Set | Create | Delete):
                self.topic_written(write)
        for write, result in zip(writes, results, strict=True):
            if not isinstance(write, Set | Create) or not write.path.endswith("/state"):
                continue
            for topic_partition, checker in self.checkers.items():
                if layout.partition_state_path(topic_partition) == write.path:
                    assert result.stat is not None
                    self._judge_state(checker, write, result.stat.version)
        for checker in self.checkers.values():
            checker.judge_assignment()

    def state_touched(self, topic_partition: TopicPartition, version: int) -> None:
        """Another writer than the controller rewrote the state without a change."""
        self.checkers[topic_partition].version = version

    def topic_written(self, write: Set | Create | Delete, *, by_hand: bool = False) -> None:
        """Handle a write of a topic's node or of its deletion request; other writes are ignored."""
        directory, _, topic = write.path.rpartition("/")
        if directory == layout.DELETE_TOPICS_PATH:
            if isinstance(write, Create):
                self._to_be_deleted[topic] = None
            else:
                self._to_be_deleted.pop(topic, None)
            for topic_partition, checker in self.checkers.items():
                if topic_partition.topic == topic:
                    checker.is_being_deleted = isinstance(write, Create)
        if directory != layout.TOPICS_PATH:
            return
        if isinstance(write, Delete):
            self._time.tally.topics_deleted += 1
            for topic_partition in [each for each in self.checkers if each.topic == topic]:
                checker = self._retired[topic_partition] = self.checkers.pop(topic_partition)
                checker.is_retired = True
                if not by_hand:  # otherwise the logs are strays at the next start of their nodes
                    self._judge_deleted(topic_partition, checker.topic_id)
            return
        node = layout.parse_topic(write.data)
        for topic_partition in [each for each in self.checkers if each.topic == topic]:
            if topic_partition.partition not in node.partitions:
                # A partition added to a topic that is to be deleted is taken back at once.
                taken_back = self._retired[topic_partition] = self.checkers.pop(topic_partition)
                taken_back.is_retired = True
                if taken_back.state is not None:
                    raise Violation("C13", f"{topic_partition} was removed from its topic but had a leader")
        for number, replicas in sorted(node.partitions.items()):
            topic_partition = TopicPartition(topic, number)
            known = self.checkers.get(topic_partition)
            if known is None:
                known = self.expect(topic_partition, replicas)
                self.on_new_partition(topic_partition)
            known.topic_id = node.topic_id
            known.assigned(replicas, node.adding_replicas.get(number, ()))
            was_changing = known.is_changing_replicas
            known.is_changing_replicas = any(
                number in changing for changing in (node.adding_replicas, node.removing_replicas)
            )
            self._time.tally.reassignments += was_changing and not known.is_changing_replicas

    def _judge_deleted(self, topic_partition: TopicPartition, topic_id: str) -> None:
        for host in self._hosts.values():
            view = host.views.get(topic_partition)
            if view is not None and topic_id and view.topic_id == topic_id and not host.disk_is_dead:
                raise Violation("I16", f"{topic_partition} is deleted but its log still exists: {view}")

    def _judge_state(self, checker: PartitionChecker, write: Set | Create, version: int) -> None:
        state = layout.parse_state(write.data)
        old, unclean = checker.state, checker.unclean_elections
        checker.state_written(
            state,
            version,
            expected_version=write.version if isinstance(write, Set) else None,
            controller_epoch=self.store.controller_epoch,
            departing=self._departing(state.controller_epoch),
        )
        tally = self._time.tally
        tally.elections += old is None or (state.leader_epoch != old.leader_epoch and state.leader >= 0)
        tally.isr_changes += old is not None and set(state.isr) != set(old.isr)
        tally.unclean_elections += checker.unclean_elections - unclean

    def _departing(self, controller_epoch: int) -> Collection[int]:
        """Return the brokers in controlled shutdown, as the controller of that epoch knows them."""
        for host in self._hosts.values():
            context = host.node.controller.context if host.node is not None else None
            if context is not None and context.epoch == controller_epoch:
                return context.shutting_down
        return ()


def read_all(log: PartitionLog) -> list[Stored]:
    """Return every batch of a log."""
    return read_from(log, log.log_start_offset)


def _read_as_written(host: Host, log: PartitionLog, offset: int) -> list[Stored]:
    """Return the batches of a log from `offset` on, those that rot on its disk as they were written."""
    found: list[Stored] = []
    with as_written(host):
        mine = (rot for rot in host.rots if rot.topic_partition == log.topic_partition and rot.is_cut(host))
        for rot in sorted(mine, key=lambda rot: rot.start_offset):
            end = rot.end_in(log)
            found += read_from(log, offset, until=rot.start_offset)
            found += [batch for batch in rot.batches if batch.end > offset and batch.end <= end]
            offset = max(offset, end)
        return found + read_from(log, offset)


def read_from(log: PartitionLog, offset: int, until: int = MAX_LONG) -> list[Stored]:
    """Return the batches of a log from `offset` on. One read goes no further than the end of a segment."""
    found: list[Stored] = []
    try:
        while offset < until and (records := read_bytes(log, offset, _EVERYTHING, until=until).records):
            found += parse(records)
            offset = found[-1].end
    except CorruptBatch as error:
        raise Violation("I3", f"{log.topic_partition} cannot be read: {error}") from error
    return found


def _synced_end(log: PartitionLog, view: ReplicaView | None) -> int:
    """The end of what is synced; the log of a new life does not know all that an earlier one synced."""
    return max(log.recovery_point, view.synced_before if view is not None else 0)
