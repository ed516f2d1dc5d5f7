"""`logstore health`: all that is wrong with a cluster, worst first; exit 1 if there is anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.cli.operating import CommandConfig, Json
from logstore.cli.operator import RequiredBootstrap, asked_at
from logstore.cli.terminal import print_json

if TYPE_CHECKING:
    from logstore.cli.troubles import Trouble


def health(bootstrap: RequiredBootstrap, command_config: CommandConfig = None, as_json: Json = False) -> int:
    """Show all that is wrong with a cluster, worst first; exit 1 if there is anything."""
    from logstore.cli.observing import observe
    from logstore.cli.troubles import Rank, troubles

    with asked_at(bootstrap, command_config) as brokers:
        observed = observe(brokers)
    found = troubles(observed)
    for each in found:
        show(each, as_json=as_json)
    if not found and not as_json:
        cluster = observed.cluster
        count = sum(1 for _ in cluster.partitions())
        print(f"nothing is wrong: {len(cluster.brokers)} brokers, {count} partitions, all in sync")
    return int(any(each.rank < Rank.UNDER_WAY for each in found))


def show(trouble: Trouble, *, as_json: bool) -> None:
    """Print a trouble."""
    if as_json:
        print_json(
            {
                "rank": trouble.rank.name.lower(),
                "subject": trouble.subject,
                "says": trouble.says,
                "evidence": trouble.evidence,
                "waits_for": trouble.waits_for,
                "acts": trouble.acts,
                "next_step": trouble.next_step,
                "no_help": trouble.no_help,
            }
        )
        return
    print(f"{trouble.subject}: {trouble.says}")
    print(f"  because  {trouble.evidence}")
    if trouble.waits_for:
        print(f"  awaits   {trouble.waits_for}")
    print(f"  acts     {trouble.acts}")
    print(f"  next     {trouble.next_step}")
    if trouble.no_help:
        print(f"  no help  {trouble.no_help}")
