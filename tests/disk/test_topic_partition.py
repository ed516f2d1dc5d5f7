"""Names of topics and of their directories."""

from __future__ import annotations

import pytest

from logstore.disk.errors import InvalidTopic
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import (
    TopicPartition,
    check_topic_name,
    parse_directory_name,
    partition_directories,
    set_aside_fate,
)


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "x" * 249, "...", "a-0", "__consumer_offsets"])
def test_names_that_kafka_accepts(topic: str) -> None:
    check_topic_name(topic)


@pytest.mark.parametrize(
    "topic", ["", ".", "..", "x" * 250, "a/b", "a b", "a\n", "a\0", "\u00e9", "\u0661", "a:b", "a*"]
)
def test_names_that_kafka_refuses(topic: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic_name(topic)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ("orders", 0)),
        ("my-topic-11", ("my-topic", 11)),
        ("a--1", ("a-", 1)),
        ("t-2147483647", ("t", 2**31 - 1)),
    ],
)
def test_the_last_hyphen_separates(name: str, expected: tuple[str, int]) -> None:
    assert parse_directory_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "orders", "-0", "orders-", "orders-x", "orders-+1", "orders-\u0661", "orders-0 ", "orders-0\n",
        "..-0", "orders-2147483648", "orders-99999999999", "x" * 250 + "-0",
        "orders-0.0123456789abcdef0123456789abcdef-delete",
    ],
)  # fmt: skip
def test_other_directory_names_are_not_partitions(name: str) -> None:
    with pytest.raises(InvalidTopic):
        parse_directory_name(name)


def test_row_189_names_of_directories() -> None:
    """What is a partition, what is one on its way out, and what is nothing that we may touch."""
    unique = "0123456789abcdef" * 2
    assert parse_directory_name("test_topic-143") == ("test_topic", 143)
    assert set_aside_fate(f"foo.bar-testtopic-42.{unique}-delete") == "delete"
    for name in (
        "", "topic", "topic-", "-1", "-", "topic-x", "topic-1x", "non_kafka_dir", "non_kafka_dir-delete",
        f"topic.{unique}-delete", f"-1.{unique}-delete", f"topic-.{unique}-delete",
    ):  # fmt: skip
        assert set_aside_fate(name) is None, name
        with pytest.raises(InvalidTopic):
            parse_directory_name(name)


@pytest.mark.parametrize("fate", ["delete", "stray", "future"])
def test_directories_set_aside(fate: str) -> None:
    assert set_aside_fate(f"orders-0.{'0a' * 16}-{fate}") == fate


@pytest.mark.parametrize(
    "name", ["orders-0", "orders-0-delete", f"orders-0.{'0A' * 16}-delete", f"orders-0.{'0a' * 15}-delete"]
)
def test_directories_not_set_aside(name: str) -> None:
    assert set_aside_fate(name) is None


def test_order_and_name() -> None:
    assert sorted([TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]) == [
        ("a", 9), ("a", 10), ("b", 0),
    ]  # fmt: skip
    assert (
        str(TopicPartition("my-topic", 11)) == TopicPartition("my-topic", 11).directory_name == "my-topic-11"
    )


def test_partitions_of_a_log_dir_and_a_partition_itself() -> None:
    """What was set aside, what has another name and what is no directory are passed over."""
    disk = MemoryDisk()
    for name in ("orders-0", "my-topic-11", f"orders-1.{'0' * 32}-delete", "lost+found"):
        disk.make_dir(f"/data/{name}")
    disk.open("/data/stray-7", create=True, write=True).close()
    disk.open("/data/orders-0/00000000000000000000.log", create=True, write=True).close()
    orders, other = TopicPartition("orders", 0), TopicPartition("my-topic", 11)
    found = dict(partition_directories(disk, "/data"))
    assert found == {orders: "/data/orders-0", other: "/data/my-topic-11"}
    assert list(partition_directories(disk, "/data/orders-0/")) == [(orders, "/data/orders-0")]
