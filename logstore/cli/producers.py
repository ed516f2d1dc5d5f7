"""`logstore producers`: the active idempotent and transactional producers of partitions.

A leader remembers each producer's epoch and last sequence: that is how it notices a repeated or a missing
batch. The verb asks brokers, also those of Apache Kafka (DescribeProducers, KIP-664).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from logstore.cli.operating import CommandConfig, Json
from logstore.cli.operator import RequiredBootstrap, Topics, asked_at
from logstore.cli.terminal import print_json

if TYPE_CHECKING:
    from logstore.broker.wire.types import DescribeProducersResponsePartitionResponse
    from logstore.cli.brokers import Brokers
    from logstore.disk.topic_partition import TopicPartition

_LAST_YEAR_MS: Final = 253_402_300_799_999
_MOST_AT_ONCE: Final = 500
"""Partitions in one request."""


def producers(
    topics: Topics,
    bootstrap: RequiredBootstrap,
    broker: Annotated[
        int | None, typer.Option("--broker", metavar="ID", help="Ask this replica, not the leader.")
    ] = None,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Show the active producers of partitions: epoch, last sequence, last timestamp, open transaction."""
    from logstore.cli.brokers import check

    with asked_at(bootstrap, command_config) as brokers:
        named = brokers.partitions_named(topics)
        found = described(brokers, brokers.leaders(named) if broker is None else {broker: named})
    for where, partition in sorted(found.items()):
        check(partition.error_code, str(where), partition.error_message)
    for where, partition in sorted(found.items()):
        if not partition.active_producers and not as_json:
            print(f"{where}  no active producers")
        for each in sorted(partition.active_producers, key=lambda producer: int(producer.producer_id)):
            opened = each.current_txn_start_offset
            if as_json:
                print_json(
                    {
                        "topic": where.topic,
                        "partition": where.partition,
                        "producer_id": each.producer_id,
                        "producer_epoch": each.producer_epoch,
                        "last_sequence": _known(each.last_sequence),
                        "last_timestamp_ms": _known(each.last_timestamp),
                        "coordinator_epoch": _known(each.coordinator_epoch),
                        "transaction_start_offset": _known(opened),
                    }
                )
            else:
                told = f"  transaction open since offset {opened}" if opened >= 0 else ""
                last = "-" if each.last_sequence < 0 else each.last_sequence
                print(
                    f"{where}  producer {each.producer_id}  epoch {each.producer_epoch}  "
                    f"last sequence {last}  last timestamp {time_of(each.last_timestamp)}{told}"
                )
    return 0


def described(
    brokers: Brokers, asked: Mapping[int, Iterable[TopicPartition]]
) -> dict[TopicPartition, DescribeProducersResponsePartitionResponse]:
    """Return the producers of partitions; `asked` has the broker to ask about each."""
    from logstore.broker.translation import by_topic
    from logstore.broker.wire import types as t
    from logstore.disk.topic_partition import TopicPartition

    found = {}
    for broker, partitions in asked.items():
        named = iter(sorted(partitions))
        while some := list(islice(named, _MOST_AT_ONCE)):
            wanted = [
                t.DescribeProducersRequestTopicRequest(
                    name=name, partition_indexes=[number for number, _ in numbers]
                )
                for name, numbers in by_topic((each, None) for each in some).items()
            ]
            for topic in brokers.broker(broker, t.DescribeProducersRequest(topics=wanted)).topics:
                for one in topic.partitions:
                    found[TopicPartition(topic.name, one.partition_index)] = one
    return found


def _known(number: int) -> int | None:
    return number if number >= 0 else None


def time_of(time_ms: int) -> str:
    """Return a producer's own timestamp, which may be any number."""
    from logstore.replication.state_change import format_time

    if time_ms < 0:
        return "-"
    return f"{format_time(time_ms)} UTC" if time_ms <= _LAST_YEAR_MS else str(time_ms)
