"""`logstore health`: all problems of a cluster, worst first; exit 1 if there is any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.operating import LONGEST_INTERVAL_S, CommandConfig, Json
from logstore.cli.operator import RequiredBootstrap, asked_at
from logstore.cli.terminal import print_error, print_json
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.cli.trouble import Trouble

MOST_GROUPS = 200
Watch = Annotated[
    float,
    typer.Option(
        "--watch",
        metavar="SECONDS",
        min=0,
        max=LONGEST_INTERVAL_S,
        help="How long to look for commits of a group's members; consumers commit every 5 s by default.",
    ),
]
Every = Annotated[bool, typer.Option("--all", help="List each partition, too, not only the causes.")]


def health(
    bootstrap: RequiredBootstrap,
    every: Every = False,
    watch: Watch = 6.0,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Show all that is wrong with a cluster, worst first, by causes; exit 1 if there is anything.

    Groups count, too. With groups that lag it takes a few seconds: each is looked at twice.
    """
    from logstore.broker.errors import AuthenticationFailed, RequestUnanswered
    from logstore.cli.causes import causes
    from logstore.cli.explanations import nobody_answers
    from logstore.cli.group_explanations import troubles_of_groups
    from logstore.cli.observing import group_names, observe, observe_groups
    from logstore.cli.trouble import Rank
    from logstore.cli.troubles import in_order, troubles

    with asked_at(bootstrap, command_config) as brokers:
        try:
            observed = observe(brokers)
        except AuthenticationFailed:
            raise
        except RequestUnanswered as error:
            for each in nobody_answers(str(error)).troubles:
                show(each, as_json=as_json)
            return 1
        names = group_names(brokers, sorted(observed.cluster.brokers.keys() - observed.silent.keys()))
        of_groups = troubles_of_groups(observe_groups(brokers, names[:MOST_GROUPS], watch, observed.cluster))
    if len(names) > MOST_GROUPS:
        print_error(
            f"{len(names)} groups: only the first {MOST_GROUPS} by name are looked at; see why group NAME"
        )
    found = in_order([*(troubles(observed) if every else causes(troubles(observed))), *of_groups])
    for each in found:
        show(each, as_json=as_json)
    if not found and not as_json:
        cluster = observed.cluster
        live = counted(len(cluster.brokers), "broker")
        partitions = counted(sum(1 for _ in cluster.partitions()), "partition")
        print(f"nothing is wrong: {live}, {partitions}, all in sync")
    return int(any(each.rank < Rank.UNDER_WAY for each in found))


def show(trouble: Trouble, *, as_json: bool) -> None:
    """Print a problem."""
    if as_json:
        print_json(trouble.facts())
        return
    print(f"{trouble.subject}: {trouble.says}")
    for label, text in (
        ("because", trouble.evidence),
        ("waits for", trouble.waits_for),
        ("who acts", trouble.acts),
        ("next step", trouble.next_step),
        ("no help", trouble.no_help),
    ):
        if text:
            print(f"  {label:9}  {text}")
