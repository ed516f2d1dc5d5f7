"""Nodes written by Kafka are read, ours have one text, and unreadable ones raise an error."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from logstore.disk.topic_partition import TopicPartition
from logstore.replication.metastore import layout
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.layout import (
    UNKNOWN_BROKER_EPOCH,
    BrokerRegistration,
    Eligible,
    LeaderAndIsr,
    TopicAssignment,
)


def test_paths() -> None:
    assert layout.broker_path(7) == "/brokers/ids/7"
    assert layout.topic_path("t") == "/brokers/topics/t"
    assert layout.topic_config_path("t") == "/config/topics/t"
    path = layout.partition_state_path(TopicPartition("t", 3))
    assert path == "/brokers/topics/t/partitions/3/state"


def test_written_text_is_canonical_and_read_back() -> None:
    broker = BrokerRegistration("h", 9092, timestamp_ms=5, clean=True)
    assert layout.encode_broker(broker) == (
        b'{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"5","clean":true}'
    )
    assert layout.parse_broker(layout.encode_broker(broker)) == broker
    keeps = BrokerRegistration("h", 9092, keeps_topics=True)
    assert layout.parse_broker(layout.encode_broker(keeps)) == keeps
    damaged = BrokerRegistration("h", 9092, damaged=(TopicPartition("t", 3),))
    assert json.loads(layout.encode_broker(damaged))["damaged"] == [{"topic": "t", "partition": 3}]
    assert layout.parse_broker(layout.encode_broker(damaged)) == damaged
    topic = TopicAssignment("id", {10: (1,), 2: (2, 1)})
    assert layout.encode_topic(topic) == (
        b'{"version":3,"topic_id":"id","partitions":{"2":[2,1],"10":[1]},'
        b'"adding_replicas":{},"removing_replicas":{}}'
    )
    assert layout.parse_topic(layout.encode_topic(topic)) == topic
    state = LeaderAndIsr(1, 4, (1, 2), 3, (70, 80))
    assert layout.encode_state(state) == (
        b'{"controller_epoch":3,"leader":1,"version":1,"leader_epoch":4,"isr":[1,2],"isr_broker_epochs":[70,80]}'
    )
    assert layout.parse_state(layout.encode_state(state)) == state
    unclean = LeaderAndIsr(1, 4, (1,), 3, (70,), recovering=True)
    assert json.loads(layout.encode_state(unclean))["leader_recovery_state"] == 1
    assert layout.parse_state(layout.encode_state(unclean)) == unclean
    assert layout.encode_controller(2, 5) == b'{"version":1,"brokerid":2,"timestamp":"5"}'
    assert layout.parse_controller(layout.encode_controller(2, 5)) == 2
    assert layout.parse_controller_epoch(layout.encode_controller_epoch(12)) == 12
    config = {"retention.ms": "1", "cleanup.policy": "delete"}
    assert layout.encode_topic_config(config) == (
        b'{"version":1,"config":{"cleanup.policy":"delete","retention.ms":"1"}}'
    )
    assert layout.parse_topic_config(layout.encode_topic_config(config)) == config


def test_what_kafka_wrote_over_the_years() -> None:
    v1 = layout.parse_broker(
        b'{"jmx_port":-1,"timestamp":"1700000000000","host":"h","version":1,"port":9092}'
    )
    assert (v1.host, v1.port, v1.clean) == ("h", 9092, False), "what cannot be told is not clean"
    v5 = (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://h:9092"],"jmx_port":-1,"port":9092,"host":"h","version":5,"timestamp":"1"}'
    )
    assert layout.parse_broker(v5).host == "h"
    strimzi = v5.replace(b'{"PLAINTEXT":', b'{"PLAIN-9092":').replace(b"PLAINTEXT://h", b"PLAIN-9092://h")
    assert [each.listener for each in layout.parse_broker(strimzi).endpoints] == ["PLAIN-9092"]
    assert layout.parse_topic(b'{"version":1,"partitions":{"1":[3],"0":[1,2]}}') == TopicAssignment(
        "", {0: (1, 2), 1: (3,)}
    )
    state = layout.parse_state(b'{"controller_epoch":1,"leader":-1,"version":1,"leader_epoch":0,"isr":[2,1]}')
    assert state == LeaderAndIsr(-1, 0, (2, 1), 1, (UNKNOWN_BROKER_EPOCH,) * 2)
    assert layout.parse_controller(b'{"version":1,"brokerid":"4"}') == 4, "a number as text is a number"
    assert layout.parse_controller_epoch(b"7\n") == 7


def test_isr_that_kafka_rewrote_has_unknown_incarnations() -> None:
    """A writer that does not know our field leaves it behind with the wrong members."""
    data = (
        b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1],"isr_broker_epochs":[5,6]}'
    )
    assert layout.parse_state(data).isr_broker_epochs == (UNKNOWN_BROKER_EPOCH,)


def test_whom_a_state_node_remembers() -> None:
    """Eligible replicas are beside Kafka's fields, and void after a writer that does not know them."""
    state = LeaderAndIsr(1, 4, (1,), 3, (70,), min_insync=2, eligible=(Eligible(2, 80), Eligible(3, 90)))
    data = layout.encode_state(state)
    assert data.endswith(
        b'"isr_broker_epochs":[70],"min_insync":2,"eligible":[2,3],"eligible_broker_epochs":[80,90]}'
    )
    assert layout.parse_state(data) == state
    for before, after in (
        (b'"isr":[1]', b'"isr":[1,2]'),
        (b'"eligible":[2,3]', b'"eligible":[1,3]'),
        (b'"eligible_broker_epochs":[80,90]', b'"eligible_broker_epochs":[80]'),
        (b'"min_insync":2', b'"min_insync":1'),
    ):
        assert layout.parse_state(data.replace(before, after)).eligible == ()


