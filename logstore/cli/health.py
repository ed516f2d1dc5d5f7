"""`logstore health` and `logstore why`: what is wrong, the evidence, and the next step.

health            all troubles of a cluster, worst first; exit 1 if there is one
why orders-0      the state of a partition, and what explains it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from logstore.cli.operating import CommandConfig, Json
from logstore.cli.operator import RequiredBootstrap, asked_at
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.cli.brokers import Brokers
    from logstore.cli.troubles import LogDir, Observed, Trouble

PATIENCE_S: Final = 5.0
"""The time without an answer after which a broker counts as silent."""


def health(bootstrap: RequiredBootstrap, command_config: CommandConfig = None, as_json: Json = False) -> int:
    """Show all that is wrong with a cluster, worst first; exit 1 if there is anything."""
    from logstore.cli.troubles import Rank, troubles

    with asked_at(bootstrap, command_config) as brokers:
        observed = _observed(brokers)
    found = troubles(observed)
    for each in found:
        _show(each, as_json=as_json)
    if not found and not as_json:
        cluster = observed.cluster
        count = sum(1 for _ in cluster.partitions())
        print(f"nothing is wrong: {len(cluster.brokers)} brokers, {count} partitions, all in sync")
    return int(any(each.rank < Rank.UNDER_WAY for each in found))


def why(
    partition: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION", help="For instance orders-0.")],
    bootstrap: RequiredBootstrap,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Explain the state of a partition: what it waits for, the evidence, and the next step."""
    from logstore.cli.troubles import Rank, troubles
    from logstore.disk.errors import InvalidTopic
    from logstore.disk.topic_partition import parse_directory_name

    try:
        each = parse_directory_name(partition)
    except InvalidTopic as error:
        raise typer.BadParameter("a partition name is like orders-0") from error
    with asked_at(bootstrap, command_config) as brokers:
        observed = _observed(brokers)
    replicas = dict(observed.cluster.partitions()).get(each)
    if replicas is None:
        print_error(f"no partition {each}")
        return 1
    state = observed.cluster.states[each]
    found = [trouble for trouble in troubles(observed) if each in trouble.partitions]
    if not as_json:
        ids = f"replicas {', '.join(map(str, replicas))}  isr {', '.join(map(str, state.isr))}"
        print(f"{each}  leader {state.leader}  epoch {state.leader_epoch}  {ids}")
        if not found:
            print("  nothing is wrong: it has a leader, and all its replicas are in sync")
    for trouble in found:
        _show(trouble, as_json=as_json)
    return int(any(trouble.rank < Rank.UNDER_WAY for trouble in found))


def _show(trouble: Trouble, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "rank": trouble.rank.name.lower(),
                "subject": trouble.subject,
                "says": trouble.says,
                "evidence": trouble.evidence,
                "next_step": trouble.next_step,
            }
        )
    else:
        print(f"{trouble.subject}: {trouble.says}")
        print(f"  because  {trouble.evidence}")
        print(f"  next     {trouble.next_step}")


def _observed(brokers: Brokers) -> Observed:
    """Ask the brokers for what the troubles are judged by."""
    from logstore.broker.errors import RequestUnanswered
    from logstore.cli.broker_operator import TOPIC, BrokerOperator, described_settings
    from logstore.cli.troubles import Observed

    name = "min.insync.replicas"
    cluster = BrokerOperator(brokers).read()
    settings = described_settings(brokers, TOPIC, list(cluster.topics), keys=[name])
    dirs: list[LogDir] = []
    silent: dict[int, str] = {}
    for broker in sorted(cluster.brokers):
        try:
            dirs += _log_dirs(brokers, broker)
        except RequestUnanswered as error:
            silent[broker] = str(error)
    min_isr = {
        topic: int(each.value or 1)
        for topic, found in settings.items()
        for each in found
        if each.name == name
    }
    return Observed(cluster, min_isr, tuple(dirs), silent)


def _log_dirs(brokers: Brokers, broker: int) -> list[LogDir]:
    from logstore.cli.troubles import LogDir
    from logstore.disk.errors import ErrorCode
    from logstore.disk.topic_partition import TopicPartition

    return [
        LogDir(
            broker,
            each.log_dir,
            ErrorCode(each.error_code).name if each.error_code else "",
            each.total_bytes,
            each.usable_bytes,
            frozenset(
                TopicPartition(topic.name, one.partition_index)
                for topic in each.topics
                for one in topic.partitions
            ),
        )
        for each in brokers.log_dirs(broker, timeout_s=PATIENCE_S)
    ]
