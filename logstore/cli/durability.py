"""`logstore durability`: ask a partition's leader for the proven durability of a record.

    durability orders-0 1200 --bootstrap host:9092                                     now
    durability orders-0 1200 --bootstrap host:9092 --level synced --copies 2 --wait 10  as soon as it holds

Works with brokers of logstore. Exit code 0 for a committed record that is on at least `--copies` replicas
(default 1), synced there with `--level synced`; 1 if that does not hold, or not in time.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from logstore.cli.operating import CommandConfig, Json, Wait, security_of
from logstore.cli.operator import RequiredBootstrap, asked_at
from logstore.cli.terminal import print_error, print_json


class Level(StrEnum):
    """The durability that each copy must have."""

    REPLICATED = "replicated"
    SYNCED = "synced"


def durability(
    partition: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION", help="Such as orders-0.")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="The record's offset.")],
    bootstrap: RequiredBootstrap,
    level: Annotated[Level, typer.Option(help="replicated: written; synced: flushed to the disk.")] = (
        Level.REPLICATED
    ),
    copies: Annotated[int, typer.Option(metavar="N", min=1, help="Required number of replicas.")] = 1,
    wait: Wait = 0.0,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Show on how many replicas a record is proven to be; exit 1 if on fewer than required."""
    from contextlib import closing

    from logstore.broker.blocking import BlockingClient
    from logstore.broker.limits import parse_address
    from logstore.disk.errors import InvalidTopic
    from logstore.disk.topic_partition import parse_directory_name
    from logstore.replication.durability import Durability

    try:
        wanted = parse_directory_name(partition)
        addresses = [parse_address(each) for each in bootstrap.split(",")]
    except (InvalidTopic, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    needed = Durability(level.value)
    with asked_at(bootstrap, command_config) as brokers:
        brokers.metadata(())  # says at once why no broker answers; the client would try until its timeout
    with closing(BlockingClient(addresses, security=security_of(command_config))) as client:
        receipt = client.durability(*wanted, offset) if not wait else None
        if receipt is None:
            try:
                receipt = client.wait_for(*wanted, offset, needed, copies=copies, timeout=wait)
            except TimeoutError as error:
                print_error(str(error))
                return 1
    is_proven = receipt.proves(needed, copies)
    if as_json:
        print_json({**receipt._asdict(), "partition": str(wanted), "proven": is_proven})
    else:
        state = "committed" if receipt.is_committed else "not committed"
        print(
            f"{wanted} offset {offset}: {state}, written on {receipt.written_on} and synced on "
            f"{receipt.synced_on} of {receipt.replicas} replicas"
        )
    return 0 if is_proven else 1
