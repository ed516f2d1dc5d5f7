"""`topics`, `elect-preferred` and `reassign`: the operators' verbs on a cluster that works while they run.

The verbs see the metadata store of a cluster in this process; each of their calls lets a little of its
virtual time pass, so what they wait for comes about. The last test does it with a ZooKeeper server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import logstore.cli.cluster_state
import logstore.cli.operating
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication.config import NodeConfig
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.driver import InProcessCluster
from logstore.replication.effects import WatchFired
from logstore.replication.messages import NewTopic
from logstore.replication.metastore import layout
from logstore.replication.metastore.operations import (
    Children,
    Create,
    Get,
    Operation,
    Outcome,
    Set,
    StoreError,
)
from logstore.replication.metastore.zookeeper import BlockingZooKeeperStore
from tests.cli.conftest import Outcome as Ended

Command = Callable[..., Ended]
URL = "zookeeper://127.0.0.1:1"
STEP_MS = 50


class Shared:
    """The cluster's own store, through which time passes; it can lose one reply of a write."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self._cluster = cluster
        self.loses_write = False
        self.is_open = True
        self.read: list[str] = []

    def open_session(self, timeout_ms: int, now_ms: int) -> int:
        return self._cluster.store.open_session(1 << 40, self._cluster.now_ms)

    def call(self, session_id: int, operation: Operation, now_ms: int) -> tuple[Outcome, list[WatchFired]]:
        outcome, fired = self._cluster.store.call(session_id, operation, self._cluster.now_ms)
        self._cluster.store_link.fire(fired)
        if isinstance(operation, Get | Children):
            self.read.append(operation.path)
        if self.loses_write and not isinstance(operation, Get | Children):
            return Outcome(StoreError.CONNECTION_LOSS), []
        return outcome, []

    def read_many(self, session_id: int, reads: Sequence[Get]) -> list[Outcome]:
        return [self.call(session_id, each, 0)[0] for each in reads]

    def close_session(self, session_id: int) -> list[WatchFired]:
        return self._cluster.store.close_session(session_id)

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[InProcessCluster]:
    """Four brokers; a pause of a verb is one of theirs.

    A parameter is racks of a letter each, or settings of the controller.
    """
    given: str | ControllerConfig = getattr(request, "param", "")
    racks = given if isinstance(given, str) else ""
    # Leaders go where the verbs send them.
    base = ControllerConfig() if isinstance(given, str) else given
    settled = replace(base, auto_leader_rebalance_enable=False)
    running = InProcessCluster(
        [
            NodeConfig(node_id=number, broker_rack=racks[number : number + 1], controller=settled)
            for number in range(4)
        ],
        disk_of=lambda _: MemoryDisk(),
    )
    running.start()
    assert running.run_until(lambda: len(brokers_known(running)) == 4)
    monkeypatch.setattr(logstore.cli.cluster_state, "open_store", lambda url, security: Shared(running))
    monkeypatch.setattr(logstore.cli.operating, "pause", lambda: running.advance(STEP_MS))
    yield running
    running.close()


def brokers_known(cluster: InProcessCluster) -> list[int]:
    contexts = [node.controller.context for node in cluster.nodes.values()]
    return [broker for context in contexts if context is not None for broker in context.brokers]


def lines(ended: Ended) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.out.splitlines()]


def described(command: Command, *options: str) -> list[dict[str, Any]]:
    return lines(command("topics", "describe", "--metadata", URL, "--json", *options))


def test_why_over_the_store(command: Command, cluster: InProcessCluster) -> None:
    """What brokers alone know is missing: no log dir is asked, and none is said to lack a replica."""
    command("topics", "create", "t", "--metadata", URL, "--replica-assignment", "1:3", "--wait", 30)
    assert "nothing is wrong" in command("why", "cluster", "--metadata", URL).out
    cluster.kill_node(1, expire_session=True)
    cluster.advance(1000)
    told = command("why", "t-0", "--metadata", URL)
    assert (told.code, "broker 1 is down" in told.out) == (1, True)
    assert "broker 1  not registered" in command("why", "broker", "1", "--metadata", URL).out
    assert command("why", "broker", "9", "--metadata", URL).err == "logstore: no broker 9\n"


