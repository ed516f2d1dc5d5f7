"""A Kafka broker's properties file, as it may lie about."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.broker import AsyncBroker, BrokerConfig
from logstore.broker.properties import WITHOUT_EFFECT, parse_log_dirs, settings_in_program, split_properties
from logstore.broker.security.config import NOT_BUILT, split_security
from logstore.broker.settings import read_settings
from logstore.checkpoint.identity import parse_properties
from logstore.errors import InvalidConfig

FILE = b"""
# The broker of long ago
broker.id=3
listeners=PLAINTEXT://127.0.0.1:9093
advertised.listeners = PLAINTEXT://host.example:19093
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/var/a,/var/b
num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
zookeeper.connect=one:2181,two:2181/kafka
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""


def test_the_file_that_comes_with_kafka_is_read() -> None:
    said, rest = split_properties(parse_properties(FILE, path="server.properties"))
    assert said == {
        "node.id": "3",
        "listen": "127.0.0.1:9093",
        "advertise": "host.example:19093",
        "log.dirs": "/var/a,/var/b",
        "metadata": "zookeeper://one:2181,two:2181/kafka",
    }
    settings = read_settings(rest, node_id=3, host="127.0.0.1", port=9093)
    assert settings.node.controller.num_partitions == 4
    assert settings.logs.topic_defaults.retention_ms == 168 * 3_600_000
    assert settings.groups.group_initial_rebalance_delay_ms == 0


@pytest.mark.parametrize(
    ("properties", "listen"),
    [
        ({"port": "9092"}, "127.0.0.1:9092"),
        ({"port": "9092", "host.name": "h"}, "h:9092"),
        ({"listeners": "PLAINTEXT://:9092"}, "0.0.0.0:9092"),
        ({"listeners": "localhost:9092"}, "localhost:9092"),
        ({"listeners": "PLAINTEXT://[::1]:9092"}, "[::1]:9092"),
    ],
)
def test_where_it_listens_is_said_in_several_ways(properties: dict[str, str], listen: str) -> None:
    assert split_properties(properties) == ({"listen": listen}, {})


