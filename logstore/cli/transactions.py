"""`logstore transactions`: find the open transactions that no coordinator will end, and abort one.

    find-hanging   DescribeProducers                        is it open for longer than any may be?
                   ListTransactions, DescribeTransactions   is there a coordinator that will end it?
    abort          the same questions, then WriteTxnMarkers to the partition's leader

Such a transaction holds the last stable offset back, and with it readers of committed data and compaction.
Brokers of logstore coordinate none: one that is open there came with a directory of Apache Kafka. The verbs
ask brokers, also those of Apache Kafka (KIP-664).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from logstore.cli.operating import CommandConfig, Json
from logstore.cli.operator import RequiredBootstrap, asked_at
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.broker.wire.types import DescribeProducersResponsePartitionResponse
    from logstore.cli.brokers import Brokers
    from logstore.disk.topic_partition import TopicPartition

app = typer.Typer(help="Transactions that no coordinator will end.", no_args_is_help=True)

_MAX_TIMEOUT_MS: Final = 900_000
"""Kafka's `transaction.max.timeout.ms`."""
_GRACE_S: Final = 5.0
"""A broker waits half a minute for the replicas in sync; its answer comes after that."""


class Opened(NamedTuple):
    """An open transaction of a producer in one partition."""

    where: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int

    def facts(self) -> dict[str, object]:
        return {
            "topic": self.where.topic,
            "partition": self.where.partition,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "coordinator_epoch": self.coordinator_epoch if self.coordinator_epoch >= 0 else None,
            "start_offset": self.start_offset,
            "last_timestamp_ms": self.last_timestamp_ms,
        }


class Coordinated(NamedTuple):
    """The coordinator of a transaction, which will end it."""

    transactional_id: str
    broker: int


@app.command("find-hanging")
def find_hanging(
    bootstrap: RequiredBootstrap,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC[-PARTITION]]...", help="Default: all, internal topics, too."),
    ] = None,
    broker: Annotated[
        int | None, typer.Option("--broker", metavar="ID", help="Ask this broker about its replicas.")
    ] = None,
    max_transaction_timeout: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout",
            metavar="MS",
            min=0,
            help="The longest time for which a transaction may be open; 0: any time is too long.",
        ),
    ] = _MAX_TIMEOUT_MS,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Show open transactions that no coordinator will end; exit 1 if there are any, or not all were asked."""
    from logstore.cli.producers import described, time_of
    from logstore.disk.files import wall_clock_ms

    with asked_at(bootstrap, command_config) as brokers:
        asked, untold = _to_ask(brokers, topics, broker)
        answers = described(brokers, asked)
        untold |= {where: _name(each.error_code) for where, each in answers.items() if each.error_code}
        latest_ms = wall_clock_ms() - max_transaction_timeout
        late = [each for each in _opened(answers) if each.last_timestamp_ms <= latest_ms]
        known = _coordinated(brokers, late)
    hanging = [each for each in late if (each.where, each.producer_id) not in known]
    for where, reason in sorted(untold.items()):
        print_error(f"{where} could not be asked: {reason}")
    for each in hanging:
        if as_json:
            print_json(each.facts())
        else:
            print(
                f"{each.where}  producer {each.producer_id}  epoch {each.producer_epoch}  open since offset "
                f"{each.start_offset}  last timestamp {time_of(each.last_timestamp_ms)}"
            )
    if not as_json:
        found = "logstore transactions abort TOPIC-PARTITION --start-offset OFFSET ends one"
        print(found if hanging else f"no hanging transactions{' in the others' if untold else ''}")
    return 1 if hanging or untold else 0


@app.command()
def abort(
    partition: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION", help="For instance orders-0.")],
    start_offset: Annotated[
        int, typer.Option("--start-offset", metavar="OFFSET", min=0, help="The transaction's first offset.")
    ],
    bootstrap: RequiredBootstrap,
    plan: Annotated[bool, typer.Option("--plan", help="Only show what would be aborted.")] = False,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Abort an open transaction that no coordinator will end: readers of committed data skip its records.

    They cannot be committed afterwards. It is refused for a transaction that a coordinator will end.
    """
    from logstore.cli.brokers import check
    from logstore.cli.producers import described

    with asked_at(bootstrap, command_config) as brokers:
        where, *others = brokers.partitions_named([partition])
        if others:
            raise typer.BadParameter(f"{partition} is a topic; name one of its partitions, like {where}")
        answers = described(brokers, brokers.leaders([where]))
        check(answers[where].error_code, str(where), answers[where].error_message)
        opened = _opened(answers)
        found = next((each for each in opened if each.start_offset == start_offset), None)
        if found is None:
            starts = ", ".join(str(each.start_offset) for each in opened)
            there = f"open ones start at {starts}" if starts else "none is open"
            print_error(f"{where} has no open transaction that starts at offset {start_offset}; {there}")
            return 1
        if known := _coordinated(brokers, [found]):
            ((transactional_id, broker),) = known.values()
            print_error(
                f"{where}: broker {broker} coordinates this transaction, of transactional id "
                f"{transactional_id!r}, and will end it; nothing was aborted"
            )
            return 1
        if not plan:
            _abort(brokers, found)
    if as_json:
        print_json({**found.facts(), "is_aborted": not plan})
    else:
        told = "would abort" if plan else "aborted"
        print(
            f"{where}  {told} the transaction of producer {found.producer_id}, epoch "
            f"{found.producer_epoch}, that starts at offset {start_offset}"
        )
    return 0