class TestTopics:
    def test_created_listed_described(self, command: Command, cluster: InProcessCluster) -> None:
        made = command(
            "topics", "create", "orders", "--metadata", URL, "--partitions", 3, "--replication-factor", 2,
            "--config", "min.insync.replicas=2", "--wait", 30, "--json",
        )  # fmt: skip
        assert (made.code, made.err) == (0, "")
        (facts,) = lines(made)
        assert facts["is_done"]
        assert lines(command("topics", "list", "--metadata", URL, "--json")) == [
            {"topic": "orders", "is_being_deleted": False}
        ]
        partitions = described(command)
        assert [each["partition"] for each in partitions] == [0, 1, 2]
        for each in partitions:
            assert len(each["replicas"]) == 2
            assert each["leader"] == each["replicas"][0] == each["isr"][0]
            assert each["is_available"]
            assert not each["is_under_replicated"]
        text = command("topics", "describe", "--metadata", URL).out
        assert f"orders  id {facts['topic_id']}  min.insync.replicas=2" in text
        assert cluster.leader_of(TopicPartition("orders", 0)) is not None

    def test_placed_by_hand(self, command: Command, cluster: InProcessCluster) -> None:
        made = command(
            "topics", "create", "t", "--metadata", URL, "--replica-assignment", "3:1,0:2", "--wait", 30
        )
        assert (made.code, made.err) == (0, "")
        assert [each["replicas"] for each in described(command)] == [[3, 1], [0, 2]]

    @pytest.mark.parametrize("cluster", ["", "aabb"], indirect=True)
    def test_placed_round_robin(self, command: Command, cluster: InProcessCluster) -> None:
        """Replica j of partition i is on broker (i + j) mod 4, whatever the racks."""
        made = command(
            "topics", "create", "t", "--metadata", URL, "--placement", "round-robin", "--partitions", 6,
            "--replication-factor", 3, "--wait", 30,
        )  # fmt: skip
        assert (made.code, made.err) == (0, "")
        worked = [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1], [0, 1, 2], [1, 2, 3]]
        assert [each["replicas"] for each in described(command)] == worked
        assert [each["leader"] for each in described(command)] == [0, 1, 2, 3, 0, 1]

    def test_placed_round_robin_over_live_brokers(self, command: Command, cluster: InProcessCluster) -> None:
        cluster.kill_node(1, expire_session=True)
        cluster.advance(1000)
        options = ["--metadata", URL, "--placement", "round-robin", "--partitions", "4"]
        assert command("topics", "create", "t", *options, "--replication-factor", 2, "--wait", 30).code == 0
        assert [each["replicas"] for each in described(command)] == [[0, 2], [2, 3], [3, 0], [0, 2]]

    @pytest.mark.parametrize(
        ("arguments", "code", "complaint"),
        [
            (["create", "orders"], 1, "exists"),
            (["create", "orders", "--placement", "round-robin"], 1, "exists"),
            (["create", "t", "--placement", "round-robin", "--replication-factor", "5"], 1, "brokers (4)"),
            (["create", "t", "--placement", "round-robin", "--partitions", "10001"], 1, "at most 10000"),
            (
                ["create", "t", "--placement", "round-robin", "--replica-assignment", "1:2"],
                2,
                "omit --placement",
            ),
            (["create", "t", "--placement", "by-luck"], 2, "round-robin"),
            (["create", "a b"], 1, "a b"),
            (["create", "t", "--replication-factor", "5"], 1, "live brokers (4)"),
            (["create", "t", "--replica-assignment", "1:9"], 2, "[9]"),
            (["create", "t", "--replica-assignment", "1:1"], 1, "each broker once"),
            (["create", "t", "--replica-assignment", "x"], 2, "not a list of"),
            (["create", "t", "--config", "no.such.setting=1"], 1, "no.such.setting"),
            (["create", "t", "--config", "retention.ms"], 2, "NAME=VALUE"),
            (["create", "t", "--config", "retention.ms=1", "--config", "retention.ms=2"], 2, "twice"),
            (["describe", "nobody"], 1, "nobody"),
            (["delete", "nobody"], 1, "nobody"),
            (["alter", "nobody", "--partitions", "3"], 1, "nobody"),
            (["alter", "orders"], 2, "nothing to alter"),
            (["alter", "orders", "--partitions", "1"], 1, "cannot shrink"),
            (["alter", "orders", "--config", "retention.ms=soon"], 1, "retention.ms"),
            (["alter", "orders", "--delete-config", "retention.ms"], 1, "no setting"),
        ],
    )
    def test_refusals_change_nothing(
        self,
        command: Command,
        cluster: InProcessCluster,
        arguments: list[str],
        code: int,
        complaint: str,
    ) -> None:
        cluster.create_topic(NewTopic("orders", assignment=((0, 1),)))
        before = everything(cluster)
        ended = command("topics", arguments[0], "--metadata", URL, *arguments[1:])
        assert ended.code == code
        assert complaint in ended.err
        assert everything(cluster) == before

    def test_filters_name_what_is_wrong(self, command: Command, cluster: InProcessCluster) -> None:
        cluster.create_topic(NewTopic("t", assignment=((0, 1), (2, 3), (1, 2))))
        assert described(command, "--under-replicated") == described(command, "--unavailable") == []
        cluster.kill_node(1, expire_session=True)
        cluster.advance(1000)
        assert [each["partition"] for each in described(command, "--under-replicated")] == [0, 2]
        cluster.kill_node(0, expire_session=True)
        cluster.advance(1000)
        assert [each["partition"] for each in described(command, "--unavailable")] == [0]
        assert "NO LEADER" in command("topics", "describe", "--metadata", URL, "--unavailable").out

    def test_altered_while_in_use(self, command: Command, cluster: InProcessCluster) -> None:
        cluster.create_topic(NewTopic("t", assignment=((0, 1),)))
        ended = command(
            "topics", "alter", "t", "--metadata", URL, "--partitions", 3, "--config", "retention.ms=5000"
        )
        assert ended.code == 0
        assert "may go to other partitions" in ended.err
        cluster.advance(2000)
        assert [each["is_available"] for each in described(command)] == [True] * 3
        each = TopicPartition("t", 0)
        leader = cluster.leader_of(each)
        assert leader is not None
        assert cluster.nodes[leader].replicas.partitions[each].log.config.retention_ms == 5000
        command("topics", "alter", "t", "--metadata", URL, "--delete-config", "retention.ms")
        cluster.advance(2000)
        assert cluster.nodes[leader].replicas.partitions[each].log.config.retention_ms != 5000

    @pytest.mark.parametrize("cluster", ["aabb"], indirect=True)
    def test_placed_by_racks_as_the_controller_would(
        self, command: Command, cluster: InProcessCluster
    ) -> None:
        """Each partition on two racks: those that it begins with, and those that are added."""
        options = ["--metadata", URL, "--partitions"]
        made = command("topics", "create", "t", *options, 4, "--replication-factor", 2, "--wait", 30)
        assert (made.code, made.err) == (0, "")
        assert command("topics", "alter", "t", *options, 9).code == 0
        cluster.advance(2000)
        placed = [each["replicas"] for each in described(command)]
        assert len(placed) == 9
        assert all({broker < 2 for broker in replicas} == {True, False} for replicas in placed)

    @pytest.mark.parametrize("cluster", ["aab"], indirect=True)
    def test_a_broker_without_a_rack_among_others(self, command: Command, cluster: InProcessCluster) -> None:
        refused = command("topics", "create", "u", "--metadata", URL)
        assert refused.code == 1
        assert "[3] have no rack" in refused.err

    def test_partitions_are_added_to_what_the_node_says(
        self, command: Command, cluster: InProcessCluster
    ) -> None:
        """A broker that has yet to delete its replica stays listed: nobody else remembers it."""
        cluster.create_topic(NewTopic("t", assignment=((0, 1),)))
        for number in cluster.nodes:
            cluster.isolate(number)  # nobody confirms a deletion meanwhile
        operator = cluster.store.open_session(1 << 40, cluster.now_ms)
        path = layout.topic_path("t")
        read, _ = cluster.store.call(operator, Get(path), cluster.now_ms)
        assert read.stat is not None
        node = replace(layout.parse_topic(read.data), leaving_replicas={0: (3,)})
        cluster.store.call(operator, Set(path, layout.encode_topic(node), read.stat.version), cluster.now_ms)
        assert command("topics", "alter", "t", "--metadata", URL, "--partitions", 2).code == 0
        after, _ = cluster.store.call(operator, Get(path), cluster.now_ms)
        assert layout.parse_topic(after.data).leaving_replicas == {0: (3,)}
        assert sorted(layout.parse_topic(after.data).partitions) == [0, 1]

    def test_deleted(self, command: Command, cluster: InProcessCluster) -> None:
        cluster.create_topic(NewTopic("t", assignment=((0, 1),)))
        ended = command("topics", "delete", "t", "--metadata", URL, "--wait", 60)
        assert (ended.code, ended.err) == (0, "")
        assert described(command) == []

    def test_a_deletion_that_waits_says_so(self, command: Command, cluster: InProcessCluster) -> None:
        cluster.create_topic(NewTopic("t", assignment=((0, 1),)))
        cluster.kill_node(1, expire_session=True)
        cluster.advance(1000)
        ended = command("topics", "delete", "t", "--metadata", URL, "--wait", 0.2)
        assert ended.code == 1
        assert "it waits for broker 1 (not alive) for t-0" in ended.err
        told = "t (being deleted, waits for broker 1 (not alive) for t-0)\n"
        assert command("topics", "list", "--metadata", URL).out == told
        assert command("topics", "describe", "t", "--metadata", URL).out.startswith(told)
        (listed,) = lines(command("topics", "list", "--metadata", URL, "--json"))
        waits = {"topic": "t", "is_being_deleted": True, "waits_for": "broker 1 (not alive) for t-0"}
        assert listed == described(command)[0] == waits

    def test_a_deletion_waits_for_a_reassignment(self, command: Command, cluster: InProcessCluster) -> None:
        cluster.create_topic(NewTopic("t", assignment=((0, 1),)))
        for number in cluster.nodes:
            cluster.isolate(number)  # the requests stay as they are written
        operator = cluster.store.open_session(1 << 40, cluster.now_ms)
        path = layout.topic_path("t")
        read, _ = cluster.store.call(operator, Get(path), cluster.now_ms)
        assert read.stat is not None
        node = replace(layout.parse_topic(read.data), adding_replicas={0: (3,)})
        cluster.store.call(operator, Set(path, layout.encode_topic(node), read.stat.version), cluster.now_ms)
        assert command("topics", "delete", "t", "--metadata", URL).code == 0
        listed = command("topics", "list", "--metadata", URL).out
        assert listed == "t (being deleted, waits for the reassignment of partitions [0])\n"

    @pytest.mark.parametrize("cluster", [ControllerConfig(delete_topic_enable=False)], indirect=True)
    def test_a_deletion_that_is_disabled(self, command: Command, cluster: InProcessCluster) -> None:
        cluster.create_topic(NewTopic("t", assignment=((0, 1),)))
        before = everything(cluster)
        ended = command("topics", "delete", "t", "--metadata", URL)
        assert ended.code == 1
        assert "t is not deleted: topic deletion is disabled; set delete.topic.enable=true" in ended.err
        assert everything(cluster) == before

    def test_a_node_that_makes_no_sense_is_named(self, command: Command, cluster: InProcessCluster) -> None:
        cluster.create_topic(NewTopic("t", assignment=((0, 1),)))
        operator = cluster.store.open_session(1 << 40, cluster.now_ms)
        cluster.store.call(operator, Create("/brokers/topics/x", b"{"), cluster.now_ms)
        ended = command("topics", "list", "--metadata", URL)
        assert (ended.code, ended.out) == (1, "t\n")
        assert "/brokers/topics/x" in ended.err


