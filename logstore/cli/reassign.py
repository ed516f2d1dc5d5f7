"""`logstore reassign …`: move replicas between brokers: propose, execute, verify, cancel.

generate   topics + brokers ─▶ the current assignment (keep it: it rolls back) and a proposed one
execute    a plan ─▶ the node /admin/reassign_partitions, which the controller carries out
verify     a plan ─▶ the result for each partition; exit code 1 while any is not as planned
cancel     partitions under way go back to their previous replicas, in their order
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import Json, Metadata, Wait, is_written, wait_until
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
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
TopicsFile = Annotated[
    Path,
    typer.Argument(
        metavar="TOPICS", help='{"version":1,"topics":[{"topic":"a"}]}', exists=True, dir_okay=False
    ),
]


@app.command()
def generate(
    metadata: Metadata,
    topics_file: TopicsFile,
    brokers: Annotated[str, typer.Option("--broker-list", metavar="1,2,3", help="Target brokers.")],
    disable_rack_aware: Annotated[bool, typer.Option("--disable-rack-aware", help="Ignore racks.")] = False,
    as_json: Json = False,
) -> int:
    """Propose a plan; change nothing."""
    import random

    from logstore.cli.cluster_plans import current_plan, encode_plan, parse_topics_to_move, proposal
    from logstore.cli.cluster_state import read_cluster, session

    names = parse_topics_to_move(topics_file.read_text())
    try:
        ids = [int(part) for part in brokers.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"--broker-list: {brokers!r} is not a list of broker ids like 1,2,3"
        ) from error
    with session(metadata) as opened:
        cluster = read_cluster(opened, names)
    draw = random.SystemRandom()
    start, shift = draw.randrange(len(ids)), draw.randrange(len(ids))
    plan = proposal(cluster, names, ids, with_racks=not disable_rack_aware, start=start, shift=shift)
    current, proposed = encode_plan(current_plan(cluster, names)), encode_plan(plan)
    if as_json:
        print(f'{{"current": {current}, "proposed": {proposed}}}')
    else:
        print(f"{_kept(current)}\n\nproposed assignment:\n{proposed}")
    return 0


@app.command()
def execute(
    metadata: Metadata,
    plan_file: PlanFile,
    additional: Annotated[
        bool,
        typer.Option("--additional", help="Add to a reassignment that is under way; the later plan wins."),
    ] = False,
    wait: Wait = 0.0,
    as_json: Json = False,
) -> int:
    """Ask the controller to carry a plan out."""
    from logstore.cli.cluster_plans import BadPlan, encode_plan, parse_plan
    from logstore.cli.cluster_state import read_cluster, session

    plan = parse_plan(plan_file.read_text())
    with session(metadata) as opened:
        cluster = read_cluster(opened, {each.topic for each in plan})
        current = dict(cluster.partitions())
        for each in plan:
            if each not in current:
                print_error(f"no partition {each}: skipped")
        known = {each: replicas for each, replicas in plan.items() if each in current}
        for each, replicas in known.items():
            if dead := [broker for broker in replicas if broker not in cluster.brokers]:
                raise BadPlan(f"{each}: brokers {dead} are not alive")
        if not known:
            print_error("no partitions to move")
            return 1
        rollback = encode_plan({each: current[each] for each in known})
        shown = f'{{"rollback": {rollback}}}' if as_json else _kept(rollback)
        print(shown, flush=True)
        if not _is_requested(
            opened, known, "the reassignment", "logstore reassign verify", may_join=additional
        ):
            return 1
        return _wait_for(opened, known, wait) if wait else int(len(known) < len(plan))


def _kept(rollback: str) -> str:
    return f"current assignment (keep it to roll back):\n{rollback}"


@app.command()
def verify(metadata: Metadata, plan_file: PlanFile, wait: Wait = 0.0, as_json: Json = False) -> int:
    """Show the result of a plan for each partition."""
    from logstore.cli.cluster_plans import Standing, parse_plan
    from logstore.cli.cluster_state import session

    plan = parse_plan(plan_file.read_text())
    with session(metadata) as opened:
        cluster, standings = _look(opened, plan, wait)
    current = dict(cluster.partitions())
    for each, standing in sorted(standings.items()):
        wanted, found = list(plan[each]), list(current.get(each, ()))
        if as_json:
            facts = {"topic": each.topic, "partition": each.partition, "standing": standing.value}
            print_json({**facts, "wanted": wanted, "replicas": found})
        else:
            differs = f": wanted {wanted}, has {found}" if standing is Standing.FAILED else ""
            print(f"{each}  {standing.value}{differs}")
    return _exit_code(standings)


@app.command()
def cancel(metadata: Metadata, plan_file: PlanFile, wait: Wait = 0.0) -> int:
    """Move the partitions of a plan that are under way back to their previous replicas."""
    from logstore.cli.cluster_plans import parse_plan, previous_replicas
    from logstore.cli.cluster_state import read_cluster, session

    plan = parse_plan(plan_file.read_text())
    with session(metadata) as opened:
        cluster = read_cluster(opened, {each.topic for each in plan})
        before = {each: previous_replicas(cluster, each) for each in plan}
        back = {each: replicas for each, replicas in before.items() if replicas is not None}
        if not back:
            print_error("none of these partitions is being reassigned")
            return 1
        if not _is_requested(opened, back, "the cancellation", "logstore topics describe"):
            return 1
        return _wait_for(opened, back, wait) if wait else 0


def _is_requested(
    opened: Session, wanted: Plan, what: str, how_to_look: str, *, may_join: bool = True
) -> bool:
    """Write the node that the controller carries out, or add to it; return whether that succeeded."""
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
        print_error("a reassignment is under way: try again when it is over, or add to it with --additional")
        return False
    return is_written(opened.call(write), what, how_to_look)


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
        return frozenset()  # the controller treats such a node as empty, too


def _look(opened: Session, plan: Plan, seconds: float) -> tuple[Cluster, dict[TopicPartition, Standing]]:
    """Read the cluster until nothing of the plan is in progress, or `seconds` have passed."""
    from logstore.cli.cluster_plans import Standing, standing
    from logstore.cli.cluster_state import read_cluster

    looks: list[tuple[Cluster, dict[TopicPartition, Standing]]] = []

    def is_settled() -> bool:
        listed = _listed(opened)
        cluster = read_cluster(opened, {each.topic for each in plan})
        standings = {each: standing(cluster, each, wanted, listed) for each, wanted in plan.items()}
        looks[:] = [(cluster, standings)]
        return Standing.IN_PROGRESS not in standings.values()

    wait_until(seconds, is_settled)
    return looks[0]


def _wait_for(opened: Session, plan: Plan, seconds: float) -> int:
    from logstore.cli.cluster_plans import Standing

    _, standings = _look(opened, plan, seconds)
    if Standing.IN_PROGRESS in standings.values():
        print_error(f"still in progress after {seconds:g} s; logstore reassign verify shows it")
    return _exit_code(standings)


def _exit_code(standings: dict[TopicPartition, Standing]) -> int:
    from logstore.cli.cluster_plans import Standing

    return int(any(each is not Standing.COMPLETED for each in standings.values()))
