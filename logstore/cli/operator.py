"""The two ways in which operators' verbs reach a cluster: its metadata store, or its brokers.

    --metadata zookeeper://…   StoreOperator     writes what the controller carries out
    --bootstrap HOST:PORT      BrokerOperator    Kafka's admin requests, also to brokers of Apache Kafka

Both read the cluster as a `Cluster`, so the decisions in `cluster_plans.py` hold for both. The methods raise
`EngineError`s: nothing was changed then, unless the message says that the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from logstore.cli.operating import security_of, store_security_of

if TYPE_CHECKING:
    from logstore.cli.brokers import Brokers
    from logstore.cli.cluster_plans import Plan
    from logstore.cli.cluster_state import Cluster
    from logstore.cli.throttles import Rates
    from logstore.disk.topic_partition import TopicPartition

Metadata = Annotated[
    str | None,
    typer.Option(
        "--metadata", metavar="URL", help="The metadata store: zookeeper://host:port[,host:port][/chroot]."
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option("--bootstrap", metavar="HOST:PORT[,…]", help="Brokers to ask first, instead of the store."),
]
RequiredBootstrap = Annotated[
    str, typer.Option("--bootstrap", metavar="HOST:PORT[,…]", help="Brokers to ask first.")
]

Topics = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC[-PARTITION]...", help="Topics, or single partitions like orders-0."),
]
DeletedSettings = Annotated[
    list[str] | None, typer.Option("--delete-config", metavar="NAME", help="Reset to the default.")
]


class Operator(Protocol):
    """The operations on a cluster that the verbs need."""

    def read(
        self, topics: Iterable[str] | None = None, *, settings: bool = False, may_hide_moves: bool = False
    ) -> Cluster:
        """Return the cluster, with all topics or these; topics that do not exist are left out.

        The topics' settings are read only if asked for: they are most of the answer. If allowed, what a user
        may not see of reassignments and deletions is left out, and a note says so.
        """

    def min_isr(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Return `min.insync.replicas` of topics, as far as it is known."""

    def create(
        self,
        name: str,
        settings: Mapping[str, str],
        partitions: int | None,
        replication_factor: int | None,
        assignment: Sequence[tuple[int, ...]] | None,
    ) -> str:
        """Create a topic, on the brokers of `assignment` if it is given, and return its id.

        None: as the brokers are set; 1 over a metadata store, which does not know their settings.
        """

    def delete(self, name: str) -> None:
        """Request the deletion of a topic."""

    def alter(
        self, name: str, partitions: int | None, changed: Mapping[str, str], dropped: Collection[str]
    ) -> None:
        """Add partitions to a topic up to `partitions`, and change or remove its settings."""

    def elect(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, str]:
        """Ask for the election of preferred leaders; return why some were not elected, if that is known."""

    def is_electing(self) -> bool:
        """Return whether an election that was asked for is still to come."""

    def move(self, plan: Plan, *, may_join: bool) -> None:
        """Ask for a reassignment; without `may_join` only if none is under way."""

    def move_back(self, plan: Plan) -> None:
        """Cancel the reassignment of these partitions, whose previous replicas are given."""

    def moving(self) -> Collection[TopicPartition]:
        """Return the partitions that are asked to move and may not have begun."""

    def limit_replication(self, brokers: Iterable[int], rate: int | None) -> None:
        """Set both replication rates of these brokers, bytes a second; None removes them."""

    def replication_rates(self, brokers: Iterable[int]) -> dict[int, Rates]:
        """Return the replication rates of these brokers."""


def check_one_way(metadata: str | None, bootstrap: str | None) -> None:
    """Raise `typer.BadParameter` unless one of the two is given."""
    if (metadata is None) == (bootstrap is None):
        raise typer.BadParameter("give --bootstrap HOST:PORT, or --metadata URL")


@contextmanager
def operator(
    metadata: str | None, bootstrap: str | None, command_config: Path | None = None
) -> Iterator[Operator]:
    """Reach the cluster by the one way that is given. Raises `typer.BadParameter` for none or both."""
    check_one_way(metadata, bootstrap)
    if metadata is not None:
        from logstore.cli.cluster_state import session
        from logstore.cli.store_operator import StoreOperator

        with session(metadata, store_security_of(command_config)) as opened:
            yield StoreOperator(opened)
        return
    from logstore.cli.broker_operator import BrokerOperator

    assert bootstrap is not None, "checked above"
    with asked_at(bootstrap, command_config) as brokers:
        yield BrokerOperator(brokers)


def asked_at(bootstrap: str, command_config: Path | None) -> closing[Brokers]:
    """Return the brokers of a cluster, for a `with` statement."""
    from logstore.cli.brokers import Brokers

    return closing(Brokers(bootstrap, security_of(command_config)))
