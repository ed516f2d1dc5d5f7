"""`logstore why`: the state of one subject, what it waits for, who must act, and the next step.

    why orders-0            a partition            why broker 2      a broker
    why group billing       a consumer group       why cluster       all of it, worst first

A partition's name ends in a dash and a number, so topics called group, broker or cluster can be asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from logstore.arguments import whole_number
from logstore.cli.health import Every, Watch, show
from logstore.cli.operating import CommandOrStoreConfig, Json, store_security_of
from logstore.cli.operator import Bootstrap, Metadata, asked_at, check_one_way
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.cli.explanations import Explanation
    from logstore.cli.troubles import Observed

_PARTITION, _GROUP, _BROKER, _CLUSTER = "partition", "group", "broker", "cluster"


class Subject(NamedTuple):
    """The subject of a question: its kind, and its name or number."""

    kind: str
    name: str = ""


def why(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC-PARTITION|group GROUP|broker ID|cluster",
            help="For instance orders-0, or broker 2.",
        ),
    ],
    bootstrap: Bootstrap = None,
    metadata: Metadata = None,
    watch: Watch = 6.0,
    every: Every = False,
    command_config: CommandOrStoreConfig = None,
    as_json: Json = False,
) -> int:
    """Explain a partition, a group, a broker or the cluster: its state, what it waits for, and what to do."""
    subject = parse_subject(words)
    check_one_way(metadata, bootstrap)
    if bootstrap is not None:
        found = _by_brokers(bootstrap, command_config, subject, watch, every=every)
    else:
        assert metadata is not None, "checked above"
        found = _by_store(metadata, command_config, subject, every=every)
    if found is None:
        print_error(f"no {subject.kind} {subject.name}")
        return 1
    _print(found, as_json=as_json)
    return int(not found.is_sound)


def parse_subject(words: list[str]) -> Subject:
    """Return what the words name. Raises `typer.BadParameter`."""
    from logstore.disk.errors import InvalidTopic
    from logstore.disk.topic_partition import parse_directory_name

    match words:
        case ["cluster"]:
            return Subject(_CLUSTER)
        case ["group", name]:
            return Subject(_GROUP, name)
        case ["broker", name] if whole_number(name, 0) is not None:
            return Subject(_BROKER, name)
        case [name]:
            try:
                return Subject(_PARTITION, str(parse_directory_name(name)))
            except InvalidTopic:
                pass
    raise typer.BadParameter(
        f"{' '.join(words)!r} is not something to explain; write a partition like orders-0, "
        "group NAME, broker ID, or cluster"
    )


def _by_brokers(
    bootstrap: str, command_config: Path | None, subject: Subject, watch_s: float, *, every: bool
) -> Explanation | None:
    from logstore.broker.errors import AuthenticationFailed, RequestUnanswered
    from logstore.cli.explanations import nobody_answers
    from logstore.cli.group_explanations import explain_group
    from logstore.cli.observing import hanging_transactions, observe, observe_group
    from logstore.cli.troubles import of_transactions, troubles

    with asked_at(bootstrap, command_config) as brokers:
        if subject.kind != _GROUP:
            try:
                observed = observe(brokers)
            except AuthenticationFailed:
                raise
            except RequestUnanswered as error:
                if subject.kind != _CLUSTER:
                    raise
                return nobody_answers(str(error))
            return _explained(observed, subject, every=every)
        group = observe_group(brokers, subject.name, watch_s)
        if group.refusal:
            found = [each for each in troubles(observe(brokers)) if group.home in each.partitions]
        else:
            live = sorted(each.node_id for each in brokers.metadata(()).brokers)
            hanging = hanging_transactions(brokers, live)
            found = [*of_transactions({each: hanging[each] for each in group.partitions & hanging.keys()})]
    return explain_group(group, found)


def _by_store(
    metadata: str, command_config: Path | None, subject: Subject, *, every: bool
) -> Explanation | None:
    from logstore.cli.cluster_state import MetadataUnavailable, session, with_attempt
    from logstore.cli.explanations import store_unreachable
    from logstore.cli.observing import observe_store
    from logstore.cli.store_operator import StoreOperator
    from logstore.replication.metastore.errors import MetadataStoreFailed

    if subject.kind == _GROUP:
        raise typer.BadParameter("groups are known to brokers only: give --bootstrap HOST:PORT")
    try:
        with session(metadata, store_security_of(command_config)) as opened:
            observed = observe_store(StoreOperator(opened))
    except (MetadataStoreFailed, MetadataUnavailable) as error:
        if subject.kind != _CLUSTER:
            raise
        return store_unreachable(with_attempt(error))
    return _explained(observed, subject, every=every)


def _explained(observed: Observed, subject: Subject, *, every: bool) -> Explanation | None:
    from logstore.cli.explanations import explain_broker, explain_cluster, explain_partition
    from logstore.disk.topic_partition import parse_directory_name

    if subject.kind == _PARTITION:
        return explain_partition(observed, parse_directory_name(subject.name))
    if subject.kind == _CLUSTER:
        return explain_cluster(observed, every=every)
    return explain_broker(observed, int(subject.name))


def _print(found: Explanation, *, as_json: bool) -> None:
    if as_json:
        print_json(found.facts())
    else:
        since = f"  since {found.since}" if found.since else ""
        print(f"{found.subject}  {found.state}{since}")
        print(f"  because    {found.evidence}")
        if not found.troubles:
            print("  nothing is wrong")
    for trouble in found.troubles:
        show(trouble, as_json=as_json)
