"""`logstore topics …`: list, describe, create, delete and alter the topics of a cluster.

The verbs read and write the metadata store, as Kafka's tools did. The active controller, on whichever node,
carries a change out. A command returns once the change is written to the metadata store; with `--wait`, once
the cluster has carried it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import Json, Metadata, Wait, is_written, named_values, wait_until
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.cli.cluster_state import Cluster
    from logstore.disk.topic_partition import TopicPartition

app = typer.Typer(help="The topics of a cluster.", no_args_is_help=True)

Configs = Annotated[
    list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A topic setting; repeatable.")
]
_LOOK = "logstore topics describe"


@app.command("list")
def list_topics(metadata: Metadata, as_json: Json = False) -> int:
    """List the topics and show which are being deleted."""
    from logstore.cli.cluster_state import read_cluster, session

    with session(metadata) as opened:
        cluster = read_cluster(opened)
    for name in sorted(cluster.topics):
        is_doomed = name in cluster.doomed
        if as_json:
            print_json({"topic": name, "is_being_deleted": is_doomed})
        else:
            print(f"{name} (being deleted)" if is_doomed else name)
    return _report_unreadable(cluster)


@app.command()
def describe(
    metadata: Metadata,
    names: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]", help="Default: all.")] = None,
    under_replicated: Annotated[
        bool,
        typer.Option("--under-replicated", help="Only partitions with an ISR smaller than the replicas."),
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Only partitions without a live leader.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Show leader, replicas, ISR and settings of each partition."""
    from logstore.cli.cluster_plans import check_topics, is_unavailable, is_under_replicated
    from logstore.cli.cluster_state import read_cluster, session

    with session(metadata) as opened:
        cluster = read_cluster(opened, names or None)
    check_topics(cluster, names or ())
    for name in sorted(set(names or cluster.topics)):
        if not as_json and not (under_replicated or unavailable):
            topic = cluster.topics[name]
            settings = ",".join(f"{key}={value}" for key, value in sorted(topic.config.items()))
            doomed = "  being deleted" if name in cluster.doomed else ""
            print(f"{name}  id {topic.assignment.topic_id or '-'}  {settings}{doomed}".rstrip())
        for each, _ in cluster.partitions():
            if each.topic != name or (under_replicated and not is_under_replicated(cluster, each)):
                continue
            if unavailable and not is_unavailable(cluster, each):
                continue
            _describe(cluster, each, as_json=as_json)
    return _report_unreadable(cluster)


def _describe(cluster: Cluster, each: TopicPartition, *, as_json: bool) -> None:
    from logstore.cli.cluster_plans import is_unavailable, is_under_replicated

    known = cluster.topics[each.topic].assignment
    state = cluster.states.get(each)
    facts = {
        "topic": each.topic,
        "partition": each.partition,
        "leader": state.leader if state is not None else -1,
        "leader_epoch": state.leader_epoch if state is not None else -1,
        "replicas": list(known.partitions[each.partition]),
        "isr": list(state.isr) if state is not None else [],
        "adding": list(known.adding_replicas.get(each.partition, ())),
        "removing": list(known.removing_replicas.get(each.partition, ())),
        "is_under_replicated": is_under_replicated(cluster, each),
        "is_available": not is_unavailable(cluster, each),
    }
    if as_json:
        print_json(facts)
        return
    ids = {name: ",".join(map(str, value)) for name, value in facts.items() if isinstance(value, list)}
    leader = f"leader {facts['leader']}" if facts["is_available"] else "NO LEADER"
    moving = "".join(f"  {name} {ids[name]}" for name in ("adding", "removing") if ids[name])
    replicas = f"replicas {ids['replicas'] or '-'}  isr {ids['isr'] or '-'}{moving}"
    print(f"  {each}  {leader}  epoch {facts['leader_epoch']}  {replicas}")


@app.command()
def create(
    metadata: Metadata,
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: Annotated[int, typer.Option("--partitions", min=1)] = 1,
    replication_factor: Annotated[int, typer.Option("--replication-factor", min=1)] = 1,
    assignment: Annotated[
        str | None,
        typer.Option("--replica-assignment", metavar="1:2,2:3", help="The brokers of each partition."),
    ] = None,
    config: Configs = None,
    wait: Wait = 0.0,
    as_json: Json = False,
) -> int:
    """Create a topic. Everything is checked before anything is written."""
    import random

    from logstore.cli.cluster_state import read_cluster, session
    from logstore.config import LogConfig
    from logstore.disk.ids import new_id
    from logstore.replication.controller import assignment as placement
    from logstore.replication.controller.topics import by_metric_name, check_new_topic
    from logstore.replication.messages import NewTopic
    from logstore.replication.metastore import layout
    from logstore.replication.metastore.operations import Children, Create, Multi

    settings = named_values("--config", config)
    LogConfig.from_kafka(settings)
    draw = random.SystemRandom()
    with session(metadata) as opened:
        cluster = read_cluster(opened, ())
        existing = opened.read(Children(layout.TOPICS_PATH)).children
        check_new_topic(NewTopic(name, configs=settings), by_metric_name(existing))
        if assignment is not None:
            lists = _lists(assignment)
            if unknown := sorted({broker for each in lists for broker in each} - cluster.brokers.keys()):
                raise typer.BadParameter(f"--replica-assignment: brokers {unknown} are not alive")
            placement.check_manual(lists, cluster.brokers)
        else:
            start, shift = (draw.randrange(max(1, len(cluster.brokers))) for _ in range(2))
            lists = placement.placed(cluster.racks, partitions, replication_factor, start=start, shift=shift)
        node = layout.TopicAssignment(new_id(draw), dict(enumerate(lists)))
        nodes = {
            layout.topic_config_path(name): layout.encode_topic_config(settings),
            layout.topic_path(name): layout.encode_topic(node),
        }
        creation = Multi(tuple(Create(path, data, make_parents=True) for path, data in nodes.items()))
        if not is_written(opened.call(creation), f"topic {name}", _LOOK):
            return 1

        def is_led() -> bool:
            now = read_cluster(opened, (name,))
            return all(
                (state := now.states.get(each)) is not None and state.leader in now.brokers
                for each, _ in now.partitions()
            )

        return _done(as_json, {"topic": name, "topic_id": node.topic_id}, wait, is_led, "without a leader")