def test_other_listeners_stay_among_the_settings() -> None:
    named = {"listeners": "SSL://h:1", "advertised.listeners": "SSL://g:1", "ssl.client.auth": "none"}
    assert split_properties(named) == ({"listen": "h:1"}, named)
    named = {"listeners": "PLAINTEXT://h:1", "inter.broker.listener.name": "PLAINTEXT"}
    assert split_properties(named) == ({"listen": "h:1"}, named)
    assert split_properties({"port": "1", "advertised.listeners": "PLAINTEXT://h:2"}) == (
        {"listen": "127.0.0.1:1", "advertise": "h:2"},
        {},
    )


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"process.roles": "broker"}, "KRaft is not supported"),
        ({"sasl.kerberos.service.name": "kafka"}, "GSSAPI is not supported"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "names PLAINTEXT twice"),
        ({"advertised.listeners": "nonsense"}, "NAME://host:port"),
    ],
)
def test_what_cannot_be_is_refused(properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        split_properties(properties)


def test_what_has_no_effect_is_no_setting_of_ours() -> None:
    """Or it would be dropped in silence."""
    for name in sorted(WITHOUT_EFFECT):
        with pytest.raises(InvalidConfig):
            read_settings({name: "1"}, node_id=1, host="h", port=1)


@pytest.mark.parametrize("name", ["replica.socket.timeout.ms", "controller.socket.timeout.ms"])
def test_what_is_accepted_without_effect(name: str) -> None:
    """`request.timeout.ms` applies in their place, in a file and in a program."""
    assert split_properties({name: "3"}) == ({}, {})
    assert settings_in_program({name: 3}) == {}


def test_contradictory_ids_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"node\.id and broker\.id differ"):
        split_properties({"node.id": "1", "broker.id": "2"})
    assert split_properties({"node.id": "1", "broker.id": "1"}) == ({"node.id": "1"}, {})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "log.dirs is empty"),
        (" , ", "log.dirs is empty"),
        ("e,e", "e and e are the same directory"),
        ("e,./e/", "e and ./e/ are the same directory"),
        ("f,f/g", "f/g lies in f"),
        ("/a/b/c,/x,/a", "/a/b/c lies in /a"),
        ("/,/a", "/a lies in /"),
    ],
)
def test_log_dirs_that_cannot_be(text: str, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        parse_log_dirs(text)


def test_log_dirs_that_links_make_one(tmp_path: Path) -> None:
    """One was locked by the other, or its files were strangers there."""
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with pytest.raises(InvalidConfig, match="are the same directory"):
        parse_log_dirs(f"{tmp_path}/data,{tmp_path}/link")
    with pytest.raises(InvalidConfig, match="link/inner lies in"):
        parse_log_dirs(f"{tmp_path}/link/inner,{tmp_path}/data")


def test_log_dirs_beside_each_other() -> None:
    assert parse_log_dirs("data, data2,/data/1,data.more/") == ("data", "data2", "/data/1", "data.more/")


EVERY = parse_properties((Path(__file__).parent / "kafka-3.9.1.properties").read_bytes(), path="every")
"""Every setting of a broker of Kafka."""


def test_no_setting_of_kafka_is_unknown() -> None:
    """It has an effect, is accepted without one, or is refused with the reason."""
    unknown = []
    for name, default in EVERY.items():
        try:
            _, rest = split_properties({name: default or "x"})
            read_settings(rest, node_id=1, host="host", port=1)
        except InvalidConfig as error:
            unknown += [name] if "unknown settings" in str(error) else []
    assert (len(EVERY), unknown) == (314, [])


def test_no_setting_of_kafka_is_unknown_in_a_program() -> None:
    """It is judged as in a file. `num.network.threads` was an unknown setting."""
    unknown = []
    for name, default in EVERY.items():
        try:
            AsyncBroker(BrokerConfig(settings={name: default or "x"}))
        except InvalidConfig as error:
            unknown += [name] if "unknown settings" in str(error) else []
    assert unknown == []
    given: dict[str, str | int] = {"num.network.threads": 8, "metric.reporters": "x", "num.partitions": 3}
    assert settings_in_program(given) == {"num.partitions": "3"}
    with pytest.raises(InvalidConfig, match=r"KRaft is not supported; .* metadata of BrokerConfig"):
        AsyncBroker(BrokerConfig(settings={"process.roles": "broker"}))
    with pytest.raises(InvalidConfig, match="only Kafka's default false is supported"):
        AsyncBroker(BrokerConfig(settings={"remote.log.storage.system.enable": True}))
    with pytest.raises(InvalidConfig, match=r"num\.partitions is a list"):
        AsyncBroker(BrokerConfig(settings={"num.partitions": []}))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("log.dirs", r'log_dirs=\("data",\) of BrokerConfig'),
        ("log.dir", r'log_dirs=\("data",\) of BrokerConfig'),
        ("node.id", "give node_id of"),
        ("broker.id", "give node_id of"),
        ("zookeeper.connect", 'metadata="zookeeper://host:port"'),
    ],
)
def test_what_has_a_parameter_is_no_setting_in_a_program(name: str, said: str) -> None:
    """`log.dirs` was ignored: the logs were in memory, and lost."""
    with pytest.raises(InvalidConfig, match=f"{name} has no effect in settings; .*{said}"):
        AsyncBroker(BrokerConfig(settings={name: "1"}))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("remote.log.storage.system.enable", "true", "only Kafka's default false is supported"),
        ("queued.max.request.bytes", "1000", "only Kafka's default -1 is supported"),
        ("create.topic.policy.class.name", "org.example.Policy", "policies are Java classes"),
        ("controller.quorum.bootstrap.servers", "one:9093", "KRaft is not supported"),
    ],
)
def test_what_would_turn_on_a_part_that_does_not_exist_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        split_properties({name: value})


def test_kafkas_default_of_a_part_that_does_not_exist_is_accepted() -> None:
    names = (
        "remote.log.storage.system.enable",
        "queued.max.request.bytes",
        "eligible.leader.replicas.enable",
        "process.roles",
    )
    assert split_properties({name: EVERY[name] for name in names}) == ({}, {})


def test_kafkas_default_of_what_is_not_built_is_accepted() -> None:
    """A file may state it: `principal.builder.class` of Kafka's default builder was refused."""
    given = {name: value for name, value in EVERY.items() if value and name.startswith(tuple(NOT_BUILT))}
    assert len(given) > 15
    assert split_security(given) == ({}, {})
    for name in given:
        with pytest.raises(InvalidConfig, match=name):
            split_security({name: "another"})


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("", "none"),
        ("org.apache.kafka.common.replica.RackAwareReplicaSelector", "rack-aware"),
        ("rack-aware", "rack-aware"),
    ],
)
def test_kafkas_class_that_selects_replicas_by_rack_is_known(value: str, word: str) -> None:
    assert split_properties({"replica.selector.class": value})[1] == {"replica.selector.class": word}
