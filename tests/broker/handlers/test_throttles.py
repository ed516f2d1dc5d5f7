"""Throttles and fetchers of replication over the wire: settings of brokers that change while they run."""

from __future__ import annotations

import pytest

from logstore.broker.config_nodes import change_entity
from logstore.broker.configs import FETCHERS
from logstore.broker.configs import FOLLOWER_RATE as FOLLOWER
from logstore.broker.configs import LEADER_RATE as LEADER
from logstore.broker.wire import types as t
from logstore.disk.errors import ErrorCode
from tests.broker.asking import Asker
from tests.broker.handlers.administering import BROKER, produce, run
from tests.broker.handlers.test_cluster_apis import change
from tests.broker.nodes import Nodes

THROTTLES = (LEADER, FOLLOWER, "replica.alter.log.dirs.io.max.bytes.per.second")


def test_the_throttles_of_a_broker_are_deleted_though_there_are_none() -> None:
    """`kafka-reassign-partitions --verify` does so on every broker at the end of a plan."""

    async def test(nodes: Nodes, client: Asker) -> None:
        throttles = [(name, 1, None) for name in sorted(THROTTLES)]
        assert (await change(client, BROKER, "0", *throttles)).error_code == ErrorCode.NONE
        for broker, changes in (
            ("1", throttles),
            ("0", [*throttles, ("log.dirs", 1, None)]),
        ):
            assert (await change(client, BROKER, broker, *changes)).error_code == ErrorCode.INVALID_REQUEST

    run(test, 1)


def test_the_throttles_of_a_broker_count_at_once_and_its_own_before_those_of_all() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        def bounds(node_id: int = 0) -> tuple[int | None, int | None]:
            replicas = nodes.running[node_id].node.replicas
            return replicas.throttle.bound, replicas.followers.throttle.bound

        async def described(name: str) -> tuple[str, int, bool]:
            resource = t.DescribeConfigsRequestDescribeConfigsResource(
                resource_type=BROKER, resource_name="0", configuration_keys=[name]
            )
            answer = await client.ask(t.DescribeConfigsRequest(resources=[resource]), 4)
            (found,) = answer.results[0].configs
            return found.value, found.config_source, found.read_only

        assert bounds() == (None, None)
        assert await described(LEADER) == (str(2**63 - 1), 5, False)
        for broker, changes, expected in (
            ("0", [(LEADER, 0, "1000"), (FOLLOWER, 0, "2000")], (1_000, 2_000)),
            ("", [(LEADER, 0, "7"), (FOLLOWER, 0, "8")], (1_000, 2_000)),
            ("0", [(LEADER, 1, None)], (7, 2_000)),
        ):
            assert (await change(client, BROKER, broker, *changes)).error_code == ErrorCode.NONE
            assert bounds() == expected
        await nodes.until(lambda: bounds(1) == (7, 8))
        assert await described(LEADER) == ("7", 3, False)
        assert await described(FOLLOWER) == ("2000", 2, False)
        for value in ("-1", "fast", "1.5", str(2**63), "9" * 5_000, ""):
            refused = await change(client, BROKER, "0", (LEADER, 0, value))
            assert refused.error_code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST), value[:20]
        refused = await change(client, BROKER, "0", (LEADER, 2, "5"))
        assert (refused.error_code, "not a list" in refused.error_message) == (ErrorCode.INVALID_CONFIG, True)
        for broker in ("0", ""):
            gone = [(LEADER, 1, None), (FOLLOWER, 1, None)]
            assert (await change(client, BROKER, broker, *gone)).error_code == ErrorCode.NONE
        assert bounds() == (None, None)
        await nodes.until(lambda: bounds(1) == (None, None))

    run(test, 2)


def test_a_restarted_broker_has_its_throttles_and_malformed_ones_leave_the_former(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        assert (await change(client, BROKER, "0", (LEADER, 0, "1000"))).error_code == ErrorCode.NONE
        services = nodes.brokers[0].services
        await change_entity(services.ask_store, "brokers/0", lambda now: {LEADER: "much"})
        await nodes.until(lambda: "cannot apply changed settings of this broker" in caplog.text)
        assert nodes.running[0].node.replicas.throttle.bound == 1_000
        await change_entity(services.ask_store, "brokers/0", lambda now: {LEADER: "5"})
        await nodes.until(lambda: nodes.running[0].node.replicas.throttle.bound == 5)
        await nodes.kill(0)
        await nodes.start(0)
        assert nodes.running[0].node.replicas.throttle.bound == 5

    run(test, 1)


def test_the_fetchers_of_a_broker_are_changed_while_it_follows() -> None:
    """Nothing is lost or repeated on the way, and a restarted broker has as many."""

    async def test(nodes: Nodes, client: Asker) -> None:
        topics = [await nodes.create_topic(name, (0, 1)) for name in ("t", "u", "v", "w")]

        async def replicated(counts: int) -> None:
            for each in topics:
                await produce(nodes, each.topic, 2)
            await nodes.until(lambda: all(set(nodes.ends(each).values()) == {counts} for each in topics))

        def fetchers() -> int:
            return len(nodes.running[1].node.replicas.followers.fetchers)

        await replicated(2)
        assert fetchers() == 1
        assert (await change(client, BROKER, "", (FETCHERS, 0, "3"))).error_code == ErrorCode.NONE
        await nodes.until(lambda: fetchers() > 1)
        await replicated(4)
        assert all(nodes.isr(each) == {0, 1} for each in topics)
        for value in ("0", "-1", "many", "", str(2**31), "9" * 5_000):
            refused = await change(client, BROKER, "1", (FETCHERS, 0, value))
            assert refused.error_code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST), value[:20]
        await nodes.stop(1)
        await nodes.start(1)
        await nodes.until(lambda: fetchers() > 1)
        assert (await change(client, BROKER, "", (FETCHERS, 1, None))).error_code == ErrorCode.NONE
        await nodes.until(lambda: fetchers() == 1)
        await replicated(6)

    run(test, 2)
