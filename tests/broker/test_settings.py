"""A broker's properties reach whoever takes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from logstore.broker.configs import Live, Source, describe_broker, describe_topic
from logstore.broker.settings import Settings, read_settings
from logstore.errors import InvalidConfig
from logstore.replication.durability import Durability


def read(**settings: str) -> Settings:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return read_settings(named, node_id=3, host="h", port=9)


def test_each_setting_goes_to_those_who_take_it() -> None:
    found = read(
        zookeeper_session_timeout_ms="6000",
        unclean_leader_election_enable="TRUE",
        connections_max_idle_ms="101",
        min_insync_replicas="2",
        request_timeout_ms="7000",
        replica_lag_max_messages="-1",
        durability="synced",
    )
    assert (found.node.node_id, found.node.host, found.node.port) == (3, "h", 9)
    assert found.node.zookeeper_session_timeout_ms == 6000
    assert found.node.controller.unclean_leader_election_enable is True
    assert found.node.durability is Durability.SYNCED
    assert found.limits.connections_max_idle_ms == 101
    assert found.logs.topic_defaults.min_insync_replicas == 2
    assert (
        found.node.request_timeout_ms,
        found.node.controller.request_timeout_ms,
        found.limits.request_timeout_ms,
    ) == (7000, 7000, 7000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no.such.setting", "1"),
        ("port", "1"),
        ("node.id", "1"),
        ("request.timeout.ms", "soon"),
        ("request.timeout.ms", "٣"),
        ("unclean.leader.election.enable", "yes"),
        ("durability", "hoped"),
        ("replica.fetch.wait.max.ms", "40000"),
    ],
)
def test_what_nobody_takes_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig):
        read_settings({name: value}, node_id=3, host="h", port=9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num.partitions", 2**31),
        ("zookeeper.session.timeout.ms", 2**31),
        ("request.timeout.ms", 2**31),
        ("replica.fetch.max.bytes", 2**31),
        ("replica.lag.time.max.ms", 2**63),
        ("max.incremental.fetch.session.cache.slots", -1),
        ("socket.request.max.bytes", 0),
        ("fetch.max.bytes", 1023),
        ("max.connections", -1),
        ("max.connections.per.ip", 0),
        ("connections.max.idle.ms", 100),
        ("connection.failed.authentication.delay.ms", -1),
        ("quota.window.num", 0),
        ("controller.quota.window.size.seconds", 0),
        ("log.scrub.max.busy.percent", 101),
        ("log.scrub.io.max.bytes.per.second", 0),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(InvalidConfig, match=rf"^{re.escape(name)} is {value}"):
        read_settings({name: value}, node_id=3, host="h", port=9)


@pytest.mark.parametrize(
    ("name", "value"),
    [("replica.lag.time.max.ms", 2**63 - 1), ("connections.max.idle.ms", -1), ("max.connections", 0)],
)
def test_a_number_that_kafka_accepts_is_accepted(name: str, value: int) -> None:
    read_settings({name: value}, node_id=3, host="h", port=9)


def test_protocols_of_listeners_that_are_not_there_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"^security\.inter\.broker\.protocol has no effect without"):
        read_settings({"security.inter.broker.protocol": "SSL"}, node_id=3, host="h", port=9)
    read_settings({"security.inter.broker.protocol": "PLAINTEXT"}, node_id=3, host="h", port=9)


def test_1_20_every_setting_is_taken_under_kafkas_name() -> None:
    """1.20: another value than the default changes something, the default nothing."""
    defaults = {
        "replica.lag.time.max.ms": ("30000", "20000"),
        "replica.lag.max.messages": ("-1", "4000"),
        "replica.fetch.wait.max.ms": ("500", "100"),
        "replica.fetch.min.bytes": ("1", "2"),
        "replica.fetch.max.bytes": ("1048576", "2048"),
        "replica.fetch.response.max.bytes": ("10485760", "4096"),
        "replica.fetch.backoff.ms": ("1000", "10"),
        "num.replica.fetchers": ("1", "4"),
        "replica.high.watermark.checkpoint.interval.ms": ("5000", "1000"),
        "min.insync.replicas": ("1", "2"),
        "default.replication.factor": ("1", "3"),
        "unclean.leader.election.enable": ("false", "true"),
        "delete.topic.enable": ("true", "false"),
        "auto.leader.rebalance.enable": ("true", "false"),
        "leader.imbalance.check.interval.seconds": ("300", "30"),
        "leader.imbalance.per.broker.percentage": ("10", "20"),
        "controlled.shutdown.enable": ("true", "false"),
        "controlled.shutdown.max.retries": ("3", "5"),
        "controlled.shutdown.retry.backoff.ms": ("5000", "50"),
        "fetch.purgatory.purge.interval.requests": ("1000", "10"),
        "producer.purgatory.purge.interval.requests": ("1000", "10"),
        "request.timeout.ms": ("30000", "10000"),
        "group.min.session.timeout.ms": ("6000", "5000"),
        "group.max.session.timeout.ms": ("1800000", "300000"),
        "group.initial.rebalance.delay.ms": ("3000", "0"),
        "group.max.size": ("2147483647", "100"),
        "offset.metadata.max.bytes": ("4096", "100"),
        "offsets.commit.timeout.ms": ("5000", "1000"),
        "offsets.retention.minutes": ("10080", "1440"),
        "offsets.retention.check.interval.ms": ("600000", "1000"),
        "offsets.load.buffer.size": ("5242880", "1024"),
        "offsets.topic.num.partitions": ("50", "5"),
        "offsets.topic.replication.factor": ("3", "1"),
        "offsets.topic.segment.bytes": ("104857600", "1048576"),
        "offsets.topic.compression.codec": ("0", "1"),
    }
    plain = read_settings({}, node_id=3, host="h", port=9)
    for name, (default, other) in defaults.items():
        assert read_settings({name: default}, node_id=3, host="h", port=9) == plain, name
        given = read_settings({name: other}, node_id=3, host="h", port=9)
        assert given != plain, name
        if name != "min.insync.replicas":  # a topic's default: the only one here that logs take
            assert given.logs == plain.logs, f"{name} ends where nobody looks"


@pytest.mark.parametrize(
    "name",
    [
        "replica.socket.timeout.ms",
        "controller.socket.timeout.ms",
        "num.network.threads",
        "num.io.threads",
        "queued.max.requests",
    ],
)
def test_1_20_what_has_no_meaning_here_is_refused(name: str) -> None:
    """A broker's file, and a program's settings, are judged before: they are accepted without effect there.

    docs/differences.md says what there is instead.
    """
    assert f"`{name}`" in (Path(__file__).parents[2] / "docs/differences.md").read_text()
    with pytest.raises(InvalidConfig, match=name):
        read_settings({name: "3"}, node_id=3, host="h", port=9)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("replica.lag.time.max", "replica.lag.time.max.ms"),
        ("num.partition", "num.partitions"),
        ("group.max.sizes", "group.max.size"),
        ("max.conections", "max.connections"),
        ("auto.create.topic.enable", "auto.create.topics.enable"),
        ("super.user", "super.users"),
        ("log.retention.mss", "log.retention.ms"),
        ("retention.ms", "log.retention.ms"),
    ],
)
def test_an_unknown_name_gets_a_suggestion_whatever_part_it_is_of(name: str, meant: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"{name} \(did you mean {meant}\?\)"):
        read_settings({name: "3"}, node_id=3, host="h", port=9)


def test_an_unknown_name_of_tls_gets_a_suggestion() -> None:
    with pytest.raises(InvalidConfig, match=r"did you mean ssl\.keystore\.location\?"):
        read_settings({"listeners": "SSL://h:1", "ssl.keystore.locatin": "x"}, node_id=3, host="h", port=9)


def test_clients_are_told_how_a_broker_is_reached() -> None:
    given = {
        "listeners": "INTERNAL://127.0.0.1:9092,CLIENTS://[::1]:9093",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": 'x.PlainLoginModule required user_ann="hush";',
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:eve;User:ann",
    }
    settings = read_settings(given, node_id=3, host="h", port=9)
    entries = {each.name: each for each in describe_broker(Live({}, {}), settings, ("/a", "/b"))}
    assert entries["listeners"].value == given["listeners"] == entries["advertised.listeners"].value
    for name in ("listener.security.protocol.map", "inter.broker.listener.name"):
        assert entries[name].value == given[name]
    assert entries["super.users"].value == "User:ann;User:eve"
    assert entries["allow.everyone.if.no.acl.found"].value == "false"
    assert (entries["log.dirs"].value, entries["log.dirs"].source) == ("/a,/b", Source.STATIC)
    assert "hush" not in str(entries)
    plain = {each.name: each.value for each in describe_broker(Live({}, {}), read())}
    assert plain["advertised.listeners"] == "PLAINTEXT://h:9"
    assert "super.users" not in plain


def test_clients_are_told_what_each_setting_means() -> None:
    unchanged, settings = Live({}, {}), read()
    entries = [*describe_broker(unchanged, settings), *describe_topic({}, unchanged, settings)]
    assert [each.name for each in entries if not each.documentation.endswith(".")] == []
