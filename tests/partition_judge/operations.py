"""The operations on our side: requests to the node, and its answers.

They go through the replica manager, as in a node: fetch sessions, waiting requests and the channel for ISR
proposals take part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from logstore.disk.errors import ErrorCode
from logstore.format.record import ControlType, EndTransactionMarker
from logstore.replication import orders, serving
from logstore.replication.effects import Client, Peer
from logstore.replication.markers import write_txn_markers
from logstore.replication.messages import (
    AlterPartitionResponse,
    AlterPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    EpochAnswer,
    EpochQuery,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResult,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    PartitionState,
    ProduceRequest,
)
from logstore.replication.partition import ACKS_ALL
from logstore.replication.transaction_messages import (
    ProducerMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from logstore.segment.epochs import EpochEndOffset
from tests.judge.sides import PARTITION, Answer, Operation, State
from tests.partition_judge.ours import BROKER_EPOCH, CONTROLLER, FOR_EVER, NO_SESSION, Ours, described


class Refused(Exception):
    """The answer to an operation is this error."""


def perform(ours: Ours, operation: Operation) -> Answer:
    """Do one operation."""
    ours.answers, ours.fetched = [], {}
    try:
        result = _OPERATIONS[operation["op"]](ours, operation)
    except Refused as error:
        return Answer(None, str(error), "", ours.state())
    return Answer(result, None, "", ours.state())


def _check(code: ErrorCode) -> None:
    if code is not ErrorCode.NONE:
        raise Refused(code.name)


# --- the broker and the controller ------------------------------------------------------------------------


def _nothing(ours: Ours, _operation: Operation) -> None:
    """Do nothing; the answer has the state."""


def _restart(ours: Ours, operation: Operation) -> None:
    if operation["is_clean"]:
        ours.manager.logs.close()
    else:
        ours.manager.logs.abandon()
    ours.start()


def _config(ours: Ours, operation: Operation) -> None:
    ours.settings = {**ours.settings, "min.insync.replicas": str(operation["min_insync"])}
    orders.change_defaults(ours.manager, ours.config)


def _checkpoint(ours: Ours, _operation: Operation) -> None:
    ours.manager.logs.checkpoint_high_watermarks()


def _session(ours: Ours, operation: Operation) -> None:
    """Lose the session of the metadata store, register again, and get the same role."""
    ours.take(orders.session_lost(ours.manager, ours.now_ms))
    ours.take(orders.registered(ours.manager, BROKER_EPOCH, ours.now_ms))
    _role(ours, operation["order"])


def _unanswered(ours: Ours, operation: Operation) -> None:
    """End the request for ISRs without an answer to its proposals."""
    assert ours.proposed is not None
    number, ours.proposed = ours.proposed[0], None
    if operation["outcome"] == "disconnected":
        ours.manager.on_disconnected(number, ours.now_ms)
        return
    body = AlterPartitionResponse(ErrorCode.NOT_CONTROLLER, {})
    ours.take(ours.manager.on_response(number, body, ours.now_ms))


def _clock(ours: Ours, operation: Operation) -> None:
    ours.now_ms = operation["now"]
    ours.take(ours.manager.end_turn(ours.now_ms))


def _brokers(ours: Ours, operation: Operation) -> None:
    ours.brokers = operation
    ours.tell_brokers()


def _role(ours: Ours, operation: Operation) -> None:
    led = ours.partition is not None and ours.partition.leads
    state = PartitionState(
        1,
        operation["leader"],
        operation["leader_epoch"],
        tuple(operation["isr"]),
        operation["partition_epoch"],
        tuple(operation["replicas"]),
        is_new=operation["is_new"],
        adding_replicas=tuple(operation["adding"]),
        removing_replicas=tuple(operation["removing"]),
    )
    body = LeaderAndIsrRequest(CONTROLLER, 1, BROKER_EPOCH, {PARTITION: state})
    ours.take(orders.leader_and_isr(ours.manager, Peer(CONTROLLER, ours.next_id()), body, ours.now_ms))
    _check(ours.reply(LeaderAndIsrResponse).partitions[PARTITION])
    assert ours.partition is not None
    if not led or not ours.partition.leads:
        ours.forget()


def _shrink(ours: Ours, _operation: Operation) -> None:
    ours.take(ours.manager.tick(ours.now_ms))


def _answer(ours: Ours, operation: Operation) -> None:
    assert ours.proposed is not None
    number, ours.proposed = ours.proposed[0], None
    if "error" in operation:
        result = AlterPartitionResult(ErrorCode[operation["error"]])
    else:
        result = AlterPartitionResult(
            ErrorCode.NONE,
            operation["leader"],
            operation["leader_epoch"],
            tuple(operation["isr"]),
            operation["partition_epoch"],
        )
    body = AlterPartitionResponse(ErrorCode.NONE, {PARTITION: result})
    ours.take(ours.manager.on_response(number, body, ours.now_ms))


def _roll(ours: Ours, _operation: Operation) -> None:
    if ours.log.segments.active.size:
        ours.log.roll()
        ours.manager.waiting.wake(PARTITION)
        ours.take(ours.manager.end_turn(ours.now_ms))


# --- the leader ---


def _append(ours: Ours, operation: Operation) -> list[int]:
    number, acks = operation["number"], operation["acks"]
    before = ours.log.log_end_offset
    ours.waiting[number] = before + operation["count"]
    request = ProduceRequest({PARTITION: bytes.fromhex(operation["data"])}, acks, FOR_EVER)
    ours.take(serving.produce(ours.manager, Client(number), request, ours.now_ms))
    is_refused = ours.log.log_end_offset == before
    if is_refused or acks != ACKS_ALL:
        _check(ErrorCode[ours.acknowledged.pop(number)])
    return [before, ours.log.log_end_offset - 1]


def _send_fetch(ours: Ours, request: FetchRequest) -> FetchResult | None:
    replica = request.replica_id
    address = Peer(replica, ours.next_id()) if replica >= 0 else Client("consumer")
    ours.answers = []
    ours.take(serving.fetch(ours.manager, address, request, ours.now_ms))
    response = ours.reply(FetchResponse)
    if response.error is not ErrorCode.NONE:
        # The session is gone: the follower begins another.
        assert request.session_id
        wanted = ours.sessions.pop(replica)[2]
        return _fetch_in_session(ours, request._replace(partitions={PARTITION: wanted}))
    if response.session_id and replica not in ours.sessions:
        ours.sessions[replica] = response.session_id, 1, request.partitions[PARTITION]
    return response.partitions.get(PARTITION)


def _fetch_in_session(ours: Ours, request: FetchRequest) -> FetchResult | None:
    """Fetch as a follower does, which names a partition only if it asks for something else now.

    None if nothing has changed since the last answer.
    """
    known = ours.sessions.get(request.replica_id)
    if known is None:
        return _send_fetch(ours, request._replace(session_id=0, session_epoch=0))
    session_id, epoch, told = known
    wanted = request.partitions[PARTITION]
    request = request._replace(session_id=session_id, session_epoch=epoch)
    ours.sessions[request.replica_id] = session_id, epoch + 1, wanted
    return _send_fetch(ours, request if wanted != told else request._replace(partitions={}))


def _marker(ours: Ours, operation: Operation) -> list[int]:
    kind = ControlType.COMMIT if operation["is_commit"] else ControlType.ABORT
    marker = ProducerMarker(operation["producer"], 0, EndTransactionMarker(kind, 0))
    before = ours.log.log_end_offset
    request = WriteTxnMarkersRequest({PARTITION: (marker,)}, FOR_EVER)
    ours.take(write_txn_markers(ours.manager, Client("marker"), request, ours.now_ms))
    if ours.log.log_end_offset == before:
        _check(ours.reply(WriteTxnMarkersResponse).partitions[PARTITION][0])
    return [before, ours.log.log_end_offset - 1]


def _wanted(operation: Operation) -> FetchPartition:
    names = ("offset", "max", "current_epoch", "last_epoch", "log_start")
    return FetchPartition(*(operation[name] for name in names))


def _fetch(ours: Ours, operation: Operation) -> State | None:
    replica = operation["replica"]
    wanted = _wanted(operation)
    request = FetchRequest(
        replica,
        0,
        0,
        1 << 30,
        {PARTITION: wanted},
        operation["broker_epoch"],
        committed_only=operation.get("committed", False),
    )
    if operation.get("in_session"):
        result = _fetch_in_session(ours, request)
    else:
        ours.sessions.pop(replica, None)  # it has one session at a time
        result = _send_fetch(ours, request)
    if result is None:
        return None
    _check(result.error)
    found = {
        "high_watermark": result.high_watermark,
        "start": result.log_start_offset,
        "data": bytes(result.records).hex(),
    }
    if replica < 0:
        found["last_stable"] = result.last_stable_offset
    if result.diverging_epoch is not None:
        found["diverging"] = list(result.diverging_epoch)
    return found


def _wait(ours: Ours, operation: Operation) -> None:
    """Fetch, and wait if there is too little; the state tells of the answer."""
    number, replica = operation["number"], operation["replica"]
    wanted = _wanted(operation)
    request = FetchRequest(
        replica,
        FOR_EVER,
        operation["min"],
        1 << 30,
        {PARTITION: wanted},
        operation["broker_epoch"],
        operation["rack"],
        operation["committed"],
    )
    ours.fetches[number] = operation
    session_id, epoch, told = ours.sessions.pop(replica, (0, 0, None))
    if operation["in_session"]:
        named = {} if wanted == told else {PARTITION: wanted}
        request = request._replace(session_id=session_id, session_epoch=epoch, partitions=named)
    _send_and_wait(ours, request, number, wanted)
    if ours.fetched.get(str(number)) == NO_SESSION:
        # The session is gone: the reader begins another.
        del ours.fetched[str(number)]
        again = request._replace(session_id=0, session_epoch=0, partitions={PARTITION: wanted})
        _send_and_wait(ours, again, number, wanted)


def _send_and_wait(ours: Ours, request: FetchRequest, number: int, wanted: FetchPartition) -> None:
    replica = request.replica_id
    key = ours.next_id() if replica >= 0 else f"fetch {number}"
    ours.fetching[key] = number
    if request.session_epoch >= 0:
        ours.resuming[key] = replica, request.session_epoch + 1, wanted
    address = Peer(replica, key) if isinstance(key, int) else Client(key)
    ours.take(serving.fetch(ours.manager, address, request, ours.now_ms))


def _list_offsets(ours: Ours, operation: Operation) -> list[int] | None:
    wanted = ListOffsetsPartition(operation["timestamp"], operation["current_epoch"])
    request = ListOffsetsRequest(operation["replica"], {PARTITION: wanted}, operation["committed"])
    ours.take(serving.list_offsets(ours.manager, Client("list"), request, ours.now_ms))
    result = ours.reply(ListOffsetsResponse).partitions[PARTITION]
    _check(result.error)
    return None if result.offset < 0 else [result.timestamp, result.offset, result.leader_epoch]


def _epoch_end(ours: Ours, operation: Operation) -> list[int]:
    query = EpochQuery(operation["current_epoch"], operation["epoch"])
    request = OffsetForLeaderEpochRequest(1, {PARTITION: query})
    ours.take(serving.offset_for_leader_epoch(ours.manager, Client("epoch_end"), request, ours.now_ms))
    result = ours.reply(OffsetForLeaderEpochResponse).partitions[PARTITION]
    _check(result.error)
    return [result.epoch, result.end_offset]


def _delete(ours: Ours, operation: Operation) -> State:
    request = DeleteRecordsRequest({PARTITION: operation["offset"]}, FOR_EVER if operation["waits"] else 0)
    ours.take(serving.delete_records(ours.manager, Client("delete"), request, ours.now_ms))
    if not any(isinstance(each, DeleteRecordsResponse) for each in ours.answers):
        assert ours.partition is not None
        return {"low_watermark": ours.partition.low_watermark, "is_done": False}
    result = ours.reply(DeleteRecordsResponse).partitions[PARTITION]
    if result.error is not ErrorCode.REQUEST_TIMED_OUT:
        _check(result.error)
    return {"low_watermark": result.low_watermark, "is_done": result.error is ErrorCode.NONE}


# --- the follower ---


def _leader_answers(ours: Ours, operation: Operation) -> State | None:
    """Answer the request that is under way, and the questions about bounds that follow from it."""
    body = ours.request
    if body is None:
        return None
    asked = described(body)
    _respond(ours, operation)
    while isinstance(body := ours.request, ListOffsetsRequest):
        wanted = body.partitions[PARTITION]
        asked["last" if wanted.timestamp == -1 else "first"] = [wanted.current_leader_epoch]
        _respond(ours, operation)
    return asked


def _respond(ours: Ours, operation: Operation) -> None:
    assert ours.asked is not None
    (number, body), ours.asked = ours.asked, None
    response: FetchResponse | OffsetForLeaderEpochResponse | ListOffsetsResponse
    match body:
        case FetchRequest():
            response = FetchResponse({PARTITION: _fetched(operation["fetch"])})
        case OffsetForLeaderEpochRequest():
            found = operation["epoch"]
            is_error = isinstance(found, str)
            end = EpochAnswer(ErrorCode[found]) if is_error else EpochAnswer(ErrorCode.NONE, *found)
            response = OffsetForLeaderEpochResponse({PARTITION: end})
        case ListOffsetsRequest():
            name = "last" if body.partitions[PARTITION].timestamp == -1 else "first"
            response = ListOffsetsResponse(
                {PARTITION: ListOffsetsResult(ErrorCode.NONE, -1, operation[name])}
            )
    ours.take(ours.manager.on_response(number, response, ours.now_ms))


def _fetched(answer: Operation) -> FetchResult:
    diverging = answer.get("diverging")
    return FetchResult(
        ErrorCode[answer.get("error", "NONE")],
        answer.get("high_watermark", -1),
        answer.get("start", -1),
        bytes.fromhex(answer.get("data", "")),
        None if diverging is None else EpochEndOffset(*diverging),
    )


_OPERATIONS: Final[dict[str, Callable[[Ours, Operation], Any]]] = {
    "restart": _restart,
    "session": _session,
    "unanswered": _unanswered,
    "config": _config,
    "checkpoint": _checkpoint,
    "clock": _clock,
    "brokers": _brokers,
    "role": _role,
    "shrink": _shrink,
    "answer": _answer,
    "roll": _roll,
    "append": _append,
    "marker": _marker,
    "fetch": _fetch,
    "wait": _wait,
    "list": _list_offsets,
    "epoch_end": _epoch_end,
    "delete": _delete,
    "leader_answers": _leader_answers,
}
