"""`logstore topics …`: list, describe, create, delete and alter the topics of a cluster.

The verbs ask brokers, or read and write the metadata store, as Kafka's first tools did. The active
controller, on whichever node, carries a change out. A command returns once the change is accepted; with
`--wait`, once the cluster has carried it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import CommandOrStoreConfig, Json, Wait, named_values, wait_until
from logstore.cli.operator import Bootstrap, DeletedSettings, Metadata, operator
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.cli.cluster_state import Cluster, Topic
    from logstore.disk.topic_partition import TopicPartition

app = typer.Typer(help="The topics of a cluster.", no_args_is_help=True)

_HEARING_S = 5.0

Configs = Annotated[
    list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A topic setting; repeatable.")
]


class Placement(StrEnum):
    """The formulas that place the replicas of a new topic."""

    KAFKA = "kafka"
    ROUND_ROBIN = "round-robin"


Match = Annotated[
    str | None, typer.Option("--match", metavar="REGEX", help="Only topics whose whole name matches.")
]
IfExists = Annotated[bool, typer.Option("--if-exists", help="Ignore a topic that does not exist.")]


@app.command("list")
def list_topics(
    match: Match = None,
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandOrStoreConfig = None,
    as_json: Json = False,
) -> int:
    """List the topics, and what the deletion of those being deleted waits for."""
    with operator(metadata, bootstrap, command_config) as to:
        cluster = to.read(may_hide_moves=True)
    for name in _matching(cluster.topics.keys() | cluster.doomed.keys(), match):
        if name in cluster.doomed:
            _show_doomed(cluster, name, as_json=as_json)
        elif as_json:
            print_json({"topic": name, "is_being_deleted": False})
        else:
            print(name)
    return _report_unreadable(cluster)


@app.command()
def describe(
    names: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]", help="Default: all.")] = None,
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandOrStoreConfig = None,
    under_replicated: Annotated[
        bool,
        typer.Option("--under-replicated", help="Only partitions with an ISR smaller than the replicas."),
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Only partitions without a live leader.")
    ] = False,
    under_min_isr: Annotated[
        bool,
        typer.Option("--under-min-isr", help="Only partitions with an ISR smaller than min.insync.replicas."),
    ] = False,
    at_min_isr: Annotated[
        bool, typer.Option("--at-min-isr", help="Only partitions with an ISR of that size.")
    ] = False,
    with_overrides: Annotated[
        bool,
        typer.Option("--topics-with-overrides", help="Only topics that override settings."),
    ] = False,
    match: Match = None,
    if_exists: IfExists = False,
    as_json: Json = False,
) -> int:
    """Show leader, replicas, ISR and settings of each partition.

    The minimum ISR is shown with --bootstrap; with --metadata, only if the topic itself sets it. A filter of
    partitions leaves the settings out. --under-replicated and --unavailable leave out the minimum ISR, too.
    """
    from logstore.cli.cluster_plans import check_topics, is_unavailable, is_under_replicated

    is_whole = not (under_replicated or unavailable or under_min_isr or at_min_isr)
    with operator(metadata, bootstrap, command_config) as to:
        with_settings = is_whole or with_overrides
        cluster = to.read(names or None, settings=with_settings, may_hide_moves=True)
        if not if_exists:
            wanted = [name for name in names or () if name not in cluster.doomed]
            check_topics(cluster, wanted, lambda: to.read(may_hide_moves=True).topics)
        with_min_isr = with_settings or under_min_isr or at_min_isr
        min_isr = to.min_isr(sorted(cluster.topics)) if with_min_isr else {}

    def is_wanted(each: TopicPartition) -> bool:
        spare = len(cluster.state(each).isr) - min_isr.get(each.topic, 1)
        return (
            (not under_replicated or is_under_replicated(cluster, each))
            and (not unavailable or is_unavailable(cluster, each))
            and (not under_min_isr or spare < 0)
            and (not at_min_isr or spare == 0)
        )

    for name in _matching(names or cluster.topics.keys() | cluster.doomed.keys(), match):
        topic = cluster.topics.get(name)
        if with_overrides and (topic is None or not topic.config):
            continue
        if is_whole and name in cluster.doomed and not with_overrides:
            _show_doomed(cluster, name, as_json=as_json)
        if topic is None:
            continue
        if is_whole and with_overrides:
            _show_settings(name, topic.config, as_json=as_json)
            continue
        if is_whole and not as_json:
            print(f"{name}  id {topic.assignment.topic_id or '-'}  {_settings(topic.config)}".rstrip())
        of_topic = {
            "topic_id": topic.assignment.topic_id,
            "settings": dict(sorted(topic.config.items())) if with_settings else None,
            "min_isr": min_isr.get(name),
        }
        for each, _ in cluster.partitions([name]):
            if is_wanted(each):
                _describe(cluster, each, of_topic, as_json=as_json)
    return _report_unreadable(cluster)


def _matching(names: Iterable[str], match: str | None) -> list[str]:
    """Return the names that match, sorted. Raises `typer.BadParameter` for an invalid expression."""
    try:
        return sorted({name for name in names if match is None or re.fullmatch(match, name)})
    except re.error as error:
        raise typer.BadParameter(f"--match: {match!r} is not a regular expression: {error}") from error


def _show_settings(name: str, settings: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json({"topic": name, "settings": dict(sorted(settings.items()))})
    else:
        print(f"{name}  {_settings(settings)}")


def _settings(settings: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(settings.items()))


def _show_doomed(cluster: Cluster, name: str, *, as_json: bool) -> None:
    awaited = cluster.doomed[name]
    if as_json:
        print_json({"topic": name, "is_being_deleted": True, "waits_for": awaited})
    else:
        print(f"{name} (being deleted, waits for {awaited or 'the controller'})")


def _describe(
    cluster: Cluster, each: TopicPartition, of_topic: Mapping[str, object], *, as_json: bool
) -> None:
    from logstore.cli.cluster_plans import is_unavailable, is_under_replicated

    state, motion = cluster.state(each), cluster.motion(each)
    facts = {
        "topic": each.topic,
        "partition": each.partition,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "replicas": list(cluster.replicas(each)),
        "isr": list(state.isr),
        "adding": list(motion.adding),
        "removing": list(motion.removing),
        "is_under_replicated": is_under_replicated(cluster, each),
        "is_available": not is_unavailable(cluster, each),
        **of_topic,
    }
    if as_json:
        print_json(facts)
        return
    ids = {name: ",".join(map(str, value)) for name, value in facts.items() if isinstance(value, list)}
    leader = f"leader {facts['leader']}" if facts["is_available"] else "NO LEADER"
    moving = "".join(f"  {name} {ids[name]}" for name in ("adding", "removing") if ids[name])
    least = "" if facts["min_isr"] is None else f"  min isr {facts['min_isr']}"
    replicas = f"replicas {ids['replicas'] or '-'}  isr {ids['isr'] or '-'}{least}{moving}"
    print(f"  {each}  {leader}  epoch {facts['leader_epoch']}  {replicas}")


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandOrStoreConfig = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", min=1, help="[default: num.partitions of the brokers; with --metadata 1]"
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            min=1,
            help="[default: default.replication.factor of the brokers; with --metadata 1]",
        ),
    ] = None,
    assignment: Annotated[
        str | None,
        typer.Option("--replica-assignment", metavar="1:2,2:3", help="The brokers of each partition."),
    ] = None,
    placement: Annotated[
        Placement | None,
        typer.Option(
            "--placement",
            help="kafka (the default): random start, followers spread, over racks if all brokers have one. "
            "round-robin: replica j of partition i on broker (i + j) mod n of the live ones, by id.",
        ),
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Ignore a topic that exists, and leave it unchanged.")
    ] = False,
    wait: Wait = 0.0,
    as_json: Json = False,
) -> int:
    """Create a topic. Everything is checked before anything is written."""
    from logstore.cli.cluster_plans import is_unavailable
    from logstore.disk.errors import EngineError, ErrorCode
    from logstore.replication.controller.assignment import check_new_partitions, round_robin

    if assignment is not None and (placement or partitions or replication_factor):
        raise typer.BadParameter(
            "--replica-assignment names all replicas: omit --placement, --partitions and --replication-factor"
        )
    if placement is Placement.ROUND_ROBIN and bootstrap and not (partitions and replication_factor):
        raise typer.BadParameter("--placement round-robin needs --partitions and --replication-factor")
    settings = named_values("--config", config)
    lists = _lists(assignment) if assignment is not None else None
    with operator(metadata, bootstrap, command_config) as to:

        def existing() -> Topic | None:
            return to.read((name,), may_hide_moves=True).topics.get(name) if if_not_exists else None

        topic_id = ""
        if (known := existing()) is None:
            if placement is Placement.ROUND_ROBIN:
                check_new_partitions(partitions or 1)
                lists = round_robin(list(to.read(()).brokers), partitions or 1, replication_factor or 1)
            try:
                topic_id = to.create(name, settings, partitions, replication_factor, lists)
            except EngineError as error:
                # Another one was quicker; the broker that is asked may hear of it later.
                if getattr(error, "error", error.code) is ErrorCode.TOPIC_ALREADY_EXISTS and if_not_exists:
                    wait_until(_HEARING_S, lambda: existing() is not None)
                if (known := existing()) is None:
                    raise
        if known is not None:
            topic_id = known.assignment.topic_id

        def is_led() -> bool:
            now = to.read((name,), may_hide_moves=True)
            return name in now.topics and not any(is_unavailable(now, each) for each, _ in now.partitions())

        facts = {"topic": name, "topic_id": topic_id}
        return _done(as_json, facts, wait, is_led, lambda: "without a leader")


@app.command()
def delete(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandOrStoreConfig = None,
    if_exists: IfExists = False,
    wait: Wait = 0.0,
    as_json: Json = False,
) -> int:
    """Request the deletion of a topic; its logs are deleted once every replica's broker is up."""
    from logstore.replication.controller.deletion import DELETION_DISABLED

    with operator(metadata, bootstrap, command_config) as to:
        known = to.read((name,), may_hide_moves=True) if if_exists else None
        if known is not None and name not in known.topics and name not in known.doomed:
            return 0
        to.delete(name)

        def is_gone() -> bool:
            now = to.read((name,), may_hide_moves=True)
            return name not in now.topics and name not in now.doomed

        def what_else() -> str:
            now = to.read((name,), may_hide_moves=True)
            if name in now.topics and name not in now.doomed:
                return f"not deleted: the controller has dropped the request. {DELETION_DISABLED}"
            return f"not deleted yet: it waits for {now.doomed.get(name) or 'the controller'}"

        return _done(as_json, {"topic": name}, wait, is_gone, what_else)


