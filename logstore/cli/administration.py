"""Verbs over brokers, of logstore or Apache Kafka: live brokers, settings, offsets, sizes.

cluster describe     brokers list, log-dirs, move-log, drain     configs describe, alter     offsets
delete-records
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from logstore.arguments import whole_number
from logstore.cli.drain import drain
from logstore.cli.operating import CommandConfig, Json, Wait, named_values, properties_of, similar, wait_until
from logstore.cli.operator import DeletedSettings, RequiredBootstrap, Topics, asked_at
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.cli.brokers import Brokers

brokers = typer.Typer(help="The brokers of a cluster.", no_args_is_help=True)
configs = typer.Typer(help="The settings of topics and brokers.", no_args_is_help=True)

brokers.command("drain")(drain)

Topic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="The settings of a topic.")]
Broker = Annotated[int | None, typer.Option("--broker", metavar="ID", help="The settings of a broker.")]
AllBrokers = Annotated[
    bool, typer.Option("--all-brokers", help="Settings that were changed for all brokers.")
]
_SOURCES: Final = {1: "topic", 2: "broker", 3: "all brokers", 4: "file", 5: "default"}
_SENSITIVE: Final = "***"
_REFUSALS: Final = {
    57: "LOG_DIR_NOT_FOUND (57): the broker has no such log dir; `logstore brokers log-dirs` lists them",
    56: "KAFKA_STORAGE_ERROR (56): a log dir or the replica is offline; `logstore health` shows which one",
    31: "CLUSTER_AUTHORIZATION_FAILED (31): the user lacks Alter on the cluster (`logstore acls add`)",
    17: "INVALID_TOPIC_EXCEPTION (17): the topic's name is too long, or not valid",
    9: "REPLICA_NOT_AVAILABLE (9): it is not on this broker; if added, it will be created in that log dir",
    3: "UNKNOWN_TOPIC_OR_PARTITION (3): there is no such partition; if created, it will be in that log dir",
}
"""What a broker answers to a move, by the error's number."""


def describe_cluster(
    bootstrap: RequiredBootstrap, command_config: CommandConfig = None, as_json: Json = False
) -> int:
    """Show the id, the controller, the live brokers and the partitions of any running cluster."""
    from logstore.broker.limits import Address
    from logstore.cli.partition_counts import of_metadata

    with asked_at(bootstrap, command_config) as asked:
        metadata = asked.metadata()
    found = sorted(metadata.brokers, key=lambda broker: int(broker.node_id))
    topics = [topic.name for topic in metadata.topics]
    counts = of_metadata(metadata)
    if as_json:
        facts = {"cluster_id": metadata.cluster_id, "controller": metadata.controller_id}
        live = [
            {"broker": each.node_id, "host": each.host, "port": each.port, "rack": each.rack}
            for each in found
        ]
        print_json({**facts, "brokers": live, "topics": len(topics), "partitions": counts.facts()})
        return 0
    controller = f"broker {metadata.controller_id}" if metadata.controller_id >= 0 else "none"
    print(f"cluster     {metadata.cluster_id}")
    print(f"controller  {controller}")
    print(f"brokers     {', '.join(f'{each.node_id} at {Address(each.host, each.port)}' for each in found)}")
    print(f"topics      {len(topics)}")
    print(f"partitions  {counts}")
    return 0


@brokers.command("list")
def list_brokers(
    bootstrap: RequiredBootstrap, command_config: CommandConfig = None, as_json: Json = False
) -> int:
    """List the live brokers with their addresses and racks, and the controller."""
    from logstore.broker.limits import Address

    with asked_at(bootstrap, command_config) as asked:
        metadata = asked.metadata(())
    for each in sorted(metadata.brokers, key=lambda broker: int(broker.node_id)):
        is_controller = each.node_id == metadata.controller_id
        if as_json:
            facts = {"broker": each.node_id, "host": each.host, "port": each.port, "rack": each.rack}
            print_json({**facts, "is_controller": is_controller})
        else:
            rack = f"  rack {each.rack}" if each.rack else ""
            address = Address(each.host, each.port)
            print(f"{each.node_id}  {address}{rack}{'  controller' if is_controller else ''}")
    return 0


