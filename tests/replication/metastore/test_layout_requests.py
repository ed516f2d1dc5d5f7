"""Requests and notifications in the store, as Kafka writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata

A, B = TopicPartition("a", 0), TopicPartition("b", 3)


def test_a_list_of_partitions() -> None:
    """Of `/admin/preferred_replica_election` and `/isr_change_notification/isr_change_N`."""
    data = b'{"version":1,"partitions":[{"topic":"b","partition":3},{"topic":"a","partition":0}]}'
    assert layout.encode_partitions([B, A]) == data
    assert layout.parse_partitions(data) == (B, A)
    twice = b'{"partitions":[{"topic":"a","partition":"0"},{"partition":0,"topic":"a","more":1}]}'
    assert layout.parse_partitions(twice) == (A,)


def test_a_reassignment() -> None:
    data = (
        b'{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[1,2]},'
        b'{"topic":"b","partition":3,"replicas":[]}]}'
    )
    assert layout.encode_reassignment({B: (), A: (1, 2)}) == data
    assert layout.parse_reassignment(data) == {A: (1, 2), B: ()}


def test_topics_to_delete() -> None:
    """One node a topic, without data; a list in the node above them was an older design."""
    assert layout.parse_delete_topics(b'{"version":1,"topics":["a","b","a"]}') == ("a", "b")


@pytest.mark.parametrize(
    ("data", "topic"),
    [
        (layout.encode_config_change("t"), "t"),
        (b'{"version":2,"entity_path":"topics/t"}', "t"),
        (b'{"version":2,"entity_path":"users/u"}', None),
        (b'{"version":2,"entity_path":"users/u/clients/topics"}', None),
        (b'{"version":1,"entity_type":"topics","entity_name":"t"}', "t"),
        (b'{"version":1,"entity_type":"clients","entity_name":"t"}', None),
        (b'"t"', "t"),
        (b"t", "t"),
        (b"", None),
    ],
)
def test_a_change_of_settings(data: bytes, topic: str | None) -> None:
    assert layout.parse_config_change(data) == topic


def test_a_failed_log_dir() -> None:
    assert layout.encode_log_dir_event(3) == b'{"version":1,"broker":3,"event":1}'
    assert layout.parse_log_dir_event(layout.encode_log_dir_event(3)) == 3


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (layout.parse_partitions, b'{"partitions":[{"partition":0}]}'),
        (layout.parse_partitions, b'{"partitions":[{"topic":"a"}]}'),
        (layout.parse_partitions, b'{"partitions":{}}'),
        (layout.parse_reassignment, b'{"partitions":[{"topic":"a","partition":0,"replicas":1}]}'),
        (layout.parse_reassignment, b'{"partitions":[7]}'),
        (layout.parse_reassignment, b"["),
        (layout.parse_delete_topics, b'{"topics":[1]}'),
        (layout.parse_delete_topics, b""),
        (layout.parse_config_change, b"{"),
        (layout.parse_config_change, b'{"version":2}'),
        (layout.parse_log_dir_event, b'{"event":1}'),
        (layout.parse_broker_defaults, b'{"config":{"a":1}}'),
    ],
)
def test_nonsense_is_refused(parse: Callable[[bytes], object], data: bytes) -> None:
    """An unreadable request raises CorruptMetadata; the controller decides what follows."""
    with pytest.raises(CorruptMetadata):
        parse(data)


def test_every_path_is_in_the_docs() -> None:
    page = (Path(__file__).parents[3] / "docs/metadata-store.md").read_text()
    assert layout.__doc__ is not None
    paths = re.findall(r"^    (/\S+)", layout.__doc__, re.MULTILINE)
    assert len(paths) > 10
    assert [path for path in paths if f"| `{path}` |" not in page] == []
