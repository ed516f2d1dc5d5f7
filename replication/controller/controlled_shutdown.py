"""Controlled shutdown: a broker that is about to stop hands over what it leads, and leaves the ISRs.

    ControlledShutdown ──► mark ──► everybody hears of it   it joins no ISR any more
                            ├─ what it leads     the next of the assignment that is in sync leads
                            └─ what it follows   StopReplica (nothing deleted), then out of the ISR
                                             ──► remaining: what it leads still

Partitions without another replica close with the broker and are not counted. Asked again, the answer is the
same. While a topic's node cannot be read, nobody knows whether the broker leads partitions of it: what is
known is moved, and the broker is told to ask again. The mark is this term's alone and goes with the
registration: the next controller is asked anew.
"""

from __future__ import annotations

from logstore.disk.errors import ErrorCode
from logstore.disk.marks import mark
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.controller import election
from logstore.replication.controller.context import Context, Steps
from logstore.replication.controller.partition_states import settle
from logstore.replication.messages import (
    NO_EPOCH,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    StopReplicaPartition,
    StopReplicaRequest,
)
from logstore.replication.metastore import layout


def shut_down(
    context: Context, request: ControlledShutdownRequest, results: dict[None, None]
) -> Steps[ControlledShutdownResponse]:
    """Move what can be moved away from the broker; the answer names what could not."""
    broker_id = request.broker_id
    broker = context.brokers.get(broker_id)
    if broker is None or request.broker_epoch > broker.endpoint.epoch:
        # Its registration, or its present one, is still on its way to us.
        mark("controlled shutdown: asked by a broker that the controller does not know yet")
        return ControlledShutdownResponse(ErrorCode.BROKER_NOT_AVAILABLE)
    if NO_EPOCH < request.broker_epoch < broker.endpoint.epoch:
        return ControlledShutdownResponse(ErrorCode.STALE_BROKER_EPOCH)
    if broker_id not in context.shutting_down:
        context.shutting_down.add(broker_id)
        # First of all: no leader is to wait for it, or to ask for its return.
        context.announce_brokers()
    concerned = [
        each
        for each in sorted(context.states)
        if broker_id in context.replicas[each]
        and len(context.replicas[each]) > 1
        and not context.is_being_deleted(each.topic)
    ]
    followed = {
        each: StopReplicaPartition(state.leader_epoch, delete=False)
        for each in concerned
        if (state := context.states[each].state).leader != broker_id
    }
    if followed:
        context.channels[broker_id].enqueue(StopReplicaRequest, followed)

    def decide(each: TopicPartition, state: layout.LeaderAndIsr | None) -> layout.LeaderAndIsr | None:
        if state is None:
            return None
        return election.state_after_shutdown(
            state, context.replicas[each], context.live(each), context.shutting_down, context.epoch
        )

    yield from settle(context, concerned, decide, reason=f"broker {broker_id} shuts down")
    remaining = tuple(
        each
        for each in concerned
        if (known := context.states.get(each)) is not None and known.state.leader == broker_id
    )
    if remaining:
        mark("controlled shutdown: nobody else can lead a partition")
    if set(context.unreadable_topics) - context.topics.keys():
        # It may lead partitions of those, and nobody knows which: better it asks again in a while.
        mark("controlled shutdown: a topic that cannot be read may be led by the broker")
        return ControlledShutdownResponse(ErrorCode.UNKNOWN_SERVER_ERROR, remaining)
    return ControlledShutdownResponse(ErrorCode.NONE, remaining)


def refuse(request: ControlledShutdownRequest, results: dict[None, None]) -> ControlledShutdownResponse:
    return ControlledShutdownResponse(ErrorCode.NOT_CONTROLLER)
