"""`logstore elect-preferred` and `elect-unclean`: ask the controller to elect leaders.

In the metadata store the request is a node, which the controller removes once it has tried; over brokers the
controller answers when it has tried. Exit code 0 means that the election was requested, or with `--wait` that
it was tried. Where the preferred replica leads already, nothing changes, and the output says so. One that is
dead or out of sync is never elected, so the request cannot lose records. Over brokers the verb names it, and
exits with 1 once the others are elected.

An unclean election gives a partition without a leader one that may lack committed records. Without
`--accept-loss` the verb only says which partitions need it and what may be lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from logstore.cli.operating import (
    CommandConfig,
    CommandOrStoreConfig,
    Json,
    Wait,
    text_of,
    value_of,
    wait_until,
)
from logstore.cli.operator import Bootstrap, Metadata, RequiredBootstrap, asked_at, operator
from logstore.cli.terminal import print_error, print_json
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.disk.topic_partition import TopicPartition
    from logstore.replication.messages import AdminResult

_PATIENCE_S: Final = 5.0


def elect_preferred(
    partitions: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC-PARTITION]", help="Default: all.")
    ] = None,
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandOrStoreConfig = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json-file",
            metavar="FILE",
            help='Partitions in Kafka\'s form: {"partitions":[{"topic":"a","partition":0}]}.',
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    wait: Wait = 0.0,
    as_json: Json = False,
) -> int:
    """Elect preferred replicas as leaders, if they are in sync."""
    from logstore.cli.cluster_plans import is_led_as_preferred

    wanted = _wanted(partitions, json_file)
    with operator(metadata, bootstrap, command_config) as to:
        topics = None if wanted is None else [each.topic for each in wanted]
        cluster = to.read(topics)
        existing = [each for each, _ in cluster.partitions()]
        known = [each for each in wanted if each in existing] if wanted is not None else existing
        for each in wanted or ():
            if each not in known:
                print_error(f"no partition {each}: skipped")
        if not known:
            print_error("no partitions to elect leaders for")
            return 1
        led_already = {each for each in known if is_led_as_preferred(cluster, each)}
        refused = to.elect(known)
        elected = [each for each in known if each not in refused]
        is_over = wait_until(wait, lambda: not to.is_electing())
        is_late = bool(wait) and not is_over
        after = cluster

        def is_shown() -> bool:
            nonlocal after
            after = to.read(topics)
            return all(is_led_as_preferred(after, each) for each in elected)

        if is_over:
            # The controller has answered; another broker, which is asked now, hears of the leaders later.
            wait_until(wait if bootstrap is not None else 0.0, is_shown)
        for each in known:
            preferred, leader = after.replicas(each)[0], after.state(each).leader
            if as_json:
                facts = {"topic": each.topic, "partition": each.partition, "preferred": preferred}
                is_needed = each not in led_already
                facts |= {"leader": leader if is_over else None, "is_needed": is_needed}
                print_json({**facts, "error": refused.get(each)})
            elif each in refused:
                print_error(f"{refused[each]}; leader {leader} stays")
            elif is_over:
                told = "" if leader == preferred else f" instead of {preferred}"
                told += "  nothing to elect: it led already" if each in led_already else ""
                print(f"{each}  leader {leader}{told}")
        if not is_over and not wait and not as_json:
            print(
                f"requested for {counted(len(known), 'partition')}; "
                "logstore topics describe shows their leaders"
            )
        if is_late:
            print_error(f"no controller handled the request in {wait:g} s; is a broker running?")
        return 1 if is_late or refused or (wanted is not None and len(known) < len(wanted)) else 0


def elect_unclean(
    partitions: Annotated[list[str], typer.Argument(metavar="TOPIC-PARTITION...")],
    bootstrap: RequiredBootstrap,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Elect; committed records may be lost.")
    ] = False,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Elect leaders from outside the ISR, where there is no leader; without --accept-loss, only report."""
    from logstore.cli.broker_operator import BrokerOperator
    from logstore.disk.errors import ErrorCode

    wanted = _wanted(partitions, None) or ()
    results: Mapping[TopicPartition, AdminResult] = {}
    with asked_at(bootstrap, command_config) as brokers:
        to = BrokerOperator(brokers)
        topics = {each.topic for each in wanted}
        before = to.read(topics)
        if unknown := [str(each) for each in wanted if each not in before.states]:
            print_error(f"no partition {', '.join(unknown)}: nothing was elected")
            return 1
        needed = [each for each in wanted if before.states[each].leader not in before.brokers]
        if accept_loss:
            results = to.elect_unclean(wanted)
        after = before

        def is_shown() -> bool:
            nonlocal after
            after = to.read(topics)
            elected = [each for each, (code, _) in results.items() if not code]
            return all(after.states[each].leader in after.brokers for each in elected)

        if accept_loss:  # a broker that is asked hears of the leaders after the controller
            wait_until(_PATIENCE_S, is_shown)
    for each in wanted:
        replicas, isr = before.replicas(each), before.states[each].isr
        code, message = results.get(each, (ErrorCode.NONE, ""))
        is_needed = each in needed and code is not ErrorCode.ELECTION_NOT_NEEDED
        leader = after.states[each].leader
        if as_json:
            facts = {"topic": each.topic, "partition": each.partition, "leader": leader, "isr_before": isr}
            error = code.name if code and is_needed else None
            print_json({**facts, "is_needed": is_needed, "is_done": accept_loss and not code, "error": error})
        elif not is_needed:
            print(f"{each}  leader {leader}  nothing to elect: it has a leader")
        elif code:
            print_error(f"{each}: {code.name}: {message or 'no leader was elected'}")
        elif accept_loss:
            print(f"{each}  leader {leader}  {_loss(isr, 'has')}: when it follows, it keeps that as a loss")
        else:
            live = [broker for broker in replicas if broker in before.brokers]
            print(f"{each}  no leader  ISR {_numbers(isr)}, live replicas {_numbers(live) or 'none'}")
            print(f"  may be lost  {_loss(isr, 'may have')}")
            print(f"  better       start broker {_numbers(isr)}: it has all committed records")
    if needed and not accept_loss:
        print_error("nothing was elected: --accept-loss elects leaders that may lack committed records")
        return 1
    return int(any(results[each][0] for each in needed if each in results))


def _loss(isr: Sequence[int], verb: str) -> str:
    return f"what broker {_numbers(isr)} alone {verb}"


def _numbers(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers))


def _wanted(names: list[str] | None, json_file: Path | None) -> tuple[TopicPartition, ...] | None:
    from logstore.disk.errors import InvalidTopic
    from logstore.disk.topic_partition import parse_directory_name
    from logstore.replication.metastore import layout
    from logstore.replication.metastore.errors import CorruptMetadata

    if names and json_file is not None:
        raise typer.BadParameter("give partition names or --json-file, not both")
    if json_file is not None:
        text = text_of(json_file, "--json-file")
        with value_of("--json-file", CorruptMetadata):
            return layout.parse_partitions(text.encode())
    try:
        return tuple(map(parse_directory_name, names)) if names else None
    except InvalidTopic as error:
        raise typer.BadParameter("a partition name is like orders-0") from error
