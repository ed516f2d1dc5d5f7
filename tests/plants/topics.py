"""Mistakes with replicas that come and go: reassignment, deletion, namesakes of deleted topics, settings."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from logstore.log.partition_log import PartitionLog
from logstore.replication import orders
from logstore.replication.controller import brokers, deletion, failover, reassignment
from logstore.replication.controller.assignment import Assignment
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.deletion import Deletion, ReplicaState
from logstore.replication.messages import LeaderAndIsrRequest, StopReplicaPartition, StopReplicaRequest
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import ANY_VERSION, Check, Delete, Get, Multi, Outcome
from logstore.replication.node import ORDERS
from logstore.replication.replica_manager import ReplicaManager
from logstore.testing.stories.rules import swap
from tests.plants.registry import plant, rewritten, swap_item


def _unfenced(multi: Multi) -> Steps[Outcome]:
    fence, *writes = multi.writes
    assert isinstance(fence, Check), "every write of a procedure is fenced"
    (outcome,) = yield (Multi((Check("/", ANY_VERSION), *writes)),)
    return outcome


# --- reassignment ------------------------------------------------------------------------------


@plant("a reassignment deletes removed replicas at its start")
def replica_deleted_before_it_leaves(stack: ExitStack) -> None:
    def tell(context: Context, topic_partition: Any) -> None:
        real(context, topic_partition)
        known = context.states.get(topic_partition)
        for broker_id in context.assignment_of(topic_partition).removing:
            if known is not None and broker_id != known.state.leader and broker_id in context.brokers:
                order = {topic_partition: StopReplicaPartition(known.state.leader_epoch, delete=True)}
                context.channels[broker_id].enqueue(StopReplicaRequest, order)

    real = swap(stack, reassignment, "_tell", tell)


@plant("a reassignment writes topic node and state separately")
def list_written_before_the_isr(stack: ExitStack) -> None:
    def write(multi: Multi) -> Steps[Outcome]:
        fence, node, *state = multi.writes
        (first,) = yield (Multi((fence, node)),)
        if first.error is not None or not state:
            return first
        (second,) = yield (Multi((fence, *state)),)
        return (
            second
            if second.error is not None
            else replace(second, results=(*first.results, *second.results[1:]))
        )

    def take_step(*args: Any) -> Steps[Any]:
        return rewritten(real(*args), write)

    real = swap(stack, reassignment, "_take_step", take_step)


@plant(
    "a reassignment starts without a new leader epoch, so an older deletion request is accepted",
    is_rare=True,
)
def no_new_epoch_for_new_replicas(stack: ExitStack) -> None:
    def opening_state(before: Any, after: Any, state: Any, controller_epoch: int) -> Any:
        found = real(before, after, state, controller_epoch)
        return found and replace(found, leader_epoch=state.leader_epoch)

    real = swap(stack, reassignment, "opening_state", opening_state)


@plant("logs of replicas of a superseded target are not deleted")
def superseded_replicas_forgotten(stack: ExitStack) -> None:
    def reassign_to(self: Assignment, *target: Any) -> Assignment:
        found: Assignment = real(self, *target)
        return replace(found, leaving=tuple(each for each in self.leaving if each in found.leaving))

    real = swap(stack, Assignment, "reassign_to", reassign_to)


@plant("a reassignment ends before its replicas are in sync")
def target_not_waited_for(stack: ExitStack) -> None:
    def closing_state(assignment: Assignment, state: Any, live: Any, *facts: Any) -> Any:
        new = tuple(each for each in assignment.target if each in live and each not in state.isr)
        epochs = tuple(live[each].epoch for each in new)
        widened = replace(
            state, isr=(*state.isr, *new), isr_broker_epochs=(*state.isr_broker_epochs, *epochs)
        )
        return real(assignment, widened, live, *facts)

    real = swap(stack, reassignment, "closing_state", closing_state)


@plant("a broker that was away is not asked again to delete a replica")
def deletion_ordered_once(stack: ExitStack) -> None:
    swap(stack, brokers, "stop_leaving", lambda context, **which: None)


@plant("a new controller does not resume reassignments")
def reassignments_not_taken_up(stack: ExitStack) -> None:
    swap(stack, failover, "RESUME", tuple(each for each in failover.RESUME if each != reassignment.resume))


@plant("reassignments are written without a controller fence")
def unfenced_reassignment(stack: ExitStack) -> None:
    def take_step(*args: Any) -> Steps[Any]:
        return rewritten(real(*args), _unfenced)

    real = swap(stack, reassignment, "_take_step", take_step)


# --- deletion ----------------------------------------------------------------------------------


@plant("a deletion does not wait for unavailable brokers")
def dead_replica_not_waited_for(stack: ExitStack) -> None:
    def is_complete(self: Deletion) -> bool:
        done = (ReplicaState.SUCCESSFUL, ReplicaState.INELIGIBLE)
        return self.has_begun and all(state in done for state in self.states.values())

    swap(stack, Deletion, "is_complete", property(is_complete))


@plant("the deletion request is removed at the start of the deletion")
def request_removed_first(stack: ExitStack) -> None:
    def advance(context: Context) -> Steps[None]:
        for name, pending in sorted(context.deletions.items()):
            (read,) = yield (Get(layout.delete_topic_path(name)),)
            if pending.has_begun and read.stat is not None:
                yield (context.fenced(Delete(layout.delete_topic_path(name))),)
        yield from real(context)

    real = swap(stack, deletion, "advance", advance)


@plant("a new controller does not resume deletions")
def deletions_not_taken_up(stack: ExitStack) -> None:
    def nothing(context: Context) -> Steps[None]:
        yield ()

    swap(stack, failover, "RESUME", tuple(each for each in failover.RESUME if each != deletion.resume))
    swap(stack, failover, "deletion", SimpleNamespace(learn_requests=nothing))


@plant("topic nodes are removed without a controller fence")
def unfenced_deletion(stack: ExitStack) -> None:
    def remove_nodes(*args: Any) -> Steps[Any]:
        return rewritten(real(*args), _unfenced)

    real = swap(stack, deletion, "_remove_nodes", remove_nodes)


# --- namesakes, ghosts and strays --------------------------------------------------------------


@plant("a deletion request is accepted for another topic id")
def order_for_another_topic_obeyed(stack: ExitStack) -> None:
    def stop_one(manager: ReplicaManager, topic_partition: Any, order: Any, topic_id: str) -> Any:
        log = manager.logs.get(topic_partition)
        return real(manager, topic_partition, order, (log and log.partition.topic_id) or topic_id)

    real = swap(stack, orders, "stop_one", stop_one)


@plant(
    "the log of a deleted topic is used for its successor (KAFKA-12309, KIP-516)",
    is_rare=True,
)
def ghost_believed(stack: ExitStack) -> None:
    def set_topic_id(self: PartitionLog, topic_id: str) -> None:
        self.topic_id = None
        real(self, topic_id)

    def by_name(local: Any, assigned: Any) -> Any:
        return real_strays(dict.fromkeys(local), assigned)

    swap(stack, orders, "is_of_another_incarnation", lambda topic_id, wanted: False)
    real = swap(stack, PartitionLog, "set_topic_id", set_topic_id)
    real_strays = swap(stack, orders, "strays", by_name)


@plant(
    "a role request from before a deletion creates the log again",
    is_rare=True,
)
def role_outlives_the_replica(stack: ExitStack) -> None:
    swap(stack, orders, "is_deleted", lambda manager, topic_partition, topic_id, leader_epoch: False)


@plant(
    "a late deletion request replaces the record of a later one",
    is_rare=True,
)
def late_order_takes_back(stack: ExitStack) -> None:
    def note(manager: ReplicaManager, *order: Any, is_late: bool) -> None:
        real(manager, *order, is_late=False)

    real = swap(stack, orders, "_note_deletion", note)


@plant("logs missing from any request count as strays")
def any_list_proves_strays(stack: ExitStack) -> None:
    def leader_and_isr(manager: ReplicaManager, address: Any, body: Any, now_ms: int) -> Any:
        if body.assigned is None:
            named = {each: body.topic_ids.get(each.topic, "") for each in body.partitions}
            body = replace(body, assigned=named)
        return orders.leader_and_isr(manager, address, body, now_ms)

    swap_item(stack, ORDERS, LeaderAndIsrRequest, leader_and_isr)


# --- settings ----------------------------------------------------------------------------------


@plant("changed settings do not reach existing replicas")
def settings_not_taken_over(stack: ExitStack) -> None:
    swap(stack, orders, "configure", lambda manager, partition, body: None)