def everything(cluster: InProcessCluster) -> dict[str, tuple[bytes, int]]:
    tree = cluster.store.tree  # type: ignore[attr-defined]  # the store in memory
    return {path: (node.data, node.version) for path, node in tree.nodes()}


class TestElectPreferred:
    def test_leaders_go_home(self, command: Command, cluster: InProcessCluster) -> None:
        cluster.create_topic(NewTopic("t", assignment=((0, 1), (1, 0))))
        cluster.kill_node(0, expire_session=True)
        cluster.advance(1000)
        cluster.start_node(0)
        cluster.advance(5000)
        assert cluster.leader_of(TopicPartition("t", 0)) == 1
        ended = command("elect-preferred", "--metadata", URL, "--wait", 30, "--json")
        assert (ended.code, ended.err) == (0, "")
        assert [each["leader"] for each in lines(ended)] == [0, 1]
        assert [each["is_needed"] for each in lines(ended)] == [True, False]
        cluster.advance(1000)
        assert cluster.leader_of(TopicPartition("t", 0)) == 0

    def test_an_election_that_changes_nothing_says_so(
        self, command: Command, cluster: InProcessCluster
    ) -> None:
        """Kafka's NoOpLeaderSelector: leader, epoch and ISR stay as they are."""
        cluster.create_topic(NewTopic("t", assignment=((0, 1),)))
        (before,) = described(command)
        ended = command("elect-preferred", "t-0", "--metadata", URL, "--wait", 30)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out == "t-0  leader 0  nothing to elect: it led already\n"
        assert described(command) == [before]

    def test_one_election_at_a_time(self, command: Command, cluster: InProcessCluster) -> None:
        cluster.create_topic(NewTopic("t", assignment=((0, 1),)))
        for number in cluster.nodes:
            cluster.isolate(number)  # nobody takes it up
        assert command("elect-preferred", "--metadata", URL).code == 0
        ended = command("elect-preferred", "--metadata", URL)
        assert ended.code == 1
        assert "in progress" in ended.err

    def test_partitions_by_name_and_by_file(
        self, command: Command, cluster: InProcessCluster, tmp_path: Path
    ) -> None:
        cluster.create_topic(NewTopic("t", assignment=((0, 1), (1, 0))))
        ended = command("elect-preferred", "t-1", "t-7", "--metadata", URL, "--wait", 30, "--json")
        assert ended.code == 1
        assert "no partition t-7: skipped" in ended.err
        assert [each["partition"] for each in lines(ended)] == [1]
        file = tmp_path / "partitions.json"
        file.write_bytes(layout.encode_partitions([TopicPartition("t", 0)]))
        ended = command("elect-preferred", "--json-file", file, "--metadata", URL, "--wait", 30, "--json")
        assert [each["partition"] for each in lines(ended)] == [0]
        file.write_text("{")
        assert command("elect-preferred", "--json-file", file, "--metadata", URL).code == 2
        assert command("elect-preferred", "what?", "--metadata", URL).code == 2


