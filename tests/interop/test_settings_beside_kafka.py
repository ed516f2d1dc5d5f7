"""Values that Apache Kafka refuses for settings of brokers or topics are refused here, with named exceptions.

This library also refuses values that Kafka accepts: of settings that have no effect here, with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

from logstore.broker.configs import Live, describe_broker, describe_topic
from logstore.broker.properties import WITHOUT_EFFECT, split_properties
from logstore.broker.settings import read_settings
from logstore.config import LogConfig, kafka_name
from logstore.errors import InvalidConfig
from tests.judge.java_process import JavaProcess, while_tested

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

RELEASE: Final = "3.9.1"
VALUES: Final = (
    *(
        "",
        "0",
        "1",
        "-1",
        "-2",
        "5",
        "01",
        " 1",
        "1 ",
        "\t5\n",
        "13",
        "14",
        "1048576",
        "1_000",
        "1,000",
        "1L",
    ),
    *("2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "--1", "-"),
    *(
        "1.0",
        "1e3",
        "0.5",
        "0.5 ",
        ".5",
        "5.",
        "0x10",
        "Infinity",
        "-Infinity",
        "1.1",
        "-0.1",
        "0.0",
        "1e400",
    ),
    *("true", "True", " TRUE ", "false", "yes", "on", "null", "None", "*", "0:1", "0:1,1:2", "1:2,", "a:b"),
    *("delete", "compact", "compact,delete", "delete, compact", " delete ,compact ", "compact,", "DELETE"),
    *("none", "producer", "gzip", "GZIP", "lz4", "snappy", "zstd", "zstd ", "uncompressed"),
    *("CreateTime", "createtime", "LogAppendTime"),
    *("2.3", "3.9", "3.9-IV0", "0.10.2", "0.10", "2.9", "2.0.1", "4.0"),
)
OF_TOPICS: Final = {
    "retain.for.cursors": "not a setting of Kafka",
}
OF_BROKERS: Final = {
    "listeners": "the protocol may be left out",
    "advertised.listeners": "the protocol may be left out",
    "broker.id": "checked by `serve`",
    "node.id": "checked by `serve`",
    "log.dir": "checked by `serve`",
    "log.dirs": "checked by `serve`",
    "listener.security.protocol.map": "without effect if there are no listeners",
    "log.cleaner.dedupe.buffer.size": "1 MB is enough for one cleaner",
    "log.cleaner.threads": "without effect",
    "log.retention.hours": "64 bits",
    "log.retention.minutes": "64 bits",
    "log.roll.hours": "64 bits",
    "log.roll.jitter.hours": "64 bits",
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[JavaProcess]:
    yield from while_tested(Path(__file__).parent / "java" / "Settings.java", release=RELEASE)


def accepted(read: Callable[[dict[str, str]], object], name: str) -> set[str]:
    found = set()
    for value in VALUES:
        try:
            read({name: value})
        except InvalidConfig:
            continue
        found.add(value)
    return found


def looser(kafka: JavaProcess, names: Iterable[str], read: Callable[[dict[str, str]], object]) -> set[str]:
    """Return the settings that take a value here which Kafka refuses."""
    found = {}
    for name in names:
        asked = {"is_topic": read == LogConfig.from_kafka, "name": name, "values": VALUES}
        theirs = {
            value
            for value, is_accepted in zip(VALUES, kafka.ask(asked)["answers"], strict=True)
            if is_accepted
        }
        found[name] = accepted(read, name) - theirs
    print({name: sorted(values) for name, values in found.items() if values})
    return {name for name, values in found.items() if values}


def types_of(kafka: JavaProcess, *, is_topic: bool) -> dict[str, str]:
    return dict(kafka.ask({"is_topic": is_topic})["answers"])


def read_broker(properties: dict[str, str]) -> object:
    return read_settings(split_properties(properties)[1], node_id=1, host="localhost", port=9092)


def test_topics(kafka: JavaProcess) -> None:
    names = [kafka_name(each.name) for each in fields(LogConfig)]
    assert looser(kafka, names, LogConfig.from_kafka) == OF_TOPICS.keys()


def test_brokers(kafka: JavaProcess) -> None:
    names = types_of(kafka, is_topic=False).keys()
    assert len(names) > 300
    assert looser(kafka, sorted(names - WITHOUT_EFFECT), read_broker) == OF_BROKERS.keys()


@pytest.mark.parametrize("is_topic", [False, True], ids=["broker", "topic"])
def test_the_types_that_clients_are_told(kafka: JavaProcess, is_topic: bool) -> None:
    unchanged, settings = Live({}, {}), read_settings({}, node_id=1, host="localhost", port=9092)
    entries = describe_topic({}, unchanged, settings) if is_topic else describe_broker(unchanged, settings)
    theirs = types_of(kafka, is_topic=is_topic)
    both = {each.name: each.kind.name for each in entries if each.name in theirs}
    assert len(both) > 30
    assert both == {name: theirs[name] for name in both}
