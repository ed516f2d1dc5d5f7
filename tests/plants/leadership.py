"""Mistakes about who leads and who counts: roles and fences, the ISR, elections, departures, the store."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from logstore.replication import membership, orders
from logstore.replication.controller import alter_partition, election, procedure
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.controller import SERVICES
from logstore.replication.isr import CommittedIsr
from logstore.replication.isr_channel import IsrChannel
from logstore.replication.messages import ControlledShutdownRequest, UpdateMetadataRequest
from logstore.replication.metadata_cache import MetadataCache
from logstore.replication.metastore.operations import ANY_VERSION, Check, Multi, Set
from logstore.replication.node import ORDERS, Node
from logstore.replication.order_gate import OrderGate
from logstore.replication.partition import Partition
from logstore.replication.replica_manager import ReplicaManager
from logstore.testing.stories.rules import former_controller_obeyed, swap
from tests.plants.registry import plant, swap_item

# --- roles and fences --------------------------------------------------------------------------


@plant("a leader ignores the epoch of a fetch (KIP-320)")
def no_epoch_fence_on_fetch(stack: ExitStack) -> None:
    swap(stack, Partition, "check_epoch", lambda self, current_leader_epoch: None)


@plant("a leader resumes its old epoch after it lost its session and restarted")
def epoch_resumed_after_a_loss(stack: ExitStack) -> None:
    swap(stack, Partition, "check_new_state", lambda self, state: None)
    swap(stack, election, "standing", _everybody_is_intact)


def _everybody_is_intact(recorded_epoch: int, incarnation: Any) -> election.Standing:
    return election.Standing.DEAD if incarnation is None else election.Standing.INTACT


@plant("a role of an older leader epoch replaces a newer one (KAFKA-1211)")
def old_role_accepted(stack: ExitStack) -> None:
    swap(stack, orders, "judge", lambda manager, known, state, body: None)


@plant("a leader without a session continues until it is told otherwise (R7)")
def session_expiry_ignored(stack: ExitStack) -> None:
    def session_lost(manager: ReplicaManager, now_ms: int) -> Any:
        manager.broker_epoch = -1
        return manager.end_turn(now_ms)

    swap(stack, orders, "session_lost", session_lost)


@plant("requests addressed to an earlier registration of a broker are accepted (KIP-380)")
def former_registration_obeyed(stack: ExitStack) -> None:
    def refusal_of(manager: ReplicaManager, controller_epoch: int, broker_epoch: int) -> Any:
        return real(manager, controller_epoch, -1)

    real = swap(stack, orders, "refusal_of", refusal_of)


plant("requests of a former controller are accepted")(former_controller_obeyed)


@plant("an order of a controller that the store does not know is obeyed")
def unknown_controller_obeyed(stack: ExitStack) -> None:
    swap(stack, OrderGate, "admits", lambda self, controller_epoch: True)


@plant("a deletion for an unknown registration is carried out")
def deletion_for_any_registration(stack: ExitStack) -> None:
    swap(stack, orders, "may_delete", lambda manager, body: True)


# --- the ISR -----------------------------------------------------------------------------------


@plant("acks=all ignores `min.insync.replicas`")
def min_insync_ignored(stack: ExitStack) -> None:
    swap(stack, Partition, "min_insync", property(lambda self: 1))
    # The controller's word, by which a leader goes too.
    swap(stack, Context, "min_insync", lambda self, topic_partition, assignment=None: 0)


@plant(
    "a restarted follower joins the ISR by fetches of its earlier run (KIP-903)",
    is_rare=True,
)
def former_life_joins(stack: ExitStack) -> None:
    def may_join(*args: Any, **facts: Any) -> bool:
        return bool(real(*args, **{**facts, "live_broker_epoch": -1}))

    def eligible(proposal: Any, *facts: Any) -> bool:
        return bool(real_eligible(proposal._replace(broker_epochs=()), *facts))

    real = swap(stack, membership, "may_join", may_join)
    real_eligible = swap(stack, alter_partition, "_eligible", eligible)


@plant(
    "an ISR answer is applied although a newer ISR is known",
    is_rare=True,
)
def old_isr_answer_believed(stack: ExitStack) -> None:
    """Two rules hold this: an answer counts while its request is under way, and until newer is known."""

    def next_request(self: Any, *facts: Any) -> Any:
        found = real_request(self, *facts)
        if found is not None:
            self.__dict__.setdefault("sent", {})[found[0]] = self.in_flight
        return found

    def owns(self: Any, correlation_id: int) -> bool:
        self.in_flight = self.__dict__.get("sent", {}).get(correlation_id, self.in_flight)
        return bool(real_owns(self, correlation_id))

    def on_isr_answer(partition: Partition, pending: Any, answer: Any) -> Any:
        if answer.isr and partition.is_leader and answer.partition_epoch < partition.partition_epoch:
            partition.isr = CommittedIsr(frozenset(answer.isr))
            return membership.IsrOutcome.ADOPTED
        return real(partition, pending, answer)

    real_request = swap(stack, IsrChannel, "next_request", next_request)
    real_owns = swap(stack, IsrChannel, "owns", owns)
    real = swap(stack, membership, "on_isr_answer", on_isr_answer)


# --- elections and departures ------------------------------------------------------------------


@plant("the preferred replica is elected when alive, even out of sync")
def preferred_leader_out_of_sync(stack: ExitStack) -> None:
    def preferred_leader(replicas: Any, isr: Any, live: Any) -> int | None:
        return replicas[0] if replicas[0] in live else None

    def preferred_state(state: Any, replicas: Any, live: Any, controller_epoch: int) -> Any:
        if replicas[0] in live and replicas[0] not in state.isr:
            epochs = (*state.isr_broker_epochs, live[replicas[0]].epoch)
            state = replace(state, isr=(*state.isr, replicas[0]), isr_broker_epochs=epochs)
        return real(state, replicas, live, controller_epoch)

    swap(stack, election, "preferred_leader", preferred_leader)
    real = swap(stack, election, "preferred_state", preferred_state)


@plant("a broker in controlled shutdown rejoins ISRs (KIP-841)")
def departing_broker_readmitted(stack: ExitStack) -> None:
    def judge(*args: Any, **facts: Any) -> Any:
        return real(*args, **{**facts, "shutting_down": ()})

    swap(stack, MetadataCache, "may_be_in_sync", MetadataCache.is_alive)
    real = swap(stack, alter_partition, "judge", judge)


@plant("a broker may stop before its leaderships have moved")
def let_go_too_early(stack: ExitStack) -> None:
    def shut_down(*args: Any) -> Steps[Any]:
        response: Any = yield from real(*args)
        return response._replace(remaining=())

    service = SERVICES[ControlledShutdownRequest]
    real = service.serve
    swap_item(stack, SERVICES, ControlledShutdownRequest, service._replace(serve=shut_down))


@plant("a replica outside the ISR is elected without permission")
def elected_outside_the_isr(stack: ExitStack) -> None:
    swap(stack, Context, "unclean_enabled", lambda self, topic: True)


@plant("a replica that lost records counts as complete (R1, R2)")
def losses_not_noticed(stack: ExitStack) -> None:
    def standing(recorded_epoch: int, incarnation: Any) -> election.Standing:
        if incarnation is not None:
            incarnation = replace(incarnation, clean=True)
        return real(recorded_epoch, incarnation)  # type: ignore[no-any-return]

    real = swap(stack, election, "standing", standing)


@plant("an unclean start followed by a clean stop counts as no loss")
def loss_forgotten_at_the_next_stop(stack: ExitStack) -> None:
    swap(stack, Node, "is_clean", property(lambda self: True))


@plant(
    "a replica that refused its role is elected from outside the ISR",
    is_rare=True,
)
def refuser_elected(stack: ExitStack) -> None:
    swap(stack, Context, "refusing_brokers", lambda self, topic_partition: [])


@plant("a late UpdateMetadata replaces a newer one")
def late_metadata_wins(stack: ExitStack) -> None:
    def update_metadata(manager: ReplicaManager, *request: Any) -> Any:
        manager.newest_orders.pop(UpdateMetadataRequest, None)
        return orders.update_metadata(manager, *request)

    swap_item(stack, ORDERS, UpdateMetadataRequest, update_metadata)


@plant("a broker does not report a failed log dir (F2)")
def dead_disk_kept_secret(stack: ExitStack) -> None:
    swap(stack, Node, "_report_failed_logs", lambda self, now_ms: [])


@plant("a former controller keeps writing: its epoch is not checked")
def zombie_controller_writes(stack: ExitStack) -> None:
    def fenced(self: Any, *writes: Any) -> Multi:
        return Multi((Check("/", ANY_VERSION), *writes))

    swap(stack, Context, "fenced", fenced)


@plant("state nodes are written without a version check")
def unconditional_writes(stack: ExitStack) -> None:
    def state_writes(topic_partition: Any, state: Any, over: Any) -> tuple[Any, ...]:
        return tuple(
            replace(write, version=ANY_VERSION) if isinstance(write, Set) else write
            for write in real(topic_partition, state, over)
        )

    real = swap(stack, procedure, "state_writes", state_writes)


@plant("a new leader keeps the previous epoch")
def epoch_not_raised(stack: ExitStack) -> None:
    def next_state(state: Any, *facts: Any, **more: Any) -> Any:
        found = real(state, *facts, **more)
        return None if found is None else replace(found, leader_epoch=state.leader_epoch)

    real = swap(stack, election, "next_state", next_state)
