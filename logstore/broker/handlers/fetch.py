"""Fetch: whole batches for a consumer or a follower, at once or when enough bytes are available.

Records are never null, even in partitions with errors; offsets are -1 there. Aborted transactions are listed
for readers of committed data, and null for others. From version 13 on topics are identified by id.

A reader may fetch in a session (KIP-227, `replication/fetch_sessions.py`): the response to a request that
continues one holds only partitions with news. Sessions know topics by name, so a request with an unknown id
is served without one, and INVALID_FETCH_SESSION_EPOCH (71) if it continues one: the reader then starts over.

A range that is not in the page cache is first read in a thread, so that the event loop, and all other
clients, do not wait for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from logstore.broker.dispatch import Call, Services
from logstore.broker.limits import LONGEST_WAIT_MS
from logstore.broker.translation import by_topic, id_from_wire, id_to_wire
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from logstore.disk.ids import id_to_text
from logstore.disk.topic_partition import TopicPartition
from logstore.log.read import is_cold, read_ahead
from logstore.replication.messages import (
    FINAL_SESSION_EPOCH,
    FIRST_SESSION_EPOCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ResponseBody,
)

_WITH_STORAGE_ERROR: Final = 6
_BY_ID: Final = 13
_WITH_RACK: Final = 11
_COMMITTED: Final = 1
_UNKNOWN_ID: Final = FetchResult(ErrorCode.UNKNOWN_TOPIC_ID)


def handle(call: Call, body: t.FetchRequest, services: Services) -> t.FetchResponse | None:
    names = _names(call, body.topics, services)
    forgotten = _names(call, body.forgotten_topics_data, services)
    if None in (*names, *forgotten) and body.session_epoch > FIRST_SESSION_EPOCH:
        return t.FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    max_bytes = services.settings.limits.fetch_max_bytes
    request = request_of(body, call.version, names, forgotten, max_bytes=max_bytes)
    door = call.connection.door
    if request.replica_id >= 0 and door is not None and not door.is_for_brokers:
        call.refuse(f"fetches of brokers are not served on listener {door.listener}")
        return None
    respond: Callable[[ResponseBody], t.FetchResponse] = partial(_response, body, names, services)
    if call.version < _WITH_STORAGE_ERROR:
        respond = partial(_as_of_old, respond)
    ask = partial(services.runtime.ask_for, call, request, respond, source=request.replica_id)
    reads = _cold_reads(request, services)
    if not reads:
        ask()
        return None
    services.in_thread(call, partial(_warm, reads), lambda _: ask())
    return None


def request_of(
    body: t.FetchRequest,
    version: int,
    names: Sequence[str | None],
    forgotten: Sequence[str | None] = (),
    *,
    max_bytes: int,
) -> FetchRequest:
    """Return the request for the engine; `names` of its topics, and of `forgotten` ones, are None for unknown
    ids.
    """
    partitions = {
        TopicPartition(name, wanted.partition): FetchPartition(
            wanted.fetch_offset,
            wanted.partition_max_bytes,
            wanted.current_leader_epoch,
            wanted.last_fetched_epoch,
            wanted.log_start_offset,
            topic_id=id_from_wire(topic.topic_id),
            is_synced=wanted.is_synced,
        )
        for topic, name in zip(body.topics, names, strict=True)
        if name is not None
        for wanted in topic.partitions
    }
    replica_id, broker_epoch = body.replica_id, -1
    if body.replica_state is not None:
        replica_id, broker_epoch = body.replica_state.replica_id, body.replica_state.replica_epoch
    return FetchRequest(
        replica_id,
        # An unknown topic is answered at once.
        min(body.max_wait_ms, LONGEST_WAIT_MS) if None not in names else 0,
        body.min_bytes,
        min(body.max_bytes, max_bytes),
        partitions,
        broker_epoch,
        rack=body.rack_id if version >= _WITH_RACK and body.has_rack else None,
        committed_only=body.isolation_level == _COMMITTED,
        session_id=body.session_id,
        session_epoch=body.session_epoch if None not in names else FINAL_SESSION_EPOCH,
        forgotten=tuple(
            TopicPartition(name, number)
            for topic, name in zip(body.forgotten_topics_data, forgotten, strict=True)
            if name is not None
            for number in topic.partitions
        ),
        uses_ids=version >= _BY_ID,
    )


def _names(
    call: Call,
    topics: Sequence[t.FetchRequestFetchTopic] | Sequence[t.FetchRequestForgottenTopic],
    services: Services,
) -> list[str | None]:
    """Return the name of each topic; None for an unknown id."""
    if call.version < _BY_ID:
        return [topic.topic for topic in topics]
    known = services.metadata.topic_names
    return [topic.topic_name or known.get(id_to_text(topic.topic_id)) for topic in topics]


def _response(
    body: t.FetchRequest, names: list[str | None], services: Services, answer: ResponseBody
) -> t.FetchResponse:
    assert isinstance(answer, FetchResponse)
    _count(body, services, answer)
    if answer.error is not ErrorCode.NONE:
        return t.FetchResponse(error_code=answer.error)
    if body.session_epoch > FIRST_SESSION_EPOCH:
        return _news(body, answer)
    results = dict(answer.partitions)
    response = t.FetchResponse(session_id=answer.session_id, responses=[])
    for topic, name in zip(body.topics, names, strict=True):
        partitions = []
        for number in dict.fromkeys(wanted.partition for wanted in topic.partitions):
            # A partition that is listed again has been answered: its records are sent once.
            result = results.pop(TopicPartition(name, number), None) if name is not None else _UNKNOWN_ID
            if result is not None:
                partitions.append(_partition(number, result))
        response.responses.append(
            t.FetchResponseFetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                topic_name=topic.topic_name,
                partitions=partitions,
            )
        )
    return response


def _news(body: t.FetchRequest, answer: FetchResponse) -> t.FetchResponse:
    """Return the response to a request that continued a session: it need not have named the partitions."""
    by_name = body.replica_state is not None
    return t.FetchResponse(
        session_id=answer.session_id,
        responses=[
            t.FetchResponseFetchableTopicResponse(
                topic=name,
                topic_id=id_to_wire(answer.topic_ids.get(name, "")),
                topic_name=name if by_name else "",
                partitions=[_partition(number, result) for number, result in results],
            )
            for name, results in by_topic(answer.partitions.items()).items()
        ],
    )


def _as_of_old(respond: Callable[[ResponseBody], t.FetchResponse], answer: ResponseBody) -> t.FetchResponse:
    """Return the response for a client that may not know KAFKA_STORAGE_ERROR (56), and would end."""
    response = respond(answer)
    for topic in response.responses:
        for each in topic.partitions:
            if each.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                each.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return response


def _count(body: t.FetchRequest, services: Services, answer: FetchResponse) -> None:
    traffic, known = services.traffic, services.metadata.topic_ids
    is_follower = body.replica_state is not None or body.replica_id >= 0
    for topic_partition, result in answer.partitions.items():
        traffic.fetched(
            topic_partition.topic,
            result.error,
            len(result.records),
            is_follower=is_follower,
            is_known=topic_partition.topic in known,
        )


def _partition(index: int, result: FetchResult) -> t.FetchResponsePartitionData:
    response = t.FetchResponsePartitionData(
        partition_index=index,
        error_code=result.error,
        high_watermark=result.high_watermark,
        last_stable_offset=result.last_stable_offset,
        log_start_offset=result.log_start_offset,
        aborted_transactions=None,
        preferred_read_replica=result.preferred_read_replica,
        records=result.records,
    )
    if result.diverging_epoch is not None:
        end = result.diverging_epoch
        response.diverging_epoch = t.FetchResponseEpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)
    if result.aborted is not None:
        response.aborted_transactions = [
            t.FetchResponseAbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in result.aborted
        ]
    return response


# --- cold reads -------------------------------------------------------------------------------


def _cold_reads(request: FetchRequest, services: Services) -> list[Callable[[], None]]:
    """Return reads to be done in a thread first; nearly always none."""
    reads: list[Callable[[], None]] = []
    replicas = services.node.replicas.partitions
    left = request.max_bytes
    to_read = request.partitions
    session = services.node.replicas.waiting.sessions.get(request.session_id)
    if session is not None and request.session_epoch > FIRST_SESSION_EPOCH:
        to_read = {**{known: session.wanted[known] for known in session.restless}, **to_read}
    for topic_partition, wanted in to_read.items():
        replica = replicas.get(topic_partition)
        if replica is None or left <= 0:
            continue
        max_bytes = max(min(wanted.max_bytes, left), 0)
        left -= max_bytes
        if is_cold(replica.log, wanted.fetch_offset, max_bytes):
            reads.append(partial(read_ahead, replica.log, wanted.fetch_offset, max_bytes))
    return reads


def _warm(reads: list[Callable[[], None]]) -> None:
    for read in reads:
        read()