@brokers.command("log-dirs")
def log_dirs(
    bootstrap: RequiredBootstrap,
    broker: Annotated[
        list[int] | None, typer.Option("--broker", metavar="ID", help="Only these; repeatable.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME", help="Only its replicas; repeatable.")
    ] = None,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Show the log dirs of brokers, the bytes of each replica, and moves; exit 1 if one is offline."""
    from logstore.disk.errors import ErrorCode

    is_sound = True
    with asked_at(bootstrap, command_config) as asked:
        asked.check_topics(topic or ())
        for each in sorted(broker or [each.node_id for each in asked.metadata(()).brokers]):
            for found in asked.log_dirs(each).results:
                error = ErrorCode(found.error_code)
                is_sound = is_sound and error is ErrorCode.NONE
                sizes = {
                    f"{each_topic.name}-{one.partition_index}": one.partition_size
                    for each_topic in found.topics
                    if not topic or each_topic.name in topic
                    for one in each_topic.partitions
                    if not one.is_future_key
                }
                comes = {
                    f"{each_topic.name}-{one.partition_index}": {
                        "size": one.partition_size,
                        "lag": one.offset_lag,
                    }
                    for each_topic in found.topics
                    if not topic or each_topic.name in topic
                    for one in each_topic.partitions
                    if one.is_future_key
                }
                if as_json:
                    facts = {"broker": each, "log_dir": found.log_dir, "error": error.name}
                    more = {"replicas": sizes, "arriving": comes}
                    print_json({**facts, "usable_bytes": found.usable_bytes, **more})
                    continue
                problem = "" if error is ErrorCode.NONE else f"  {error.name}"
                print(f"broker {each}  {found.log_dir}  {sum(sizes.values())} bytes{problem}")
                for name, size in sorted(sizes.items()):
                    print(f"  {name}  {size}")
                hanging = {one.name: f": {one.problem}" for one in found.hanging}
                for name, copied in sorted(comes.items()):
                    missing = f"moves here, {copied['lag']} records are missing{hanging.get(name, '')}"
                    print(f"  {name}  {copied['size']}  {missing}")
    return 0 if is_sound else 1


@brokers.command("move-log")
def move_log(
    partitions: Annotated[list[str], typer.Argument(metavar="TOPIC-PARTITION...", help="Such as orders-0.")],
    bootstrap: RequiredBootstrap,
    broker: Annotated[int, typer.Option("--broker", metavar="ID", help="The broker of the replicas.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="One of its log dirs.")],
    wait: Wait = 0.0,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Move replicas to another log dir of their broker; exit 1 if one is refused, or not there after --wait.

    The moves run in the background: `brokers log-dirs` shows them. To cancel one, name the log dir that holds
    the replica.
    """
    from logstore.broker.wire import types as t
    from logstore.disk.errors import ErrorCode
    from logstore.disk.topic_partition import parse_directory_name

    to = posixpath.normpath(to)
    topics: dict[str, list[int]] = {}
    for each in partitions:
        where = parse_directory_name(each)
        topics.setdefault(where.topic, []).append(where.partition)
    kind = t.AlterReplicaLogDirsRequestAlterReplicaLogDirTopic
    wanted = t.AlterReplicaLogDirsRequestAlterReplicaLogDir(
        path=to, topics=[kind(name=name, partitions=numbers) for name, numbers in topics.items()]
    )
    with asked_at(bootstrap, command_config) as asked:
        if not posixpath.isabs(to) and to not in {each.log_dir for each in asked.log_dirs(broker).results}:
            raise typer.BadParameter(f"--to {to!r}: give the path that logstore brokers log-dirs shows")
        answer: t.AlterReplicaLogDirsResponse = asked.broker(
            broker, t.AlterReplicaLogDirsRequest(dirs=[wanted])
        )
        errors = {
            f"{topic.topic_name}-{one.partition_index}": ErrorCode(one.error_code)
            for topic in answer.results
            for one in topic.partitions
        }
        missing = {name for name, error in errors.items() if error is ErrorCode.NONE}

        def are_there() -> bool:
            missing.difference_update(_replicas_in(asked, broker, to))
            return not missing

        if wait:
            wait_until(wait, are_there)
    for name, error in errors.items():
        if as_json:
            arrived = {"is_there": name not in missing} if wait and error is ErrorCode.NONE else {}
            print_json({"partition": name, "broker": broker, "to": to, "error": error.name, **arrived})
        elif error is not ErrorCode.NONE:
            print_error(f"{name} does not move: {_REFUSALS.get(error, error.name)}")
        elif not wait:
            print(f"{name} moves to {to} of broker {broker}")
        elif name in missing:
            print_error(f"{name} still moves to {to} of broker {broker}. See logstore brokers log-dirs")
        else:
            print(f"{name} is in {to} of broker {broker}")
    is_refused = any(error is not ErrorCode.NONE for error in errors.values())
    return 1 if is_refused or (wait and missing) else 0


def _replicas_in(asked: Brokers, broker: int, log_dir: str) -> set[str]:
    """Return the replicas that a broker serves from one of its log dirs."""
    return {
        f"{topic.name}-{one.partition_index}"
        for found in asked.log_dirs(broker).results
        if found.log_dir == log_dir
        for topic in found.topics
        for one in topic.partitions
        if not one.is_future_key
    }


@configs.command()
def describe(
    bootstrap: RequiredBootstrap,
    topic: Topic = None,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    everything: Annotated[bool, typer.Option("--all", help="Defaults, too.")] = False,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Show the settings of a topic, a broker or all brokers that are not defaults, and their sources."""
    from logstore.cli.broker_operator import described_settings

    kind, name = _resource(topic, broker, all_brokers)
    with asked_at(bootstrap, command_config) as asked:
        found = described_settings(asked, kind, [name]).get(name)
        if found is None:
            print_error(f"no topic {name!r}; {similar([name], asked.topics())}")
            return 1
    for each in sorted(found, key=lambda setting: str(setting.name)):
        source = _SOURCES.get(each.config_source, "unknown")
        if source == "default" and not everything:
            continue
        value = _SENSITIVE if each.is_sensitive else each.value
        if as_json:
            facts = {"name": each.name, "value": value, "source": source}
            print_json({**facts, "is_read_only": each.read_only})
        else:
            print(f"{each.name}={'' if value is None else value}  ({source})")
    return 0


@configs.command()
def alter(
    bootstrap: RequiredBootstrap,
    topic: Topic = None,
    broker: Broker = None,
    all_brokers: AllBrokers = False,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting; repeatable.")
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config-file",
            metavar="FILE",
            help="Settings as a file of properties; --config overrides it.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    delete_config: DeletedSettings = None,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Change settings of a topic, a broker or all brokers while they are in use."""
    from logstore.cli.broker_operator import BrokerOperator, alter_settings

    kind, name = _resource(topic, broker, all_brokers)
    changed = properties_of(config_file, "--config-file") if config_file is not None else {}
    changed |= named_values("--config", config)
    dropped = set(delete_config or ())
    if both := sorted(dropped & changed.keys()):
        raise typer.BadParameter(f"{', '.join(both)}: set or deleted, not both")
    if not changed and not dropped:
        raise typer.BadParameter("nothing to alter: give --config, --config-file or --delete-config")
    with asked_at(bootstrap, command_config) as asked:
        if topic is not None:
            BrokerOperator(asked).alter(topic, None, changed, dropped)
        else:
            alter_settings(asked, kind, name, changed, dropped)
    if as_json:
        whose = {"topic": topic} if topic is not None else {"broker": broker}
        print_json({**whose, "set": changed, "deleted": sorted(dropped)})
    return 0


def offsets(
    topics: Topics,
    bootstrap: RequiredBootstrap,
    at: Annotated[
        str, typer.Option("--at", metavar="WHERE", help="earliest, latest, or epoch milliseconds.")
    ] = "latest",
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Show the first offset or the log end offset of partitions, or the first one at or after a time."""
    from logstore.config import MAX_LONG

    time_ms = whole_number({"latest": "-1", "earliest": "-2"}.get(at, at))
    if time_ms is None or not -2 <= time_ms <= MAX_LONG:
        raise typer.BadParameter(f"--at {at!r}: write earliest, latest or epoch milliseconds")
    with asked_at(bootstrap, command_config) as asked:
        found = asked.offsets(dict.fromkeys(asked.partitions_named(topics), time_ms))
    for where, offset in sorted(found.items()):
        if as_json:
            print_json({"topic": where.topic, "partition": where.partition, "offset": offset})
        else:
            print(f"{where}  {'-' if offset is None else offset}")
    return 0


def delete_records(
    partition: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION", help="For instance orders-0.")],
    before: Annotated[
        str, typer.Argument(metavar="OFFSET", help="The first offset to keep, or latest for none.")
    ],
    bootstrap: RequiredBootstrap,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Delete the records of a partition below an offset. They cannot be restored."""
    from logstore.broker.translation import from_wire, to_wire
    from logstore.broker.wire import types as t
    from logstore.cli.brokers import TIMEOUT_S, check
    from logstore.config import MAX_LONG
    from logstore.replication import messages as m

    offset = -1 if before == "latest" else whole_number(before)
    if offset is None or not (before == "latest" or 0 <= offset <= MAX_LONG):
        raise typer.BadParameter(f"{before!r} is not an offset; write a number or latest")
    with asked_at(bootstrap, command_config) as asked:
        where, *others = asked.partitions_named([partition])
        if others:
            raise typer.BadParameter(f"{partition} is a topic; name one of its partitions, like {where}")
        (leader,) = asked.leaders([where])
        wanted = m.DeleteRecordsRequest({where: offset}, int(TIMEOUT_S * 1000))
        answer = asked.broker(leader, to_wire(wanted, t.DeleteRecordsRequest))
        result = from_wire(answer, m.DeleteRecordsResponse).partitions[where]
        check(result.error, str(where))
    if as_json:
        print_json({"topic": where.topic, "partition": where.partition, "log_start": result.low_watermark})
    else:
        print(f"{where}  starts at {result.low_watermark}")
    return 0


def _resource(topic: str | None, broker: int | None, all_brokers: bool) -> tuple[int, str]:
    from logstore.cli.broker_operator import BROKER, TOPIC

    if (topic is not None) + (broker is not None) + all_brokers != 1:
        raise typer.BadParameter("give one of --topic NAME, --broker ID or --all-brokers")
    if topic is not None:
        return TOPIC, topic
    return BROKER, "" if all_brokers else str(broker)