def _to_ask(
    brokers: Brokers, topics: list[str] | None, broker: int | None
) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, str]]:
    """Return the partitions to ask each broker about, and those that cannot be asked, with the reason."""
    from logstore.broker.errors import RequestUnanswered
    from logstore.disk.topic_partition import TopicPartition

    wanted = set(brokers.partitions_named(topics)) if topics else None
    metadata = brokers.metadata()
    if broker is not None and broker not in [each.node_id for each in metadata.brokers]:
        raise RequestUnanswered(f"broker {broker} is not alive")
    asked: dict[int, list[TopicPartition]] = {}
    untold = {}
    for topic in metadata.topics:
        for each in topic.partitions:
            where = TopicPartition(topic.name or "", each.partition_index)
            if wanted is not None and where not in wanted:
                continue
            if broker is None and each.leader_id < 0:
                untold[where] = "it has no leader"
            elif broker is None or broker in each.replica_nodes:
                asked.setdefault(each.leader_id if broker is None else broker, []).append(where)
            elif wanted is not None:
                untold[where] = f"broker {broker} has no replica"
    return asked, untold


def _opened(answers: dict[TopicPartition, DescribeProducersResponsePartitionResponse]) -> list[Opened]:
    """Return the open transactions of partitions, in order."""
    return sorted(
        Opened(
            where,
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.current_txn_start_offset,
            each.last_timestamp,
        )
        for where, partition in answers.items()
        for each in partition.active_producers
        if each.current_txn_start_offset >= 0
    )


def _coordinated(brokers: Brokers, opened: Iterable[Opened]) -> dict[tuple[TopicPartition, int], Coordinated]:
    """Return those of the transactions that a coordinator will end, by partition and producer id.

    A coordinator lists the partitions of a transaction until it has written their markers.
    """
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import check
    from logstore.disk.errors import ErrorCode
    from logstore.disk.topic_partition import TopicPartition

    asked = {(each.where, each.producer_id) for each in opened}
    found: dict[tuple[TopicPartition, int], Coordinated] = {}
    if not asked:
        return found
    listing = t.ListTransactionsRequest(producer_id_filters=sorted({each[1] for each in asked}))
    for node in sorted(each.node_id for each in brokers.metadata(()).brokers):
        listed = brokers.broker(node, listing)
        check(listed.error_code, f"transactions of broker {node}")
        names = [each.transactional_id for each in listed.transaction_states]
        if not names:
            continue
        states = brokers.broker(node, t.DescribeTransactionsRequest(transactional_ids=names))
        for state in states.transaction_states:
            if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue  # it has expired since
            check(state.error_code, f"transactional id {state.transactional_id!r}")
            for topic in state.topics:
                for number in topic.partitions:
                    key = TopicPartition(topic.topic, number), state.producer_id
                    if key in asked:
                        found[key] = Coordinated(state.transactional_id, node)
    return found


def _abort(brokers: Brokers, opened: Opened) -> None:
    """Have the leader write the marker. Raises `RequestRefused`."""
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import TIMEOUT_S, check

    (leader,) = brokers.leaders([opened.where])
    topic = t.WriteTxnMarkersRequestWritableTxnMarkerTopic(
        name=opened.where.topic, partition_indexes=[opened.where.partition]
    )
    marker = t.WriteTxnMarkersRequestWritableTxnMarker(
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
        transaction_result=False,
        topics=[topic],
        coordinator_epoch=max(opened.coordinator_epoch, 0),
    )
    answer = brokers.broker(
        leader, t.WriteTxnMarkersRequest(markers=[marker]), timeout_s=TIMEOUT_S + _GRACE_S
    )
    ((result,),) = (each.partitions for each in answer.markers[0].topics)
    check(result.error_code, str(opened.where))


def _name(code: int) -> str:
    from logstore.disk.errors import ErrorCode

    return f"{ErrorCode(code).name} ({code})"
