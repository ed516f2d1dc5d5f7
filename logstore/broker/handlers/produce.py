"""Produce: batches for some partitions, answered at once or when `acks` is satisfied.

acks=0 has no answer, so a failure closes the connection. zstd needs version 7. A partition that is listed
twice has no single answer, so the connection is closed. Internal topics are INVALID_TOPIC_EXCEPTION (17), as
in Kafka: a client's record there might stop all groups. Transactional batches are INVALID_TXN_STATE (48): no
coordinator here could end them, and they would block all readers of committed data. Older formats are
INVALID_RECORD (87), as in Kafka: clients send a batch that is CORRUPT_MESSAGE (2) again and again. A batch
that inflates far or has very many records is validated in a thread: 100 MiB take a second. While a request
waits for its acks, its connection's next one is served (decision 062). Our own clients also ask for the
durability level that acks=all reached.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from logstore.broker.dispatch import Call, Services
from logstore.broker.handlers.metadata import INTERNAL_TOPICS
from logstore.broker.limits import LONGEST_WAIT_MS
from logstore.broker.traffic import RECORD_COUNT
from logstore.broker.translation import level_to_wire
from logstore.broker.wire import types as t
from logstore.config import LogConfig
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidRecord, InvalidTimestamp
from logstore.format.batch import MAGIC, MAGIC_END
from logstore.format.compression import Codec, InflatesTooFar
from logstore.log.append import CheckedBatch, check_ahead
from logstore.replication.messages import ProduceRequest, ProduceResponse, ProduceResult, ResponseBody

Checked: TypeAlias = dict[TopicPartition, CheckedBatch | ProduceResult]

_KNOWS_ZSTD: Final = 7
_MAGIC_AT: Final = MAGIC_END - 1
_ATTRIBUTES_AT: Final = 22
"""Position of the low byte of a batch's attributes. The log checks that a partition has one batch."""
_CODECS, _TRANSACTIONAL = 0x07, 0x10
BYTES_IN_LINE: Final = 1 << 20
"""A batch that inflates to more is validated in a thread."""
RECORDS_IN_LINE: Final = 20_000
"""A batch with more records is validated in a thread."""
_NO_TRANSACTIONS: Final = ProduceResult(
    ErrorCode.INVALID_TXN_STATE,
    message="transactions are not supported; produce without a transactional id",
)
_INTERNAL: Final = ProduceResult(
    ErrorCode.INVALID_TOPIC_EXCEPTION, message="clients cannot write to an internal topic"
)
_OLD_FORMAT: Final = ProduceResult(
    ErrorCode.INVALID_RECORD, message="message formats v0 and v1 are not supported; send v2"
)
_NO_ZSTD: Final = ProduceResult(
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, message="zstd needs Produce version 7 or later"
)


def handle(call: Call, body: t.ProduceRequest, services: Services) -> None:
    records: dict[TopicPartition, bytes | memoryview] = {}
    refused: dict[TopicPartition, ProduceResult] = {}
    for topic in body.topic_data:
        for partition in topic.partition_data:
            topic_partition = TopicPartition(topic.name, partition.index)
            if topic_partition in records or topic_partition in refused:
                call.refuse(f"partition {topic_partition} is listed twice")
                return
            data = partition.records if partition.records is not None else b""
            attributes = data[_ATTRIBUTES_AT] if len(data) > _ATTRIBUTES_AT else 0
            if topic.name in INTERNAL_TOPICS:
                refused[topic_partition] = _INTERNAL
            elif len(data) > _MAGIC_AT and data[_MAGIC_AT] < MAGIC and any(data[:_MAGIC_AT]):
                refused[topic_partition] = _OLD_FORMAT
            elif body.transactional_id is not None or attributes & _TRANSACTIONAL:
                refused[topic_partition] = _NO_TRANSACTIONS
            elif call.version < _KNOWS_ZSTD and attributes & _CODECS == Codec.ZSTD:
                refused[topic_partition] = _NO_ZSTD
            else:
                records[topic_partition] = data
    large = _check_small(records, services)
    if not large:
        _append(call, body, services, records, refused)
        return

    def checked(results: Checked) -> None:
        for topic_partition, result in results.items():
            if isinstance(result, ProduceResult):
                del records[topic_partition]
                refused[topic_partition] = result
            else:
                records[topic_partition] = result
        _append(call, body, services, records, refused)

    services.check_in_thread(call, partial(_check_large, large, services.now_ms()), checked)


