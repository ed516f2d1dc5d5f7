"""`logstore elect-preferred`: ask the controller to elect preferred leaders.

In the metadata store the request is a node, which the controller removes once it has tried; over brokers the
controller answers when it has tried. Exit code 0 means that the election was requested, or with `--wait` that
it was tried. Where the preferred replica leads already, nothing changes, and the output says so. A preferred
replica that is dead or out of sync is never elected, so the request cannot lose records.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import CommandConfig, Json, Wait, wait_until
from logstore.cli.operator import Bootstrap, Metadata, operator
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.disk.topic_partition import TopicPartition


def elect_preferred(
    partitions: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC-PARTITION]", help="Default: all.")
    ] = None,
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
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
    """Elect preferred replicas as leaders, where they are in sync."""
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
        to.elect(known)
        is_over = wait_until(wait, lambda: not to.is_electing())
        is_late = bool(wait) and not is_over
        after = to.read(topics) if is_over else cluster
        for each in known:
            state = after.states.get(each)
            preferred = after.topics[each.topic].assignment.partitions[each.partition][0]
            leader = state.leader if state is not None else -1
            if as_json:
                facts = {"topic": each.topic, "partition": each.partition, "preferred": preferred}
                is_needed = each not in led_already
                print_json({**facts, "leader": leader if is_over else None, "is_needed": is_needed})
            elif is_over:
                told = "" if leader == preferred else f" instead of {preferred}"
                told += "  nothing to elect: it led already" if each in led_already else ""
                print(f"{each}  leader {leader}{told}")
        if not is_over and not wait and not as_json:
            print(f"requested for {len(known)} partitions; logstore topics describe shows their leaders")
        if is_late:
            print_error(f"no controller handled the request in {wait:g} s; is a broker running?")
        return 1 if is_late or (wanted is not None and len(known) < len(wanted)) else 0


def _wanted(names: list[str] | None, json_file: Path | None) -> tuple[TopicPartition, ...] | None:
    from logstore.disk.errors import InvalidTopic
    from logstore.disk.topic_partition import parse_directory_name
    from logstore.replication.metastore import layout
    from logstore.replication.metastore.errors import CorruptMetadata

    if names and json_file is not None:
        raise typer.BadParameter("give partition names or --json-file, not both")
    try:
        if json_file is not None:
            return layout.parse_partitions(json_file.read_bytes())
        return tuple(map(parse_directory_name, names)) if names else None
    except CorruptMetadata as error:
        raise typer.BadParameter(f"--json-file: {error}") from error
    except InvalidTopic as error:
        raise typer.BadParameter("a partition name is like orders-0") from error
