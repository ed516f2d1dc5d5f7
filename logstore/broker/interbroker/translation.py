"""Messages of the engine (`replication/messages.py`) ⇄ messages of the wire (`wire/`), by their types.

Nodes ask each other in the newest version of each message (`Api.latest`), whose fields and tags hold all that
the engine says: what comes out is what went in. Topics and partitions are checked on the way in, for they
become names of directories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from logstore.broker.errors import MalformedMessage
from logstore.broker.interbroker import control, proposals, reads
from logstore.broker.wire import interbroker as w
from logstore.broker.wire import types as t
from logstore.broker.wire.declarations import Struct
from logstore.replication import messages as m

_TO_WIRE: Final[Mapping[type[Any], Callable[[Any], Struct]]] = {
    m.LeaderAndIsrRequest: control.leader_and_isr_request,
    m.LeaderAndIsrResponse: control.leader_and_isr_response,
    m.StopReplicaRequest: control.stop_replica_request,
    m.StopReplicaResponse: control.stop_replica_response,
    m.UpdateMetadataRequest: control.update_metadata_request,
    m.UpdateMetadataResponse: control.update_metadata_response,
    m.AlterPartitionRequest: proposals.alter_partition_request,
    m.AlterPartitionResponse: proposals.alter_partition_response,
    m.ControlledShutdownRequest: proposals.controlled_shutdown_request,
    m.ControlledShutdownResponse: proposals.controlled_shutdown_response,
    m.FetchRequest: reads.fetch_request,
    m.FetchResponse: reads.fetch_response,
    m.ListOffsetsRequest: reads.list_offsets_request,
    m.ListOffsetsResponse: reads.list_offsets_response,
    m.OffsetForLeaderEpochRequest: reads.offset_for_leader_epoch_request,
    m.OffsetForLeaderEpochResponse: reads.offset_for_leader_epoch_response,
}
_FROM_WIRE: Final[Mapping[type[Struct], Callable[[Any], Any]]] = {
    w.LeaderAndIsrRequest: control.leader_and_isr_request_of,
    w.LeaderAndIsrResponse: control.leader_and_isr_response_of,
    w.StopReplicaRequest: control.stop_replica_request_of,
    w.StopReplicaResponse: control.stop_replica_response_of,
    w.UpdateMetadataRequest: control.update_metadata_request_of,
    w.UpdateMetadataResponse: control.update_metadata_response_of,
    t.AlterPartitionRequest: proposals.alter_partition_request_of,
    t.AlterPartitionResponse: proposals.alter_partition_response_of,
    w.ControlledShutdownRequest: proposals.controlled_shutdown_request_of,
    w.ControlledShutdownResponse: proposals.controlled_shutdown_response_of,
    t.FetchRequest: reads.fetch_request_of,
    t.FetchResponse: reads.fetch_response_of,
    t.ListOffsetsRequest: reads.list_offsets_request_of,
    t.ListOffsetsResponse: reads.list_offsets_response_of,
    t.OffsetForLeaderEpochRequest: reads.offset_for_leader_epoch_request_of,
    t.OffsetForLeaderEpochResponse: reads.offset_for_leader_epoch_response_of,
}


def to_wire(body: m.RequestBody | m.ResponseBody) -> Struct:
    """The engine's message as the wire has it; raises `MalformedMessage` for one that it cannot say.

    Numbers that are too large show when it is encoded.
    """
    return _TO_WIRE[type(body)](body)


def request_of(body: Struct) -> m.RequestBody:
    """A request of another node, for the engine. Raises `MalformedMessage` for one that nobody may send."""
    request: m.RequestBody = _from_wire(body)
    return request


def response_of(body: Struct) -> m.ResponseBody:
    """Another node's answer, for the engine. Raises `MalformedMessage` for one that nobody may give."""
    response: m.ResponseBody = _from_wire(body)
    return response


def _from_wire(body: Struct) -> Any:
    translate = _FROM_WIRE.get(type(body))
    if translate is None:
        raise MalformedMessage(f"{type(body).__name__} is nothing that nodes say to each other")
    return translate(body)
