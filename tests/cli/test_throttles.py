"""Throttles of a reassignment: which replicas are listed, and how they are told."""

from __future__ import annotations

import pytest

from logstore.cli.cluster_state import Cluster, Topic
from logstore.cli.store_operator import StoreOperator
from logstore.cli.throttles import Rates, rates_in, throttle_of, throttles_for, told, topics_with_lists
from logstore.cli.troubles import Observed, troubles
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidConfig
from logstore.replication.metastore.layout import (
    BrokerRegistration,
    LeaderAndIsr,
    TopicAssignment,
    encode_topic_config,
)
from logstore.replication.metastore.memory import MemoryStore
from logstore.replication.metastore.operations import Children, Create, Get, Outcome

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
LEADER, FOLLOWER = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"


def cluster(
    config: dict[str, str] | None = None, adding: dict[int, tuple[int, ...]] | None = None
) -> Cluster:
    partitions: dict[int, tuple[int, ...]] = {0: (1, 2), 1: (2, 3), 2: (1, 3)}
    partitions |= {number: partitions[number] + new for number, new in (adding or {}).items()}
    states = {TopicPartition("t", number): LeaderAndIsr(1, 0, (1, 2), 1) for number in partitions}
    topic = Topic(TopicAssignment("", partitions, adding or {}), config or {}, 0, 0)
    return Cluster({each: BrokerRegistration("h", 1) for each in (1, 2, 3, 4)}, {"t": topic}, states, 1)


def test_present_replicas_count_as_leaders_and_new_ones_as_followers() -> None:
    found = throttles_for(cluster(), {P0: (2, 4), P1: (3, 2)})
    assert found.of_topics == {"t": {LEADER: "0:1,0:2", FOLLOWER: "0:4"}}
    assert found.brokers == (1, 2, 4), "a change of order alone moves no bytes"


def test_what_moves_already_and_what_is_set_stays() -> None:
    set_before = {LEADER: "2:1,10:3", FOLLOWER: "*"}
    found = throttles_for(cluster(set_before, adding={0: (3,)}), {P0: (2, 4)})
    assert found.of_topics == {"t": {LEADER: "0:1,0:2,2:1,10:3", FOLLOWER: "*"}}
    assert found.brokers == (1, 2, 3, 4)


def test_a_throttle_is_told_by_side_and_broker() -> None:
    known = cluster({LEADER: "0:1,0:2", FOLLOWER: "*"}, adding={0: (4,)})
    rates = {1: Rates(1_000, 9), 2: Rates(None, None), 4: Rates(None, 2_000)}
    found = throttle_of(known, rates, P0)
    assert found == {"leader": {1: 1_000}, "follower": {1: 9, 4: 2_000}}
    assert told(found) == "throttled: leader 1 at 1000, follower 1 at 9, follower 4 at 2000 bytes/s"
    assert told(throttle_of(known, {}, P0)) == ""
    assert topics_with_lists(known, ["t", "gone"]) == {"t": (LEADER, FOLLOWER)}


def test_a_forgotten_throttle_is_named_for_replicas_that_fell_behind() -> None:
    seen = Observed(cluster({FOLLOWER: "*"}), {}, rates={3: Rates(None, 5)})
    found = [each for each in troubles(seen) if P1 in each.partitions]
    (trouble,) = found
    assert "throttled: follower 3 at 5 bytes/s" in trouble.evidence
    assert "logstore reassign verify" in trouble.next_step


def test_rates_of_kafkas_brokers_are_read_or_refused() -> None:
    assert rates_in({"a": "5"}, ("a", "b")) == (5, None)
    with pytest.raises(InvalidConfig, match="expected bytes a second"):
        rates_in({"a": "fast"}, ("a", "b"))


class Session:
    """A session with a store in memory."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._id = self._store.open_session(60_000, 0)

    def call(self, operation: object) -> Outcome:
        return self._store.call(self._id, operation, 0)[0]  # type: ignore[arg-type]

    read = call


def test_rates_in_the_store_are_where_kafkas_are_and_told_to_all() -> None:
    session = Session()
    to = StoreOperator(session)  # type: ignore[arg-type]
    default = encode_topic_config({"leader.replication.throttled.rate": "7"})
    session.call(Create("/config/brokers/<default>", default, make_parents=True))
    own = encode_topic_config({"log.cleaner.threads": "2"})
    session.call(Create("/config/brokers/1", own, make_parents=True))
    to.limit_replication([1, 2], 500)
    assert to.replication_rates([1, 2, 3]) == {1: Rates(500, 500), 2: Rates(500, 500), 3: Rates(7, None)}
    assert b"log.cleaner.threads" in session.call(Get("/config/brokers/1")).data
    notices = session.call(Children("/config/changes")).children
    told_to = [session.call(Get(f"/config/changes/{each}")).data for each in sorted(notices)]
    assert [b"brokers/1" in told_to[0], b"brokers/2" in told_to[1]] == [True, True]
    to.limit_replication([1, 2, 3], None)
    assert to.replication_rates([1]) == {1: Rates(7, None)}
    assert len(session.call(Children("/config/changes")).children) == 4, "nothing is told that did not change"