class TestReassign:
    @pytest.fixture
    def plan(self, tmp_path: Path) -> Callable[..., Path]:
        def write(**replicas: list[int]) -> Path:
            path = tmp_path / "plan.json"
            partitions = [
                {"topic": name[:-1], "partition": int(name[-1]), "replicas": ids}
                for name, ids in replicas.items()
            ]
            path.write_text(json.dumps({"version": 1, "partitions": partitions}))
            return path

        return write

    def test_proposed_executed_verified_rolled_back(
        self, command: Command, cluster: InProcessCluster, tmp_path: Path
    ) -> None:
        cluster.create_topic(NewTopic("t", assignment=((0, 1), (1, 0))))
        topics = tmp_path / "topics.json"
        topics.write_text('{"version":1,"topics":[{"topic":"t"}]}')
        asked = command("reassign", "generate", topics, "--broker-list", "2,3", "--metadata", URL, "--json")
        assert asked.code == 0
        (both,) = lines(asked)
        assert [each["replicas"] for each in both["current"]["partitions"]] == [[0, 1], [1, 0]]
        assert all(sorted(each["replicas"]) == [2, 3] for each in both["proposed"]["partitions"])
        forth, back = tmp_path / "forth.json", tmp_path / "back.json"
        forth.write_text(json.dumps(both["proposed"]))
        back.write_text(json.dumps(both["current"]))
        assert command("reassign", "verify", forth, "--metadata", URL).code == 1
        for plan in (forth, back):
            ended = command("reassign", "execute", plan, "--metadata", URL, "--wait", 60)
            assert (ended.code, ended.err) == (0, "")
            ended = command("reassign", "verify", plan, "--metadata", URL, "--json")
            assert ended.code == 0
            assert [each["standing"] for each in lines(ended)] == ["completed"] * 2
        assert [each["replicas"] for each in described(command)] == [[0, 1], [1, 0]]

    def test_called_off(self, command: Command, cluster: InProcessCluster, plan: Callable[..., Path]) -> None:
        cluster.create_topic(NewTopic("t", assignment=((1, 0),)))
        cluster.run_until(lambda: False, 100)
        file = plan(t0=[2, 3])
        cluster.intercept = lambda envelope: 2 in (envelope.source, envelope.target)  # 2 does not catch up
        assert command("reassign", "execute", file, "--metadata", URL).code == 0
        cluster.advance(1000)
        (moving,) = described(command)
        assert moving["adding"] == [2, 3]
        (listed,) = lines(command("reassign", "list", "--metadata", URL, "--json"))
        assert (listed["topic"], listed["partition"]) == ("t", 0)
        assert [listed[name] for name in ("adding", "removing")] == [[2, 3], [1, 0]]
        told = command("reassign", "list", "--metadata", URL).out
        assert told == "t-0  replicas 2,3,1,0  adding 2,3  removing 1,0\n"
        assert not moving["is_under_replicated"]
        (standing,) = lines(command("reassign", "verify", file, "--metadata", URL, "--json"))
        assert standing["standing"] == "still in progress"
        ended = command("reassign", "execute", file, "--metadata", URL)
        assert ended.code in (0, 1)  # taken up already, or still listed: never a second one beside it
        cluster.intercept = lambda envelope: False
        cluster.held.clear()
        cluster.kill_node(2, expire_session=True)
        cluster.advance(1000)
        (back,) = lines(command("reassign", "cancel", file, "--metadata", URL, "--wait", 60, "--json"))
        assert back["replicas"] == [1, 0]
        assert described(command)[0]["replicas"] == [1, 0]
        assert command("reassign", "cancel", file, "--metadata", URL).code == 1
        assert command("reassign", "list", "--metadata", URL).out == "no reassignment is in progress\n"

    def test_listed_before_it_has_begun(
        self, command: Command, cluster: InProcessCluster, plan: Callable[..., Path]
    ) -> None:
        cluster.create_topic(NewTopic("t", assignment=((1, 0),)))
        for number in cluster.nodes:
            cluster.isolate(number)  # nobody takes it up
        assert command("reassign", "execute", plan(t0=[2, 3]), "--metadata", URL).code == 0
        told = command("reassign", "list", "--metadata", URL).out
        assert told == "t-0  replicas 1,0  adding -  removing -  not begun\n"

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("{", "not JSON"),
            ("[]", "not a JSON object"),
            ('{"partitions":[]}', "empty"),
            ('{"version":2,"partitions":[{"topic":"t","partition":0,"replicas":[1]}]}', "has version 2"),
            ('{"partitions":[{"topic":"t","partition":0,"replicas":[]}]}', "list of replicas"),
            ('{"partitions":[{"topic":"t","partition":0,"replicas":[1,1]}]}', "twice"),
            ('{"partitions":[{"topic":"t","partition":true,"replicas":[1]}]}', "list of replicas"),
            (
                '{"partitions":[{"topic":"t","partition":0,"replicas":[1]},'
                '{"topic":"t","partition":0,"replicas":[2]}]}',
                "listed twice",
            ),
            (
                '{"partitions":[{"topic":"t","partition":0,"replicas":[1],"log_dirs":["/b"]}]}',
                "move replicas with logstore brokers move-log",
            ),
            ('{"partitions":[{"topic":"t","partition":0,"replicas":[9]}]}', "[9] are not alive"),
            ('{"partitions":[{"topic":"x","partition":0,"replicas":[1]}]}', "no partition x-0"),
        ],
    )
    def test_a_plan_that_makes_no_sense_changes_nothing(
        self, command: Command, cluster: InProcessCluster, tmp_path: Path, text: str, complaint: str
    ) -> None:
        cluster.create_topic(NewTopic("t", assignment=((1, 0),)))
        before = everything(cluster)
        file = tmp_path / "plan.json"
        file.write_text(text)
        ended = command("reassign", "execute", file, "--metadata", URL)
        assert ended.code == 1
        assert complaint in ended.err
        assert everything(cluster) == before

    @pytest.mark.parametrize(
        ("topics", "brokers", "complaint"),
        [
            ('{"topics":[]}', "0,1", 'no "topics"'),
            ('{"topics":[{"topic":"t"},{"topic":"t"}]}', "0,1", "listed twice"),
            ('{"topics":[{"topic":"x"}]}', "0,1", "no topic 'x'"),
            ('{"topics":[{"topic":"t"}]}', "0,0", "listed twice"),
            ('{"topics":[{"topic":"t"}]}', "0,9", "[9] are not alive"),
            ('{"topics":[{"topic":"t"}]}', "0", "t has 2 replicas: list at least as many brokers"),
        ],
    )
    def test_a_proposal_that_cannot_be(
        self,
        command: Command,
        cluster: InProcessCluster,
        tmp_path: Path,
        topics: str,
        brokers: str,
        complaint: str,
    ) -> None:
        cluster.create_topic(NewTopic("t", assignment=((1, 0),)))
        file = tmp_path / "topics.json"
        file.write_text(topics)
        ended = command("reassign", "generate", file, "--broker-list", brokers, "--metadata", URL)
        assert ended.code == 1
        assert complaint in ended.err


