"""`logstore topics …`: list, describe, create, delete and alter the topics of a cluster.

The verbs read and write the cluster's metadata store, as Kafka's own tools did while it had one: a topic
that is written there is taken up by the active controller, whichever node that is. A command is done when
its wish is recorded; `--wait` makes it stay until the cluster has carried it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.terminal import complain, print_json

if TYPE_CHECKING:
    from logstore.cli.cluster_state import Cluster, Session
    from logstore.disk.topic_partition import TopicPartition
    from logstore.replication.metastore.operations import Outcome

app = typer.Typer(help="The topics of a cluster.", no_args_is_help=True)

Metadata = Annotated[
    str,
    typer.Option(
        "--metadata", metavar="URL", help="The metadata store: zookeeper://host:port[,host:port][/chroot]."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one object a line.")]
Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="Stay until it is done, at most so long.")
]
Configs = Annotated[
    list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting; give it once for each.")
]


@app.command("list")
def list_topics(metadata: Metadata, as_json: Json = False) -> int:
    """The names of all topics, and which are being deleted."""
    with _session(metadata) as session:
        from logstore.cli.cluster_state import read_cluster

        cluster = read_cluster(session)
        for name in sorted(cluster.topics):
            is_doomed = name in cluster.doomed
            if as_json:
                print_json({"topic": name, "is_being_deleted": is_doomed})
            else:
                print(f"{name} (being deleted)" if is_doomed else name)
        return _tell_unreadable(cluster)


@app.command()
def describe(
    metadata: Metadata,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]", help="All, if none is named.")
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with fewer in sync than replicas.")
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Only partitions without a living leader.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Leader, replicas, ISR and settings of each partition."""
    from logstore.cli.cluster_plans import is_unavailable, is_under_replicated
    from logstore.cli.cluster_state import read_cluster

    with _session(metadata) as session:
        cluster = read_cluster(session, names or None)
    if unknown := [name for name in names or () if name not in cluster.topics]:
        complain(f"there is no topic {', '.join(unknown)}")
        return 1
    shown = set(names or cluster.topics)
    for name in sorted(shown):
        if not as_json and not (under_replicated or unavailable):
            topic = cluster.topics[name]
            settings = ",".join(f"{key}={value}" for key, value in sorted(topic.config.items()))
            doomed = "  being deleted" if name in cluster.doomed else ""
            print(f"{name}  id {topic.assignment.topic_id or '-'}  {settings}{doomed}".rstrip())
        for each, _ in cluster.partitions():
            if each.topic != name:
                continue
            if under_replicated and not is_under_replicated(cluster, each):
                continue
            if unavailable and not is_unavailable(cluster, each):
                continue
            _describe(cluster, each, as_json=as_json)
    return _tell_unreadable(cluster)


def _describe(cluster: Cluster, each: TopicPartition, *, as_json: bool) -> None:
    from logstore.cli.cluster_plans import is_unavailable, is_under_replicated

    known = cluster.topics[each.topic].assignment
    state = cluster.states.get(each)
    adding = known.adding_replicas.get(each.partition, ())
    removing = known.removing_replicas.get(each.partition, ())
    facts = {
        "topic": each.topic,
        "partition": each.partition,
        "leader": state.leader if state is not None else -1,
        "leader_epoch": state.leader_epoch if state is not None else -1,
        "replicas": list(known.partitions[each.partition]),
        "isr": list(state.isr) if state is not None else [],
        "adding": list(adding),
        "removing": list(removing),
        "is_under_replicated": is_under_replicated(cluster, each),
        "is_available": not is_unavailable(cluster, each),
    }
    if as_json:
        print_json(facts)
        return
    leader = f"leader {facts['leader']}" if not is_unavailable(cluster, each) else "NO LEADER"
    moving = f"  adding {_ids(adding)}" if adding else ""
    moving += f"  removing {_ids(removing)}" if removing else ""
    print(
        f"  {each}  {leader}  epoch {facts['leader_epoch']}  "
        f"replicas {_ids(known.partitions[each.partition])}  isr {_ids(state.isr if state else ())}{moving}"
    )


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers)) or "-"


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
    """Create a topic; everything is checked before anything is written."""
    import random

    from logstore.cli.cluster_state import read_cluster
    from logstore.config import LogConfig
    from logstore.disk.ids import new_id
    from logstore.replication.controller import assignment as placement
    from logstore.replication.controller.topic_creation import by_metric_name, check_new_topic
    from logstore.replication.messages import NewTopic
    from logstore.replication.metastore import layout
    from logstore.replication.metastore.operations import Children, Create, Multi

    settings = _settings(config)
    LogConfig.from_kafka(settings)
    draw = random.SystemRandom()
    with _session(metadata) as session:
        cluster = read_cluster(session, ())
        existing = session.read(Children(layout.TOPICS_PATH)).children
        check_new_topic(NewTopic(name, configs=settings), by_metric_name(existing))
        brokers = sorted(cluster.brokers)
        if assignment is not None:
            lists = _lists(assignment)
            placement.check_manual(lists)
            if unknown := sorted({broker for each in lists for broker in each} - set(brokers)):
                raise typer.BadParameter(f"--replica-assignment: brokers {unknown} are not alive")
        else:
            start, shift = (draw.randrange(max(1, len(brokers))) for _ in range(2))
            lists = placement.placed(cluster.racks, partitions, replication_factor, start=start, shift=shift)
        node = layout.TopicAssignment(new_id(draw), dict(enumerate(lists)))
        config_node = layout.encode_topic_config(settings)
        creation = Multi(
            (
                Create(layout.topic_config_path(name), config_node, make_parents=True),
                Create(layout.topic_path(name), layout.encode_topic(node), make_parents=True),
            )
        )
        outcome = session.call(creation)
        if (code := check_write(outcome, f"topic {name}", "logstore topics describe")) != 0:
            return code

        def is_led() -> bool:
            now = read_cluster(session, (name,))
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
    """Record that a topic is to be deleted; its logs go when every replica's broker is up."""
    from logstore.cli.cluster_state import read_cluster
    from logstore.replication.metastore import layout
    from logstore.replication.metastore.operations import Create, StoreError

    with _session(metadata) as session:
        if name not in read_cluster(session, (name,)).topics:
            complain(f"there is no topic {name}")
            return 1
        outcome = session.call(Create(layout.delete_topic_path(name), make_parents=True))
        if outcome.error is not StoreError.NODE_EXISTS and (
            code := check_write(outcome, f"the deletion of {name}", "logstore topics list")
        ):
            return code

        def is_gone() -> bool:
            now = read_cluster(session, (name,))
            return name not in now.topics and name not in now.doomed

        return _done(as_json, {"topic": name}, wait, is_gone, "not deleted yet; is a broker of its down?")