def _check_small(
    records: dict[TopicPartition, bytes | memoryview], services: Services
) -> dict[TopicPartition, tuple[bytes | memoryview, LogConfig]]:
    """Validate compressed batches here as long as they inflate to little; return the large ones.

    The engine refuses the others (and what cannot be appended anyway) as it always does.
    """
    large = {}
    for topic_partition, data in records.items():
        codec = len(data) > _ATTRIBUTES_AT and data[_ATTRIBUTES_AT] & _CODECS
        count = RECORD_COUNT.unpack_from(data)[0] if len(data) >= RECORD_COUNT.size else 0
        if not codec and count <= RECORDS_IN_LINE:
            continue
        partition = services.node.replicas.partitions.get(topic_partition)
        if partition is None or not partition.is_leader or partition.log.is_closed:
            continue
        config = partition.log.config
        if len(data) > config.max_message_bytes:
            continue
        if count > RECORDS_IN_LINE:
            large[topic_partition] = data, config
            continue
        try:
            records[topic_partition] = check_ahead(
                data, now_ms=services.now_ms(), config=config, max_decompressed_bytes=BYTES_IN_LINE
            )
        except InflatesTooFar:
            large[topic_partition] = data, config
        except EngineError:
            continue
    return large


def _check_large(batches: dict[TopicPartition, tuple[bytes | memoryview, LogConfig]], now_ms: int) -> Checked:
    """Validate batches, in a thread."""
    results: Checked = {}
    for topic_partition, (data, config) in batches.items():
        try:
            results[topic_partition] = check_ahead(data, now_ms=now_ms, config=config)
        except EngineError as error:
            blamed = error.record_errors if isinstance(error, InvalidRecord | InvalidTimestamp) else ()
            results[topic_partition] = ProduceResult(error.code, message=str(error), record_errors=blamed)
    return results


def _append(
    call: Call,
    body: t.ProduceRequest,
    services: Services,
    records: dict[TopicPartition, bytes | memoryview],
    refused: dict[TopicPartition, ProduceResult],
) -> None:
    request = ProduceRequest(records, body.acks, min(body.timeout_ms, LONGEST_WAIT_MS))
    if refused and body.acks == 0:
        call.refuse(next(iter(refused.values())).message)
    elif not records and body.acks == 0:
        call.end()
    elif not records:
        call.answer(_response(call, body, services, refused, ProduceResponse({})))
    else:
        if body.acks == 0:
            call.on_answer = partial(_count_unanswered, body, services, call.on_answer)
        services.runtime.ask_for(call, request, partial(_response, call, body, services, refused))
        if not call.is_done:
            call.connection.take_next()


def _count_unanswered(
    body: t.ProduceRequest, services: Services, on_answer: Callable[[], None] | None
) -> None:
    """Count a request with acks=0, whose every batch has been appended: a failure refuses the call."""
    for topic in body.topic_data:
        for partition in topic.partition_data:
            services.traffic.produced(topic.name, ErrorCode.NONE, partition.records)
    if on_answer is not None:
        on_answer()


def _response(
    call: Call,
    body: t.ProduceRequest,
    services: Services,
    refused: dict[TopicPartition, ProduceResult],
    answer: ResponseBody,
) -> t.ProduceResponse:
    assert isinstance(answer, ProduceResponse)
    results = {**answer.partitions, **refused} if refused else answer.partitions
    traffic = services.traffic
    response = t.ProduceResponse()
    for topic in body.topic_data:
        answers = t.ProduceResponseTopicProduceResponse(name=topic.name)
        response.responses.append(answers)
        is_known = topic.name in services.metadata.topic_ids
        for partition in topic.partition_data:
            result = results[TopicPartition(topic.name, partition.index)]
            answers.partition_responses.append(_partition(partition.index, result, body))
            traffic.produced(topic.name, result.error, partition.records, is_known=is_known)
    return response


def _partition(
    index: int, result: ProduceResult, body: t.ProduceRequest
) -> t.ProduceResponsePartitionProduceResponse:
    response = t.ProduceResponsePartitionProduceResponse(
        index=index,
        error_code=result.error,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        error_message=result.message or None,
    )
    if result.record_errors:
        response.record_errors = [
            t.ProduceResponseBatchIndexAndErrorMessage(
                batch_index=each.batch_index, batch_index_error_message=each.message
            )
            for each in result.record_errors
        ]
    if body.asks_level:
        response.level = level_to_wire(result.durability)
    return response
