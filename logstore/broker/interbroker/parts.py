"""What the messages of nodes have in common: partitions by topic, ids of topics, numbers of errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from logstore.broker.errors import MalformedMessage
from logstore.disk.errors import ErrorCode, InvalidTopic
from logstore.disk.ids import ID_BYTES, id_from_text, id_to_text
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.replication.durability import Durability

V = TypeVar("V")

NO_ID = bytes(ID_BYTES)
_LEVELS = (Durability.REPLICATED, Durability.SYNCED)


def by_topic(partitions: Iterable[tuple[TopicPartition, V]]) -> dict[str, list[tuple[int, V]]]:
    """The partitions of each topic, as most messages list them. Topics are in order of their first."""
    topics: dict[str, list[tuple[int, V]]] = {}
    for (topic, partition), value in partitions:
        topics.setdefault(topic, []).append((partition, value))
    return topics


class Partitions(dict[TopicPartition, V]):
    """Partitions of a message that was received: with names that may become directories', and no name twice.

    Raises `MalformedMessage` for any other.
    """

    def put(self, topic: str, partition: int, value: V) -> None:
        name = checked(topic, partition)
        if name in self:
            raise MalformedMessage(f"{name} is there twice")
        self[name] = value


def checked(topic: str, partition: int) -> TopicPartition:
    """The partition of that name; raises `MalformedMessage` for one that nobody can have."""
    check_name(topic)
    if partition < 0:
        raise MalformedMessage(f"{partition} is no number of a partition")
    return TopicPartition(topic, partition)


def check_name(topic: str) -> None:
    """Raise `MalformedMessage` unless `topic` is a topic's name."""
    try:
        check_topic_name(topic)
    except InvalidTopic as error:
        raise MalformedMessage(str(error)) from error


def id_to_wire(topic_id: str) -> bytes:
    """Sixteen bytes of an id in text, zeros for none. Raises `MalformedMessage` for a text that is no id."""
    if not topic_id:
        return NO_ID
    try:
        return id_from_text(topic_id)
    except ValueError as error:
        raise MalformedMessage(str(error)) from error


def id_from_wire(topic_id: bytes) -> str:
    """The text of an id; empty for none."""
    return "" if topic_id == NO_ID else id_to_text(topic_id)


def error_of(code: int) -> ErrorCode:
    """The error with this number; one that we do not know is an unknown error, as for Kafka's clients."""
    return _ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


_ERRORS: Mapping[int, ErrorCode] = {each.value: each for each in ErrorCode}


def level_to_wire(durability: Durability | None) -> int:
    """The durability level that an answer tells; -1 for none."""
    return -1 if durability is None else _LEVELS.index(durability)


def level_from_wire(number: int) -> Durability | None:
    """None for a level that is not known here, too."""
    return _LEVELS[number] if number in range(len(_LEVELS)) else None
