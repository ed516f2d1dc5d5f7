"""Defaults of topics' settings that are changed while brokers run: for one broker, or for all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from logstore.broker.config_nodes import change_entity
from logstore.broker.configs import LIVE_DEFAULTS, Live, live_defaults
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import InvalidConfig
from logstore.log.manager_config import LogManagerConfig
from tests.broker.asking import Asker
from tests.broker.handlers.administering import BROKER, TOPIC, create, run
from tests.broker.handlers.test_cluster_apis import change, describe
from tests.broker.nodes import Nodes

RETENTION, BYTES, LEAST = "log.retention.ms", "log.segment.bytes", "min.insync.replicas"
SHORTEST, LONGEST = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
PLAIN, OWN = TopicPartition("plain", 0), TopicPartition("own", 0)


def retentions(nodes: Nodes, node_id: int) -> tuple[int, int]:
    partitions = nodes.running[node_id].node.replicas.partitions
    return partitions[PLAIN].log.config.retention_ms, partitions[OWN].log.config.retention_ms


def test_they_count_for_topics_without_the_setting() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        here = nodes.controller()
        await create(nodes, client, "plain", (0, 1))
        await create(nodes, client, "own", (0, 1), retention_ms="77000")
        first = retentions(nodes, 0)[0]
        for broker, value, expected in (
            ("", "5000", {0: 5_000, 1: 5_000}),
            (str(here), "6000", {here: 6_000, 1 - here: 5_000}),
            ("", None, {here: 6_000, 1 - here: first}),
            (str(here), None, {0: first, 1: first}),
        ):
            setting = (RETENTION, 0, value) if value else (RETENTION, 1, None)
            changed = await change(client, BROKER, broker, setting)
            assert changed.error_code == ErrorCode.NONE, changed.error_message
            for node_id, retention in expected.items():
                await nodes.until(
                    partial(lambda *at: retentions(nodes, at[0]) == at[1], node_id, (retention, 77_000))
                )

    run(test, 2)


def test_they_are_described_with_their_source() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "plain", (0,))
        for broker, value in (("", "5000"), ("0", "6000")):
            assert (await change(client, BROKER, broker, (RETENTION, 0, value))).error_code == ErrorCode.NONE
        for kind, name, setting in ((TOPIC, "plain", "retention.ms"), (BROKER, "0", RETENTION)):
            (entry,) = (await describe(client, kind, name, [setting])).configs
            assert (entry.value, entry.config_source, entry.read_only) == ("6000", 2, False)
            assert [(each.value, each.source) for each in entry.synonyms] == [
                ("6000", 2),
                ("5000", 3),
                ("604800000", 5),
            ]

    run(test, 1)


def test_a_restarted_broker_has_them_before_it_opens_its_logs() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "plain", (0,))
        assert (await change(client, BROKER, "", (RETENTION, 0, "5000"))).error_code == ErrorCode.NONE
        await nodes.kill(0)
        await nodes.start(0)
        assert nodes.running[0].node.logs.config.retention_ms == 5_000
        await nodes.until(lambda: PLAIN in nodes.running[0].node.replicas.partitions)
        assert nodes.running[0].node.replicas.partitions[PLAIN].log.config.retention_ms == 5_000

    run(test, 1)


def test_the_controller_knows_the_default_of_min_insync_replicas() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "plain", (0, 1))
        here = nodes.controller()
        assert (await change(client, BROKER, "", (LEAST, 0, "2"))).error_code == ErrorCode.NONE
        context = nodes.running[here].node.controller.context
        assert context is not None
        await nodes.until(lambda: context.min_insync(PLAIN) == 2)
        for node_id in (0, 1):
            partition = nodes.running[node_id].node.replicas.partitions[PLAIN]
            await nodes.until(lambda at=partition: at.min_insync == 2)  # type: ignore[misc]
        refused = await change(client, BROKER, str(here), (LEAST, 0, "1"))
        assert (refused.error_code, "for all of them" in refused.error_message) == (42, True)

    run(test, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [(RETENTION, "soon"), (RETENTION, "0"), (BYTES, "14"), (LEAST, "0"), ("log.cleanup.policy", "keep")],
)
def test_an_invalid_one_is_refused(name: str, value: str) -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        refused = await change(client, BROKER, "", (name, 0, value))
        assert refused.error_code == ErrorCode.INVALID_CONFIG, refused.error_message
        assert (await describe(client, BROKER, "")).configs == []

    run(test, 1)


def test_values_that_are_invalid_together_are_refused() -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        refused = await change(client, BROKER, "", (SHORTEST, 0, "9000"), (LONGEST, 0, "5000"))
        assert refused.error_code == ErrorCode.INVALID_CONFIG, refused.error_message
        assert (await describe(client, BROKER, "")).configs == []

    run(test, 1)


@pytest.mark.parametrize(("first", "second"), [("", "0"), ("0", "")])
def test_a_brokers_own_and_those_of_all_must_be_valid_together(first: str, second: str) -> None:
    """Else none of them would be in force, and a restarted broker would have no `min.insync.replicas`."""

    async def test(nodes: Nodes, client: Asker) -> None:
        taken = await change(client, BROKER, first, (SHORTEST, 0, "9000"))
        assert taken.error_code == ErrorCode.NONE, taken.error_message
        refused = await change(client, BROKER, second, (LONGEST, 0, "5000"))
        assert refused.error_code == ErrorCode.INVALID_CONFIG, refused.error_message
        taken = await change(client, BROKER, second, (LONGEST, 0, "9000"))
        assert taken.error_code == ErrorCode.NONE, taken.error_message

    run(test, 1)


def test_a_topic_is_served_whose_settings_one_contradicts(caplog: pytest.LogCaptureFixture) -> None:
    """Also after a restart; for the topic, its own setting counts."""

    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "plain", (0,), min_compaction_lag_ms="9000")
        for setting in ((LONGEST, 0, "5000"), (RETENTION, 0, "6000")):
            assert (await change(client, BROKER, "", setting)).error_code == ErrorCode.NONE
        for _ in range(2):
            await nodes.until(lambda: PLAIN in nodes.running[0].node.replicas.partitions)
            config = nodes.running[0].node.replicas.partitions[PLAIN].log.config
            assert (config.retention_ms, config.min_compaction_lag_ms) == (6_000, 9_000)
            assert "a setting of topic plain contradicts a changed default of this broker" in caplog.text
            await nodes.kill(0)
            await nodes.start(0)
        assert "previous ones" not in caplog.text

    run(test, 1)


def test_one_that_a_stranger_writes_leaves_the_former(caplog: pytest.LogCaptureFixture) -> None:
    async def test(nodes: Nodes, client: Asker) -> None:
        await create(nodes, client, "plain", (0,))
        assert (await change(client, BROKER, "", (RETENTION, 0, "5000"))).error_code == ErrorCode.NONE
        ask = nodes.brokers[0].services.ask_store
        await change_entity(ask, "brokers/<default>", lambda now: {RETENTION: "soon"})
        await nodes.until(lambda: "cannot apply changed settings of this broker" in caplog.text)
        assert nodes.running[0].node.replicas.partitions[PLAIN].log.config.retention_ms == 5_000
        await nodes.kill(0)
        await nodes.start(0)
        assert "settings that were changed while brokers ran are not in effect" in caplog.text

    run(test, 1)


def test_the_finest_unit_of_what_was_given_at_the_start_does_not_win() -> None:
    base = LogManagerConfig.from_kafka({RETENTION: "1000", "log.retention.hours": "1", BYTES: "2097152"})
    found = live_defaults(base, Live({}, {RETENTION: "5000", "other": "x"}))
    assert found == replace(base.topic_defaults, retention_ms=5_000)
    with pytest.raises(InvalidConfig):
        live_defaults(base, Live({RETENTION: "soon"}, {}))


def test_each_name_is_the_finest_unit() -> None:
    assert {"log.retention.ms", "log.roll.ms", "message.max.bytes", LEAST} <= LIVE_DEFAULTS.keys()
    assert not {"log.retention.hours", "log.roll.hours", "log.dirs"} & LIVE_DEFAULTS.keys()
