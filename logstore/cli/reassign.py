"""`logstore reassign …`: move replicas between brokers: propose, execute, watch, call off.

generate   topics + brokers ─▶ where the replicas are (keep it: it rolls back) and where they could go
execute    a plan ─▶ the node /admin/reassign_partitions, which the controller works off
verify     a plan ─▶ what became of each partition; exit code 1 while one is not where it should be
cancel     what is under way goes back to the replicas it had, in their order
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from logstore.cli.terminal import complain, print_json
from logstore.cli.topics import Json, Metadata, Wait, check_write, stay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logstore.cli.cluster_plans import Plan, Standing
    from logstore.cli.cluster_state import Cluster, Session
    from logstore.disk.topic_partition import TopicPartition

app = typer.Typer(help="Move replicas between brokers.", no_args_is_help=True)

PlanFile = Annotated[
    Path,
    typer.Argument(
        metavar="PLAN",
        help='{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[1,2]}]}',
        exists=True,
        dir_okay=False,
    ),
]


@app.command()
def generate(
    metadata: Metadata,
    topics_file: Annotated[
        Path,
        typer.Argument(
            metavar="TOPICS", help='{"version":1,"topics":[{"topic":"a"}]}', exists=True, dir_okay=False
        ),
    ],
    brokers: Annotated[str, typer.Option("--broker-list", metavar="1,2,3", help="Where they may go.")],
    disable_rack_aware: Annotated[
        bool, typer.Option("--disable-rack-aware", help="Place without regard to racks.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Propose a plan; nothing is changed."""
    import random

    from logstore.cli.cluster_plans import current_plan, encode_plan, parse_topics_to_move, proposal
    from logstore.cli.cluster_state import read_cluster, session

    names = parse_topics_to_move(topics_file.read_text())
    try:
        ids = [int(part) for part in brokers.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"--broker-list: {brokers!r} is not like 1,2,3") from error
    with session(metadata) as opened:
        cluster = read_cluster(opened, names)
    draw = random.SystemRandom()
    start, shift = draw.randrange(len(ids)), draw.randrange(len(ids))
    current = encode_plan(current_plan(cluster, names))
    proposed = encode_plan(
        proposal(cluster, names, ids, with_racks=not disable_rack_aware, start=start, shift=shift)
    )
    if as_json:
        print(f'{{"current": {current}, "proposed": {proposed}}}')
    else:
        print(f"where they are (save it, to roll back):\n{current}\n\nwhere they could go:\n{proposed}")
    return 0


@app.command()
def execute(
    metadata: Metadata,
    plan_file: PlanFile,
    additional: Annotated[
        bool, typer.Option("--additional", help="Join a reassignment that is under way; the later wish wins.")
    ] = False,
    wait: Wait = 0.0,
    as_json: Json = False,
) -> int:
    """Ask the controller to carry a plan out."""
    from logstore.cli.cluster_plans import BadPlan, encode_plan, parse_plan
    from logstore.cli.cluster_state import read_cluster, session

    plan = parse_plan(plan_file.read_text())
    with session(metadata) as opened:
        cluster = read_cluster(opened, _topics(plan))
        current = dict(cluster.partitions())
        known: Plan = {}
        for each, replicas in plan.items():
            if each not in current:
                complain(f"there is no partition {each}: skipped")
                continue
            if dead := [broker for broker in replicas if broker not in cluster.brokers]:
                raise BadPlan(f"{each}: brokers {dead} are not alive")
            known[each] = replicas
        if not known:
            complain("nothing is left to move")
            return 1
        rollback = encode_plan({each: current[each] for each in known})
        if as_json:
            print(f'{{"rollback": {rollback}}}', flush=True)
        else:
            print(f"where they are (save it, to roll back):\n{rollback}", flush=True)
        if code := _ask(opened, known, "the reassignment", "logstore reassign verify", may_join=additional):
            return code
        return _wait_for(opened, known, wait) if wait else int(len(known) < len(plan))


