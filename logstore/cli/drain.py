"""`logstore brokers drain`: move a broker's leaderships away and remove it from every ISR.

The request is Kafka's ControlledShutdown, which a broker sends when it gets SIGTERM. Anyone who may act for
the cluster can send it for a broker. It stops no process. The controller keeps the mark until the broker's
registration ends: after a restart the broker leads and joins ISRs again.

As in Kafka, the controller leaves partitions with a single replica alone: the answer does not name them. The
command finds them in Metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from logstore.cli.operating import CommandOrStoreConfig, Json, Wait, store_security_of, wait_until
from logstore.cli.operator import Bootstrap, Metadata, asked_at, check_one_way
from logstore.cli.terminal import print_error, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from logstore.cli.brokers import Brokers

_MOST_NAMED: Final = 20
"""Partitions in a message."""


def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="The broker's id.")],
    bootstrap: Bootstrap = None,
    metadata: Metadata = None,
    wait: Wait = 0.0,
    command_config: CommandOrStoreConfig = None,
    as_json: Json = False,
) -> int:
    """Move a broker's leaderships away and remove it from every ISR; exit 1 if it still leads partitions.

    Then stop its process. A partition with a single replica stays with the broker: it is named, and has no
    leader while the process is stopped. Until its restart, a drained broker serves only the partitions that
    it still leads. With --metadata the store gives the controller's address. With several listeners, give
    an address of the brokers' listener, and a brokers' login in --command-config. Apache Kafka with KRaft
    has no such request: stop the broker with SIGTERM, which does the same.
    """
    check_one_way(metadata, bootstrap)
    with asked_at(bootstrap or _controller_in(metadata or "", command_config), command_config) as asked:
        return drained_by(asked, broker, wait, as_json=as_json)


def drained_by(asked: Brokers, broker: int, wait_s: float, *, as_json: bool) -> int:
    """Drain a broker by the listener of brokers, say how that went, and return the exit code."""
    left: list[str] = []

    def is_drained() -> bool:
        left[:] = _drained(asked, broker)
        return not left

    wait_until(wait_s, is_drained)
    alone = _alone_at(asked, broker)
    if as_json:
        still = [*left, *alone]
        print_json({"broker": broker, "drained": not still, "still_leads": still})
        return 1 if still else 0
    if left:
        print_error(
            f"broker {broker} still leads {_named(left)}: no other replica is in sync, and none joins "
            f"before broker {broker} is restarted. See logstore why {left[0]}"
        )
    if alone:
        print_error(
            f"broker {broker} still leads {_named(alone)}: it has the only replica, so there is no leader "
            "while its process is stopped. To move a replica, see logstore reassign"
        )
    if not left and not alone:
        print(f"broker {broker} leads no partition; stop its process, or restart it")
    return 1 if left or alone else 0


def _named(partitions: list[str]) -> str:
    more = len(partitions) - _MOST_NAMED
    return ", ".join(partitions[:_MOST_NAMED]) + (f" and {more} more (--json names all)" if more > 0 else "")


def _alone_at(asked: Brokers, broker: int) -> list[str]:
    """Return the partitions that the broker leads and that have no other replica, in order."""
    found = sorted(
        (topic.name or "", each.partition_index)
        for topic in asked.metadata().topics
        for each in topic.partitions
        if each.leader_id == broker and each.replica_nodes == [broker]
    )
    return [f"{topic}-{partition}" for topic, partition in found]


def _drained(asked: Brokers, broker: int) -> list[str]:
    """Send the request once; return the partitions that the broker still leads."""
    from logstore.broker.errors import RequestRefused
    from logstore.broker.wire.interbroker import ControlledShutdownRequest
    from logstore.cli.brokers import check
    from logstore.disk.errors import ErrorCode

    try:
        answer = asked.controller(ControlledShutdownRequest(broker_id=broker))
    except RequestRefused as error:
        if error.error is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        raise RequestRefused(
            error.error,
            "the request for a drain is not served there. logstore's brokers serve it on the listener of "
            "brokers only (inter.broker.listener.name): use its address, and a --command-config with which "
            f"brokers log in; in a cluster of cluster start, use logstore cluster drain DIR {broker}. Apache "
            "Kafka's brokers with KRaft move their leaderships when they shut down: stop broker "
            f"{broker} with SIGTERM. {error}",
        ) from error
    check(answer.error_code, f"broker {broker}")
    return [f"{each.topic_name}-{each.partition_index}" for each in answer.remaining_partitions]


def _controller_in(metadata: str, command_config: Path | None) -> str:
    """Return the address of the controller by the store. Raises `MetadataUnavailable` if there is none."""
    from logstore.broker.limits import Address
    from logstore.cli.cluster_state import MetadataUnavailable, read_cluster, session

    with session(metadata, store_security_of(command_config)) as opened:
        cluster = read_cluster(opened, ())
    known = cluster.brokers.get(-1 if cluster.controller is None else cluster.controller)
    if known is None:
        raise MetadataUnavailable("the metadata store names no live controller; see logstore why cluster")
    return str(Address(known.host, known.port))
