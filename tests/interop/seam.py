"""What every client does, in one vocabulary: behaviours are written against this, adapters fulfil it.

    behaviour (test_*.py) ──▶ Client · Producer · Consumer · Admin ──▶ adapter ──▶ the client ──▶ brokers

Settings have Kafka's names (`acks`, `enable.idempotence`, …); each adapter gives them to its client by the
client's. What a broker refuses is `Refused` with Kafka's error code, whichever class the client has for it.
What a client does not offer at all, its adapter does not have: `absent.py` lists it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

Settings = Mapping[str, object]
Headers = tuple[tuple[str, bytes], ...]

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1


class Refused(Exception):
    """A client's word that something did not work."""

    def __init__(self, code: int, text: str) -> None:
        """`code` is Kafka's; one below 0 is the client's own."""
        super().__init__(f"{code}: {text}")
        self.code = code


class Partition(NamedTuple):
    topic: str
    number: int


class Outgoing(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


class Receipt(NamedTuple):
    """Where a record was put; the offset is -1 where nobody acknowledged it."""

    partition: int
    offset: int


class Record(NamedTuple):
    partition: Partition
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    timestamp_type: int


class Commit(NamedTuple):
    offset: int
    metadata: str = ""


NO_LEADER: Final = 5
"""LEADER_NOT_AVAILABLE of a partition: a state that Kafka's own client tells by leader -1."""


class Replicas(NamedTuple):
    """A partition as an administrator sees it; leader -1 for none."""

    leader: int
    replicas: tuple[int, ...]
    isr: frozenset[int]


class ClusterDescription(NamedTuple):
    cluster_id: str
    controller: int
    brokers: dict[int, str]
    """id → host:port"""


class Setting(NamedTuple):
    value: str | None
    source: int
    """1 topic, 3 all brokers, 4 static, 5 default; -1 where the client does not tell."""
    is_read_only: bool


class GroupDescription(NamedTuple):
    state: str
    """As Kafka spells it, in lower case: `stable`, `empty`, `dead`."""
    members: tuple[frozenset[Partition], ...]
    """What each member was assigned."""


class Producer(Protocol):
    def send(self, topic: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        """Hand all over, then wait for all receipts. Raises `Refused`."""
        ...

    def close(self) -> None: ...


class Consumer(Protocol):
    def assign(self, *partitions: Partition) -> None: ...

    def subscribe(self, *topics: str) -> None: ...

    def subscribe_pattern(self, pattern: str) -> None: ...

    def unsubscribe(self) -> None: ...

    def assignment(self) -> frozenset[Partition]: ...

    def poll(self, *, max_records: int = 500, timeout_s: float = 0.2) -> list[Record]:
        """What there is, after a wait for it. Raises `Refused`."""
        ...

    def seek(self, partition: Partition, offset: int) -> None: ...

    def seek_to_beginning(self, partition: Partition) -> None: ...

    def seek_to_end(self, partition: Partition) -> None: ...

    def pause(self, partition: Partition) -> None: ...

    def resume(self, partition: Partition) -> None: ...

    def position(self, partition: Partition) -> int: ...

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Beginning and end offset."""
        ...

    def offset_for_time(self, partition: Partition, timestamp_ms: int) -> int | None:
        """The first offset whose record is not older; None if there is none."""
        ...

    def partitions_of(self, topic: str) -> set[int]: ...

    def commit(self, offsets: Mapping[Partition, Commit] | None = None) -> None:
        """What was consumed, or what is given; returns when it is committed."""
        ...

    def commit_later(self) -> None:
        """Likewise without waiting."""
        ...

    def committed(self, partition: Partition) -> int | None: ...

    def close(self) -> None:
        """Leave the group, if any."""
        ...


class Admin(Protocol):
    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        factor: int = -1,
        assignment: Sequence[Sequence[int]] = (),
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Replicas of each partition in `assignment`, or so many partitions with so many replicas."""
        ...

    def delete_topic(self, name: str) -> None: ...

    def topics(self) -> set[str]: ...

    def describe_topic(self, name: str) -> list[Replicas]:
        """By number. Raises `Refused` for a topic, or a partition, with an error."""
        ...

    def describe_cluster(self) -> ClusterDescription: ...

    def create_partitions(
        self, topic: str, total: int, *, assignment: Sequence[Sequence[int]] = ()
    ) -> None: ...

    def describe_topic_config(self, topic: str) -> dict[str, Setting]: ...

    def describe_broker_config(self, broker: int) -> dict[str, Setting]: ...

    def alter_config(self, topic: str, configs: Mapping[str, str]) -> None:
        """By the old request, AlterConfigs."""
        ...

    def delete_records(self, partition: Partition, before: int) -> int:
        """The log's new start."""
        ...

    def groups(self) -> set[str]: ...

    def describe_group(self, group: str) -> GroupDescription: ...

    def group_offsets(self, group: str, *partitions: Partition) -> dict[Partition, Commit]: ...

    # What aiokafka's has not; `absent.py` says what else is missing where.

    def change_config(
        self,
        topic: str,
        *,
        put: Mapping[str, str] | None = None,
        delete: Sequence[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
    ) -> None:
        """By the new request, IncrementalAlterConfigs."""
        ...

    def elect_preferred(self, partition: Partition) -> None: ...

    def log_dirs(self) -> dict[int, dict[Partition, int]]:
        """Of each broker, the replicas and their sizes."""
        ...

    def reassign(self, partition: Partition, replicas: Sequence[int] | None) -> None: ...

    def reassignments(self) -> set[Partition]: ...

    def list_offset(self, partition: Partition, spec: int) -> int:
        """`spec` is a time or, below 0, one of Kafka's words: -1 end, -2 start, -3 of the greatest time."""
        ...

    def describe_acls(self) -> None: ...

    def create_acl(self) -> None: ...

    def delete_acls(self) -> None: ...

    def delete_group(self, group: str) -> None: ...

    def alter_group_offset(self, group: str, partition: Partition, offset: int) -> None: ...

    def delete_group_offset(self, group: str, partition: Partition) -> None: ...

    def close(self) -> None: ...


class Client(Protocol):
    @property
    def name(self) -> str: ...

    def producer(self, bootstrap: str, settings: Settings) -> Producer: ...

    def consumer(self, bootstrap: str, settings: Settings) -> Consumer: ...

    def admin(self, bootstrap: str) -> Admin: ...

    def close(self) -> None: ...
