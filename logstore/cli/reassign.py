"""`logstore reassign …`: move replicas between brokers: propose, execute, verify, cancel.

generate   topics + brokers ─▶ the current assignment (keep it: it rolls back) and a proposed one
execute    a plan ─▶ the controller carries it out: asked by brokers, or by a node of the metadata store
verify     a plan ─▶ the result for each partition; exit code 1 while any is not as planned. Once nothing
           moves any more, throttles are removed
cancel     partitions under way go back to their previous replicas, in their order
list       the partitions under way, and those that are requested and have not begun
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from logstore.cli.operating import CommandOrStoreConfig, Json, Wait, text_of, wait_until
from logstore.cli.operator import Bootstrap, Metadata, Operator, operator
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from logstore.cli.cluster_plans import Plan, Standing
    from logstore.cli.cluster_state import Cluster
    from logstore.disk.topic_partition import TopicPartition

app = typer.Typer(help="Move replicas between brokers.", no_args_is_help=True)

_FAILED_LOOKS: Final = 40

Throttle: TypeAlias = Mapping[str, Mapping[int, int]]
"""Bytes a second, by side and broker."""

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
    topics_file: TopicsFile,
    brokers: Annotated[str, typer.Option("--broker-list", metavar="1,2,3", help="Target brokers.")],
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandOrStoreConfig = None,
    disable_rack_aware: Annotated[bool, typer.Option("--disable-rack-aware", help="Ignore racks.")] = False,
    as_json: Json = False,
) -> int:
    """Propose a plan; change nothing."""
    import random

    from logstore.cli.cluster_plans import current_plan, encode_plan, parse_topics_to_move, proposal

    names = parse_topics_to_move(text_of(topics_file, "TOPICS"))
    try:
        ids = [int(part) for part in brokers.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"--broker-list: {brokers!r} is not a list of broker ids like 1,2,3"
        ) from error
    with operator(metadata, bootstrap, command_config) as to:
        cluster = to.read(names)
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
    plan_file: PlanFile,
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandOrStoreConfig = None,
    additional: Annotated[
        bool,
        typer.Option("--additional", help="Add to a reassignment in progress; the later plan wins."),
    ] = False,
    throttle: Annotated[
        int | None,
        typer.Option(
            "--throttle",
            metavar="BYTES_PER_S",
            min=1,
            help="Limit what each broker sends to, and fetches for, new replicas. verify removes it.",
        ),
    ] = None,
    wait: Wait = 0.0,
    as_json: Json = False,
) -> int:
    """Ask the controller to carry a plan out."""
    from logstore.cli.cluster_plans import BadPlan, check_alive, encode_plan, parse_plan
    from logstore.disk.errors import EngineError

    plan = parse_plan(text_of(plan_file, "PLAN"))
    with operator(metadata, bootstrap, command_config) as to:
        cluster = to.read({each.topic for each in plan}, settings=throttle is not None)
        current = dict(cluster.partitions())
        for each in plan:
            if each not in current:
                print_error(f"no partition {each}: skipped")
        known = {each: replicas for each, replicas in plan.items() if each in current}
        check_alive(cluster, known)
        if not known:
            print_error("no partitions to move")
            return 1
        rollback = encode_plan({each: current[each] for each in known})
        shown = f'{{"rollback": {rollback}}}' if as_json else _kept(rollback)
        print(shown, flush=True)
        if throttle is not None:
            if not additional and to.moving():
                raise BadPlan(
                    "a reassignment is in progress: add to it, or change its throttle, with --additional"
                )
            _throttle(to, cluster, known, throttle)
        try:
            to.move(known, may_join=additional)
        except EngineError:
            if throttle is not None:
                print_error("the throttle is set; logstore reassign verify removes it")
            raise
        if not wait:
            return int(len(known) < len(plan))
        code = _wait_for(to, known, wait)
        if throttle is not None:
            settled = to.read({each.topic for each in known}, settings=True)
            _remove_throttles(to, settled, known, as_json=as_json)
        return code


def _throttle(to: Operator, cluster: Cluster, plan: Plan, rate: int) -> None:
    """Set the throttles of a plan: first whose replicas count, then the rates."""
    from logstore.cli.throttles import throttles_for

    wanted = throttles_for(cluster, plan)
    for topic, lists in wanted.of_topics.items():
        to.alter(topic, None, lists, ())
    to.limit_replication((broker for broker in wanted.brokers if broker in cluster.brokers), rate)
    told = ", ".join(map(str, wanted.brokers))
    print_error(
        f"throttled to {rate} bytes/s on brokers {told}" if told else "nothing to throttle: no replica moves"
    )


def _remove_throttles(to: Operator, cluster: Cluster, plan: Plan, *, as_json: bool) -> None:
    """Remove the throttles of a plan's topics and of all brokers, once no partition of the cluster moves."""
    from logstore.cli.throttles import topics_with_lists

    listed = topics_with_lists(cluster, sorted({each.topic for each in plan}))
    rates = to.replication_rates(sorted(cluster.brokers))
    limited = [broker for broker, found in rates.items() if any(rate is not None for rate in found)]
    if (not listed and not limited) or to.moving() or _is_moving(to.read()):
        return
    to.limit_replication(limited, None)
    for topic, names in listed.items():
        to.alter(topic, None, {}, names)
    if as_json:
        print_json({"throttles_removed": {"brokers": limited, "topics": list(listed)}})
    else:
        brokers, topics = (", ".join(map(str, each)) or "none" for each in (limited, listed))
        print(f"throttles removed: brokers {brokers}; topics {topics}")


def _is_moving(cluster: Cluster) -> bool:
    assignments = [topic.assignment for topic in cluster.topics.values()]
    return any(each.adding_replicas or each.removing_replicas for each in assignments)