def test_one_topic_is_asked_about_and_each_node_is_read_once(
    command: Command, cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a cluster of ten thousand partitions the others take seconds."""
    cluster.create_topic(NewTopic("t", assignment=((1, 0), (0, 1))))
    cluster.create_topic(NewTopic("other", assignment=((1, 0),)))
    plan = tmp_path / "plan.json"
    plan.write_text('{"partitions":[{"topic":"t","partition":0,"replicas":[1,0]}]}')
    store = Shared(cluster)
    monkeypatch.setattr(logstore.cli.cluster_state, "open_store", lambda url, security: store)
    for verb in (
        ["reassign", "verify", plan],
        ["topics", "describe", "t"],
        ["topics", "alter", "t", "--config", "retention.ms=5000"],
        ["elect-preferred", "t-0"],
    ):
        store.read.clear()
        assert command(*verb, "--metadata", URL).code == 0
        assert layout.partition_state_path(TopicPartition("t", 0)) in store.read
        assert len(set(store.read)) == len(store.read)
        assert not [path for path in store.read if "other" in path]


def test_a_lost_reply_is_told_as_what_it_is(
    command: Command, cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write may have been done: the verb says so, says how to look, and does not do it twice."""
    store = Shared(cluster)
    store.loses_write = True
    monkeypatch.setattr(logstore.cli.cluster_state, "open_store", lambda url, security: store)
    ended = command("topics", "create", "t", "--metadata", URL)
    assert ended.code == 1
    assert "was lost, so the outcome is unknown; check it with logstore topics describe" in ended.err
    assert not store.is_open
    store.loses_write = False
    assert [each["topic"] for each in described(command)] == ["t"]


def test_with_a_real_zookeeper(command: Command, zookeeper_url: str) -> None:
    """The verbs and the nodes meet in a server; nothing else joins them."""
    with BlockingZooKeeperStore(zookeeper_url) as store:
        running = InProcessCluster(
            [NodeConfig(node_id=number) for number in range(3)],
            disk_of=lambda _: MemoryDisk(),
            store=store,
            now_ms=time.monotonic_ns() // 1_000_000,
        )
        running.start()
        assert running.run_until(lambda: len(brokers_known(running)) == 3)
        made = command(
            "topics", "create", "t", "--metadata", zookeeper_url, "--partitions", 2, "--replication-factor", 3
        )
        assert (made.code, made.err) == (0, "")
        parts = [TopicPartition("t", number) for number in range(2)]

        def led() -> bool:
            running.advance(10)
            return all(running.leader_of(each) is not None for each in parts)

        assert running.run_until(led)
        partitions = lines(command("topics", "describe", "--metadata", zookeeper_url, "--json"))
        assert [each["leader"] for each in partitions] == [running.leader_of(each) for each in parts]
        running.close()
    ended = command("topics", "list", "--metadata", "kafka://x")
    assert ended.code in (1, 2)
    assert "zookeeper://" in ended.err