@app.command()
def delete(
    metadata: Metadata,
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    wait: Wait = 0.0,
    as_json: Json = False,
) -> int:
    """Request the deletion of a topic; its logs are deleted once every replica's broker is up."""
    from logstore.cli.cluster_plans import check_topics
    from logstore.cli.cluster_state import read_cluster, session
    from logstore.replication.metastore import layout
    from logstore.replication.metastore.operations import Create, StoreError

    with session(metadata) as opened:
        check_topics(read_cluster(opened, (name,)), (name,))
        outcome = opened.call(Create(layout.delete_topic_path(name), make_parents=True))
        is_requested = outcome.error is StoreError.NODE_EXISTS
        if not is_requested and not is_written(outcome, f"the deletion of {name}", "logstore topics list"):
            return 1

        def is_gone() -> bool:
            now = read_cluster(opened, (name,))
            return name not in now.topics and name not in now.doomed

        return _done(as_json, {"topic": name}, wait, is_gone, "not deleted yet; is one of its brokers down?")


@app.command()
def alter(
    metadata: Metadata,
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="The new number; it can only grow.")
    ] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="NAME", help="Reset to the default.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Add partitions to a topic, or change its settings, while it is in use."""
    from logstore.cli.cluster_plans import BadPlan, check_topics
    from logstore.cli.cluster_state import read_cluster, session
    from logstore.config import LogConfig
    from logstore.disk.errors import ErrorCode
    from logstore.replication.controller.assignment import added_partitions
    from logstore.replication.metastore import layout
    from logstore.replication.metastore.operations import Create, Multi, Set

    changed, dropped = named_values("--config", config), set(delete_config or ())
    if partitions is None and not changed and not dropped:
        raise typer.BadParameter("nothing to alter: give --partitions, --config or --delete-config")
    with session(metadata) as opened:
        cluster = read_cluster(opened, (name,))
        check_topics(cluster, (name,))
        if name in cluster.doomed:
            raise BadPlan(f"{name} is being deleted")
        topic = cluster.topics[name]
        writes: list[Create | Set] = []
        if partitions is not None:
            if topic.assignment.adding_replicas or topic.assignment.removing_replicas:
                raise BadPlan(f"{name} is being reassigned; add partitions when that is over")
            existing = topic.assignment.partitions
            added = added_partitions(existing, cluster.racks, partitions)
            # The rest of the node stays, above all the brokers that have a replica yet to delete.
            grown = replace(topic.assignment, partitions={**existing, **added})
            writes.append(Set(layout.topic_path(name), layout.encode_topic(grown), topic.version))
            print_error("new records with a key may go to other partitions than earlier ones")
        if changed or dropped:
            if unknown := sorted(dropped - topic.config.keys()):
                raise BadPlan(f"{name} has no setting {', '.join(unknown)} of its own")
            settings = {key: value for key, value in topic.config.items() if key not in dropped} | changed
            LogConfig.from_kafka(settings)
            data, path = layout.encode_topic_config(settings), layout.topic_config_path(name)
            is_new = topic.config_version < 0
            writes.append(
                Create(path, data, make_parents=True) if is_new else Set(path, data, topic.config_version)
            )
            notice = layout.encode_config_change(name)
            writes.append(Create(layout.CONFIG_CHANGE_PREFIX, notice, sequential=True, make_parents=True))
        if not is_written(opened.call(Multi(tuple(writes))), f"the change of {name}", _LOOK):
            return 1
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
    as_json: bool, facts: dict[str, object], wait: float, holds: Callable[[], bool], otherwise: str
) -> int:
    """Print the facts; with `wait`, first wait until `holds`, and return 1 if it does not in time."""
    has_happened = wait_until(wait, holds) if wait else None
    if as_json:
        print_json({**facts, "is_done": has_happened})
    if has_happened is False:
        print_error(f"{facts['topic']}: after {wait:g} s {otherwise}")
    return int(has_happened is False)


def _report_unreadable(cluster: Cluster) -> int:
    for path, why in sorted(cluster.unreadable.items()):
        print_error(f"{path}: {why}")
    return 1 if cluster.unreadable else 0