def _kept(rollback: str) -> str:
    return f"current assignment (keep it to roll back):\n{rollback}"


@app.command()
def verify(
    plan_file: PlanFile,
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandOrStoreConfig = None,
    preserve_throttles: Annotated[
        bool, typer.Option("--preserve-throttles", help="Keep throttles when nothing moves any more.")
    ] = False,
    wait: Wait = 0.0,
    as_json: Json = False,
) -> int:
    """Show the result of a plan for each partition; remove throttles once nothing moves any more."""
    from logstore.cli.cluster_plans import Standing, parse_plan
    from logstore.cli.throttles import told

    plan = parse_plan(text_of(plan_file, "PLAN"))
    with operator(metadata, bootstrap, command_config) as to:
        cluster, standings = _look(to, plan, wait, settings=True)
        moving = [each for each, standing in standings.items() if standing is Standing.IN_PROGRESS]
        throttles = _throttles(to, cluster, moving)
        current = dict(cluster.partitions())
        for each, standing in sorted(standings.items()):
            wanted, found = list(plan[each]), list(current.get(each, ()))
            throttle = throttles.get(each, {})
            if as_json:
                facts = {"topic": each.topic, "partition": each.partition, "standing": standing.value}
                print_json({**facts, "wanted": wanted, "replicas": found, "throttle": throttle})
            else:
                differs = f": wanted {wanted}, has {found}" if standing is Standing.FAILED else ""
                print(f"{each}  {standing.value}{differs}  {told(throttle)}".rstrip())
        if not moving and not preserve_throttles:
            _remove_throttles(to, cluster, plan, as_json=as_json)
    return _exit_code(standings)


def _throttles(
    to: Operator, cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Throttle]:
    """Return the throttles of partitions that move, by the settings of their topics."""
    from logstore.cli.throttles import throttle_of, topics_with_lists

    if not topics_with_lists(cluster, {each.topic for each in partitions}):
        return {}
    rates = to.replication_rates(sorted(cluster.brokers))
    return {each: throttle_of(cluster, rates, each) for each in partitions}


@app.command()
def cancel(
    plan_file: PlanFile,
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandOrStoreConfig = None,
    wait: Wait = 0.0,
    as_json: Json = False,
) -> int:
    """Cancel the moves of a plan in progress: restore the previous replicas."""
    from logstore.cli.cluster_plans import parse_plan, plan_back

    plan = parse_plan(text_of(plan_file, "PLAN"))
    with operator(metadata, bootstrap, command_config) as to:
        cluster = to.read({each.topic for each in plan})
        back = plan_back(cluster, plan)
        if not back:
            print_error("none of these partitions is being reassigned")
            return 1
        to.move_back(back)
        if as_json:
            for each, replicas in sorted(back.items()):
                print_json({"topic": each.topic, "partition": each.partition, "replicas": list(replicas)})
        return _wait_for(to, back, wait) if wait else 0


@app.command("list")
def list_reassignments(
    metadata: Metadata = None,
    bootstrap: Bootstrap = None,
    command_config: CommandOrStoreConfig = None,
    as_json: Json = False,
) -> int:
    """List the reassignments requested or in progress, and their throttles."""
    from logstore.cli.throttles import told

    with operator(metadata, bootstrap, command_config) as to:
        requested = to.moving()
        cluster = to.read()
        moving = {
            each: replicas
            for each, replicas in cluster.partitions()
            if any(cluster.motion(each)) or each in requested
        }
        listed = to.read({each.topic for each in moving}, settings=True) if moving else cluster
        throttles = _throttles(to, listed, moving)
    for each, replicas in moving.items():
        adding, removing = cluster.motion(each)
        lists = {"replicas": list(replicas), "adding": list(adding), "removing": list(removing)}
        throttle = throttles.get(each, {})
        if as_json:
            print_json({"topic": each.topic, "partition": each.partition, **lists, "throttle": throttle})
        else:
            ids = (f"{name} {','.join(map(str, of)) or '-'}" for name, of in lists.items())
            begun = "" if adding or removing else "  not begun"
            print(f"{each}  {'  '.join(ids)}{begun}  {told(throttle)}".rstrip())
    if not moving and not as_json:
        print("no reassignment is in progress")
    return 0


def _look(
    to: Operator, plan: Plan, seconds: float, *, settings: bool = False
) -> tuple[Cluster, dict[TopicPartition, Standing]]:
    """Read the cluster until nothing of the plan is in progress, or `seconds` have passed.

    A broker may not know yet what the controller has completed: a plan has failed if it looks so each time.
    """
    from logstore.cli.cluster_plans import Standing, standing

    looks: list[tuple[Cluster, dict[TopicPartition, Standing]]] = []

    def is_settled() -> bool:
        listed = to.moving()
        cluster = to.read({each.topic for each in plan}, settings=settings)
        standings = {each: standing(cluster, each, wanted, listed) for each, wanted in plan.items()}
        looks.append((cluster, standings))
        if Standing.IN_PROGRESS in standings.values():
            looks[:] = looks[-1:]
            return False
        return Standing.FAILED not in standings.values() or len(looks) >= _FAILED_LOOKS

    wait_until(seconds, is_settled)
    return looks[-1]


def _wait_for(to: Operator, plan: Plan, seconds: float) -> int:
    from logstore.cli.cluster_plans import Standing

    _, standings = _look(to, plan, seconds)
    if Standing.IN_PROGRESS in standings.values():
        print_error(f"still in progress after {seconds:g} s; logstore reassign verify shows it")
    return _exit_code(standings)


def _exit_code(standings: dict[TopicPartition, Standing]) -> int:
    from logstore.cli.cluster_plans import Standing

    return int(any(each is not Standing.COMPLETED for each in standings.values()))
