"""A broker's properties reach whoever takes them."""

from __future__ import annotations

import pytest

from broker.settings import Settings, read_settings
from logstore.errors import InvalidConfig
from replication.durability import Durability


def read(**settings: str) -> Settings:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return read_settings(named, node_id=3, host="h", port=9)


def test_each_setting_goes_to_those_who_take_it() -> None:
    found = read(
        zookeeper_session_timeout_ms="6000",
        unclean_leader_election_enable="TRUE",
        connections_max_idle_ms="5",
        min_insync_replicas="2",
        request_timeout_ms="7000",
        replica_lag_max_messages="-1",
        durability="synced",
    )
    assert (found.node.node_id, found.node.host, found.node.port) == (3, "h", 9)
    assert found.node.zookeeper_session_timeout_ms == 6000
    assert found.node.controller.unclean_leader_election_enable is True
    assert found.node.durability is Durability.SYNCED
    assert found.limits.connections_max_idle_ms == 5
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