@app.command()
def verify(
    metadata: Metadata,
    plan_file: PlanFile,
    wait: Wait = 0.0,
    as_json: Json = False,
) -> int:
    """What became of a plan, partition by partition."""
    from logstore.cli.cluster_plans import Standing, parse_plan
    from logstore.cli.cluster_state import session

    plan = parse_plan(plan_file.read_text())
    with session(metadata) as opened:
        look = _look(opened, plan, wait)
    current = dict(look.cluster.partitions())
    for each, what in sorted(look.standings.items()):
        wanted, found = list(plan[each]), list(current.get(each, ()))
        if as_json:
            print_json(
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "standing": what.value,
                    "wanted": wanted,
                    "replicas": found,
                }
            )
        elif what is Standing.FAILED:
            print(f"{each}  {what.value}: wanted {wanted}, has {found}")
        else:
            print(f"{each}  {what.value}")
    return look.exit_code


@app.command()
def cancel(metadata: Metadata, plan_file: PlanFile, wait: Wait = 0.0) -> int:
    """Send the partitions of a plan that are under way back to the replicas they had."""
    from logstore.cli.cluster_plans import parse_plan
    from logstore.cli.cluster_state import read_cluster, session

    plan = parse_plan(plan_file.read_text())
    with session(metadata) as opened:
        cluster = read_cluster(opened, _topics(plan))
        back: Plan = {}
        for each in plan:
            topic = cluster.topics.get(each.topic)
            if topic is None:
                continue
            known = topic.assignment
            adding = known.adding_replicas.get(each.partition, ())
            if adding or known.removing_replicas.get(each.partition):
                full = known.partitions.get(each.partition, ())
                origin = tuple(replica for replica in full if replica not in adding)
                back[each] = known.original_replicas.get(each.partition, origin)
        if not back:
            complain("none of these partitions is being reassigned")
            return 1
        if code := _ask(opened, back, "the cancellation", "logstore topics describe"):
            return code
        return _wait_for(opened, back, wait) if wait else 0


def _topics(plan: Plan) -> set[str]:
    return {each.topic for each in plan}


def _ask(opened: Session, wanted: Plan, what: str, how_to_look: str, *, may_join: bool = True) -> int:
    """Write the node that the controller works off, or add to it; the exit code."""
    from logstore.replication.metastore import layout
    from logstore.replication.metastore.operations import Create, Get, Set

    path = layout.REASSIGNMENT_PATH
    node = opened.read(Get(path))
    if node.stat is None:
        write: Create | Set = Create(path, layout.encode_reassignment(wanted), make_parents=True)
    elif may_join:
        merged = {**layout.parse_reassignment(node.data), **wanted}
        write = Set(path, layout.encode_reassignment(merged), node.stat.version)
    else:
        complain("a reassignment is under way: wait until it is over, or join it with --additional")
        return 1
    return check_write(opened.call(write), what, how_to_look)


def _listed(opened: Session) -> frozenset[TopicPartition]:
    from logstore.replication.metastore import layout
    from logstore.replication.metastore.errors import CorruptMetadata
    from logstore.replication.metastore.operations import Get

    node = opened.read(Get(layout.REASSIGNMENT_PATH))
    if node.stat is None:
        return frozenset()
    try:
        return frozenset(layout.parse_reassignment(node.data))
    except CorruptMetadata:
        return frozenset()  # the controller takes such a node for empty, too


class _Look(NamedTuple):
    """One reading, and what became of each partition of a plan by it."""

    cluster: Cluster
    standings: Mapping[TopicPartition, Standing]

    @property
    def is_settled(self) -> bool:
        from logstore.cli.cluster_plans import Standing

        return Standing.IN_PROGRESS not in self.standings.values()

    @property
    def exit_code(self) -> int:
        from logstore.cli.cluster_plans import Standing

        return int(any(each is not Standing.COMPLETED for each in self.standings.values()))


def _look(opened: Session, plan: Plan, seconds: float) -> _Look:
    """The first look by which nothing of the plan is in progress; the last there was time for, if none."""
    from logstore.cli.cluster_plans import standing
    from logstore.cli.cluster_state import read_cluster

    looks: list[_Look] = []

    def is_settled() -> bool:
        listed = _listed(opened)
        cluster = read_cluster(opened, _topics(plan))
        standings = {each: standing(cluster, each, wanted, listed) for each, wanted in plan.items()}
        looks[:] = [_Look(cluster, standings)]
        return looks[0].is_settled

    stay(seconds, is_settled)
    return looks[0]


def _wait_for(opened: Session, plan: Plan, seconds: float) -> int:
    look = _look(opened, plan, seconds)
    if not look.is_settled:
        complain(f"after {seconds:g} s it is still in progress; logstore reassign verify shows it")
    return look.exit_code