@app.command()
def alter(
    metadata: Metadata,
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="How many there are to be; they only grow.")
    ] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="NAME", help="Back to the default.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Add partitions to a topic, or change its settings, while it is in use."""
    from logstore.cli.cluster_plans import BadPlan
    from logstore.cli.cluster_state import read_cluster
    from logstore.config import LogConfig
    from logstore.disk.errors import ErrorCode
    from logstore.replication.controller.assignment import added_partitions
    from logstore.replication.metastore import layout
    from logstore.replication.metastore.operations import Create, Multi, Set

    changed, dropped = _settings(config), set(delete_config or ())
    if partitions is None and not changed and not dropped:
        raise typer.BadParameter("nothing to alter: give --partitions, --config or --delete-config")
    with _session(metadata) as session:
        cluster = read_cluster(session, (name,))
        topic = cluster.topics.get(name)
        if topic is None:
            complain(f"there is no topic {name}")
            return 1
        if name in cluster.doomed:
            raise BadPlan(f"{name} is being deleted")
        writes: list[Create | Set] = []
        if partitions is not None:
            if topic.assignment.adding_replicas or topic.assignment.removing_replicas:
                raise BadPlan(f"{name} is being reassigned; add partitions when that is over")
            existing = topic.assignment.partitions
            added = added_partitions(existing, cluster.racks, partitions)
            # Whatever else the node says stays: which brokers have a replica yet to delete, above all.
            grown = replace(topic.assignment, partitions={**existing, **added})
            writes.append(Set(layout.topic_path(name), layout.encode_topic(grown), topic.version))
            complain("keys go to other partitions from now on")
        if changed or dropped:
            if unknown := sorted(dropped - topic.config.keys()):
                raise BadPlan(f"{name} has no setting {', '.join(unknown)} of its own")
            settings = {key: value for key, value in topic.config.items() if key not in dropped} | changed
            LogConfig.from_kafka(settings)
            data, path = layout.encode_topic_config(settings), layout.topic_config_path(name)
            if topic.config_version < 0:
                writes.append(Create(path, data, make_parents=True))
            else:
                writes.append(Set(path, data, topic.config_version))
            writes.append(
                Create(
                    layout.CONFIG_CHANGE_PREFIX,
                    layout.encode_config_change(name),
                    sequential=True,
                    make_parents=True,
                )
            )
        outcome = session.call(Multi(tuple(writes)))
        code = check_write(outcome, f"the change of {name}", "logstore topics describe")
        if code == 0 and as_json:
            print_json({"topic": name, "error": ErrorCode.NONE.name})
        return code


# --- what the verbs share -------------------------------------------------------------------------


def _session(metadata: str) -> AbstractContextManager[Session]:
    from logstore.cli.cluster_state import session

    return session(metadata)


def _settings(texts: list[str] | None) -> dict[str, str]:
    settings: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--config: {text!r} is not NAME=VALUE")
        if name in settings:
            raise typer.BadParameter(f"--config: {name} is given twice")
        settings[name] = value
    return settings


def _lists(text: str) -> list[tuple[int, ...]]:
    try:
        return [tuple(int(part) for part in one.split(":")) for one in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"--replica-assignment: {text!r} is not like 1:2,2:3") from error


def check_write(outcome: Outcome, what: str, how_to_look: str) -> int:
    """0, or 1 after a complaint: whether the store has taken a write."""
    from logstore.replication.metastore.operations import StoreError

    match outcome.error:
        case None:
            return 0
        case StoreError.CONNECTION_LOSS:
            complain(f"the store's answer about {what} was lost: it may be done; look with {how_to_look}")
        case StoreError.BAD_VERSION | StoreError.NODE_EXISTS | StoreError.NO_NODE:
            complain(f"{what}: somebody else changed it at the same time; nothing was written, try again")
        case error:
            complain(f"{what}: the store refused it: {error.value}")
    return 1


def _done(
    as_json: bool, facts: dict[str, object], wait: float, holds: Callable[[], bool], otherwise: str
) -> int:
    """Print the facts; with `wait`, stay until `holds`, and exit 1 if it does not in time."""
    has_happened = stay(wait, holds) if wait else None
    if as_json:
        print_json({**facts, "is_done": has_happened})
    if has_happened is False:
        complain(f"{facts['topic']}: after {wait:g} s {otherwise}")
        return 1
    return 0


def stay(seconds: float, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= end:
            return False
        pause()
    return True


def pause() -> None:
    """Between two looks at the store."""
    time.sleep(0.05)


def _tell_unreadable(cluster: Cluster) -> int:
    for path, why in sorted(cluster.unreadable.items()):
        complain(f"{path}: {why}")
    return 1 if cluster.unreadable else 0
