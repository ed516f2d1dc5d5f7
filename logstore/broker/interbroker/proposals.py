"""What brokers ask the controller: AlterPartition 3 (by name, in a tag; ids are zero), ControlledShutdown 3.

A proposal without broker epochs is sent with every one unknown, and one with every one unknown is read as
without: the controller takes both alike.
"""

from __future__ import annotations

from logstore.broker.interbroker.parts import Partitions, by_topic, checked, error_of
from logstore.broker.wire import interbroker as w
from logstore.broker.wire import types as t
from logstore.replication.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    IsrProposal,
)

UNKNOWN_EPOCH = -1
RECOVERED, RECOVERING = 0, 1
"""Kafka's states of a leader after an unclean election."""


def alter_partition_request(request: AlterPartitionRequest) -> t.AlterPartitionRequest:
    return t.AlterPartitionRequest(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        topics=[
            t.AlterPartitionRequestTopicData(
                topic_name=topic, partitions=[_proposal(partition, each) for partition, each in proposals]
            )
            for topic, proposals in by_topic(request.partitions.items()).items()
        ],
    )


def _proposal(partition: int, proposal: IsrProposal) -> t.AlterPartitionRequestPartitionData:
    epochs = proposal.broker_epochs or (UNKNOWN_EPOCH,) * len(proposal.new_isr)
    return t.AlterPartitionRequestPartitionData(
        partition_index=partition,
        leader_epoch=proposal.leader_epoch,
        new_isr_with_epochs=[
            t.AlterPartitionRequestBrokerState(broker_id=member, broker_epoch=epoch)
            for member, epoch in zip(proposal.new_isr, epochs, strict=True)
        ],
        leader_recovery_state=RECOVERING if proposal.recovering else RECOVERED,
        partition_epoch=proposal.partition_epoch,
        all_synced=proposal.all_synced,
    )


def alter_partition_request_of(wire: t.AlterPartitionRequest) -> AlterPartitionRequest:
    partitions: Partitions[IsrProposal] = Partitions()
    for topic in wire.topics:
        for each in topic.partitions:
            epochs = tuple(member.broker_epoch for member in each.new_isr_with_epochs)
            proposal = IsrProposal(
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                new_isr=tuple(member.broker_id for member in each.new_isr_with_epochs),
                broker_epochs=epochs if any(epoch != UNKNOWN_EPOCH for epoch in epochs) else (),
                all_synced=each.all_synced,
                recovering=each.leader_recovery_state == RECOVERING,
            )
            partitions.put(topic.topic_name, each.partition_index, proposal)
    return AlterPartitionRequest(wire.broker_id, wire.broker_epoch, partitions)


def alter_partition_response(response: AlterPartitionResponse) -> t.AlterPartitionResponse:
    return t.AlterPartitionResponse(
        error_code=response.error,
        topics=[
            t.AlterPartitionResponseTopicData(
                topic_name=topic,
                partitions=[
                    t.AlterPartitionResponsePartitionData(
                        partition_index=partition,
                        error_code=each.error,
                        leader_id=each.leader,
                        leader_epoch=each.leader_epoch,
                        isr=list(each.isr),
                        partition_epoch=each.partition_epoch,
                        min_insync=each.min_insync,
                    )
                    for partition, each in results
                ],
            )
            for topic, results in by_topic(response.partitions.items()).items()
        ],
    )


def alter_partition_response_of(wire: t.AlterPartitionResponse) -> AlterPartitionResponse:
    partitions: Partitions[AlterPartitionResult] = Partitions()
    for topic in wire.topics:
        for each in topic.partitions:
            result = AlterPartitionResult(
                error=error_of(each.error_code),
                leader=each.leader_id,
                leader_epoch=each.leader_epoch,
                isr=tuple(each.isr),
                partition_epoch=each.partition_epoch,
                min_insync=each.min_insync,
            )
            partitions.put(topic.topic_name, each.partition_index, result)
    return AlterPartitionResponse(error_of(wire.error_code), partitions)


def controlled_shutdown_request(request: ControlledShutdownRequest) -> w.ControlledShutdownRequest:
    return w.ControlledShutdownRequest(broker_id=request.broker_id, broker_epoch=request.broker_epoch)


def controlled_shutdown_request_of(wire: w.ControlledShutdownRequest) -> ControlledShutdownRequest:
    return ControlledShutdownRequest(wire.broker_id, wire.broker_epoch)


def controlled_shutdown_response(response: ControlledShutdownResponse) -> w.ControlledShutdownResponse:
    return w.ControlledShutdownResponse(
        error_code=response.error,
        remaining_partitions=[
            w.ControlledShutdownResponseRemainingPartition(topic_name=topic, partition_index=partition)
            for topic, partition in response.remaining
        ],
    )


def controlled_shutdown_response_of(wire: w.ControlledShutdownResponse) -> ControlledShutdownResponse:
    remaining = (checked(each.topic_name, each.partition_index) for each in wire.remaining_partitions)
    return ControlledShutdownResponse(error_of(wire.error_code), tuple(remaining))