@app.command()
def alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandOrStoreConfig = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="The new number; it can only grow.")
    ] = None,
    config: Configs = None,
    delete_config: DeletedSettings = None,
    if_exists: IfExists = False,
    as_json: Json = False,
) -> int:
    """Add partitions to a topic, or change its settings, while it is in use."""
    from logstore.disk.errors import ErrorCode

    changed, dropped = named_values("--config", config), set(delete_config or ())
    if both := sorted(dropped & changed.keys()):
        raise typer.BadParameter(f"{', '.join(both)}: set or deleted, not both")
    if partitions is None and not changed and not dropped:
        raise typer.BadParameter("nothing to alter: give --partitions, --config or --delete-config")
    with operator(metadata, bootstrap, command_config) as to:
        if if_exists and name not in to.read((name,), may_hide_moves=True).topics:
            return 0
        to.alter(name, partitions, changed, dropped)
    if partitions is not None:
        print_error("new records with a key may go to other partitions than earlier ones")
    if as_json:
        print_json({"topic": name, "error": ErrorCode.NONE.name})
    return 0


def _lists(text: str) -> list[tuple[int, ...]]:
    try:
        return [tuple(int(part) for part in one.split(":")) for one in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"--replica-assignment: {text!r} is not a list of replica lists like 1:2,2:3"
        ) from error


def _done(
    as_json: bool, facts: dict[str, str], wait: float, holds: Callable[[], bool], otherwise: Callable[[], str]
) -> int:
    """Print the facts; with `wait`, first wait until `holds`, and return 1 if it does not in time."""
    has_happened = wait_until(wait, holds) if wait else None
    if as_json:
        print_json({**facts, "is_done": has_happened})
    if has_happened is False:
        print_error(f"{facts['topic']}: after {wait:g} s {otherwise()}")
    return int(has_happened is False)


def _report_unreadable(cluster: Cluster) -> int:
    for path, why in sorted(cluster.unreadable.items()):
        print_error(f"{path}: {why}")
    return 1 if cluster.unreadable else 0