@pytest.mark.parametrize(
    "garbage", [b"", b"null", b"[]", b"{", b"\xff", b'{"brokerid":true}', b'{"brokerid":"x"}']
)
def test_garbage_in_the_controller_node_is_nobody(garbage: bytes) -> None:
    assert layout.parse_controller(garbage) is None


_STATE = '{"controller_epoch":1,"leader":1,"leader_epoch":0,"isr":%s}'


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (layout.parse_broker, b'{"port":1}'),
        (layout.parse_broker, b'{"host":"h","port":"x"}'),
        (layout.parse_broker, b'{"host":"h","port":1,"clean":"yes"}'),
        (layout.parse_topic, b"{}"),
        (layout.parse_topic, b'{"partitions":[]}'),
        (layout.parse_topic, b'{"partitions":{"0":[]}}'),
        (layout.parse_topic, b'{"partitions":{"0":[1,1]}}'),
        (layout.parse_topic, b'{"partitions":{"-1":[1]}}'),
        (layout.parse_topic, '{"partitions":{"٣":[1]}}'.encode()),
        (layout.parse_topic, b'{"partitions":{"0":[-5]}}'),
        (layout.parse_state, (_STATE % "[]").encode()),
        (layout.parse_state, (_STATE % "[1,1]").encode()),
        (layout.parse_state, (_STATE % "[1.5]").encode()),
        (layout.parse_state, (_STATE % "null").encode()),
        (layout.parse_state, b'{"controller_epoch":1,"leader":-2,"leader_epoch":0,"isr":[1]}'),
        (layout.parse_state, b"[" * 100_000),
        (layout.parse_controller_epoch, b""),
        (layout.parse_controller_epoch, b"-1"),
        (layout.parse_controller_epoch, b"1e3"),
        (layout.parse_topic_config, b'{"config":{"a":1}}'),
    ],
)
def test_nonsense_is_refused(parse: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        parse(data)
