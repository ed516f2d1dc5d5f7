"""`logstore timeline`: what many nodes wrote down, or a simulation, as one view."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from logstore.cli.timeline_drawing import MOST_EVENTS, draw
from logstore.config import MAX_LONG
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.log.log import Log
from logstore.log.losses import Loss
from logstore.replication.config import NodeConfig
from logstore.replication.driver import InProcessCluster
from logstore.replication.history import Event, Kind, as_fact, of_change, of_loss
from logstore.replication.messages import AlterPartitionReassignmentsRequest, DeleteTopicsRequest, NewTopic
from logstore.replication.state_change import Side, StateChange, format_line
from logstore.testing import SimulatedCluster
from logstore.testing.traced import Reader, is_trace
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]

SVG = "{http://www.w3.org/2000/svg}"
PARTITION = TopicPartition("orders", 0)
KAFKA = "[2026-11-20 15:19:26,150] TRACE Broker 3 handling LeaderAndIsr request for [orders, 0] (x.y)"


def change(
    milliseconds: int, text: str, *, leader: int = 1, epoch: int = 5, topic: str = "orders", node: int = 1
) -> str:
    side = Side.BROKER if text.startswith("becomes") else Side.CONTROLLER
    at_ms = 1_795_187_966_000 + milliseconds
    where = TopicPartition(topic, 0)
    return format_line(StateChange(at_ms, node, side, 3, where, text, leader, epoch, 9, (1, 2), (1, 2, 3)))


@pytest.fixture
def nodes(tmp_path: Path, partition: Path) -> Path:
    """What three nodes left: state-change logs, one of them Kafka's, and a replica that was truncated."""
    with Log.open(partition) as log:
        log.truncate_to(3, why="a leader said so")
    (tmp_path / "node-1.state-changes").write_text(
        "\n".join([change(100, "writes the first state", epoch=4), change(200, "becomes leader", epoch=4)])
    )
    (tmp_path / "node-2.state-changes").write_text(
        "\n".join(
            [change(300, "elects a leader", leader=2, node=2), change(160, "elects a leader", topic="x")]
        )
    )
    (tmp_path / "state-change.log.1").write_text(f"{KAFKA}\njava.lang.Exception: [orders,0]\n")
    (tmp_path / "README").write_text("not a log\n")
    return tmp_path


def events_of(outcome: Outcome) -> list[dict[str, object]]:
    assert (outcome.code, outcome.err) == (0, "")
    return [json.loads(line) for line in outcome.out.splitlines()]


class TestFiles:
    def test_all_sources_in_one_order_of_time(self, command: Command, nodes: Path) -> None:
        found = events_of(command("timeline", nodes, "--json"))
        assert [(each["kind"], each["topic"], each["node"]) for each in found] == [
            ("election", "orders", 1),
            ("other", "orders", None),
            ("election", "x", 1),
            ("election", "orders", 2),
            ("truncation", "orders", None),
        ]
        assert (found[0]["time"], found[0]["leader_epoch"], found[0]["isr"]) == (
            "2026-11-20 15:19:26,100", 4, [1, 2],
        )  # fmt: skip
        last = found[-1]
        assert (last["place"], last["first_offset"], last["log_end_offset"]) == ("data/orders-0", 3, 3)
        assert "offsets 3 to 5 went (3 records)" in str(last["text"])

    def test_one_partition_with_what_brokers_did(self, command: Command, nodes: Path) -> None:
        found = events_of(command("timeline", nodes, "--topic", "x", "--roles", "--json"))
        assert [each["kind"] for each in found] == ["election"]
        found = events_of(
            command("timeline", nodes, "--topic", "orders", "--partitions", "0", "--roles", "--json")
        )
        assert [each["kind"] for each in found] == ["election", "other", "role", "election", "truncation"]
        assert events_of(command("timeline", nodes, "--topic", "orders", "--partitions", "1", "--json")) == []

    def test_a_log_dir_brings_the_log_beside_it(
        self, command: Command, nodes: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (nodes / "data.state-changes").write_text(change(400, "elects a leader", leader=3))
        (nodes / "data.state-changes-of-last-week").mkdir()
        found = events_of(command("timeline", nodes / "data", "--json"))
        assert [each["kind"] for each in found] == ["election", "truncation"]
        both = events_of(command("timeline", nodes / "data", nodes / "data.state-changes", "--json"))
        assert both == found, "each log is read once"
        monkeypatch.chdir(nodes / "data")
        assert events_of(command("timeline", ".", "--json")) == found

    def test_as_text(self, command: Command, nodes: Path) -> None:
        outcome = command("timeline", nodes / "node-2.state-changes", "--topic", "orders")
        assert outcome.out.split(maxsplit=6) == [
            "2026-11-20", "15:19:26,300", "orders-0", "node", "2", "election",
            "elects a leader; leader 2, epoch 5, ISR [1, 2]\n",
        ]  # fmt: skip

    def test_damaged_lines_hide_no_others(self, command: Command, nodes: Path) -> None:
        """A line whose day is none is skipped, one of a ledger is reported as by `logstore lost`."""
        before = events_of(command("timeline", nodes, "--json"))
        no_day = KAFKA.replace("2026-11-20", "2026-11-90")
        (nodes / "state-change.log.2").write_text(f"{no_day}\n{change(1, 'x').replace('11-20', '02-30')}\n")
        assert events_of(command("timeline", nodes, "--json")) == before
        ledger = nodes / "data/orders-0/lost/ledger.jsonl"
        with ledger.open("ab") as file:
            file.write(b"{rot}\n")
        outcome = command("timeline", nodes, "--json")
        assert [json.loads(line) for line in outcome.out.splitlines()] == before
        assert outcome.code == 1
        assert "orders-0/lost/ledger.jsonl: line " in outcome.err

    @pytest.mark.parametrize("arguments", [[], ["--json"]])
    def test_a_log_without_events_is_named(
        self, command: Command, tmp_path: Path, arguments: list[str]
    ) -> None:
        (tmp_path / "state-change.log").touch()
        outcome = command("timeline", tmp_path / "state-change.log", *arguments)
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err == f"logstore: no events in {tmp_path / 'state-change.log'}\n"

    def test_a_file_of_another_kind_is_refused(self, command: Command, nodes: Path, tmp_path: Path) -> None:
        other = tmp_path / "other.txt"
        other.write_text("a file of another kind\n")
        outcome = command("timeline", nodes, other, "--topic", "orders")
        assert (outcome.code, outcome.out) == (2, "")
        assert f"{other} is neither a state-change log nor a trace" in outcome.err

    def test_a_log_of_other_topics_has_no_events(self, command: Command, nodes: Path) -> None:
        outcome = command("timeline", nodes / "node-2.state-changes", "--topic", "unknown")
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "")

    def test_a_loss_without_a_record_or_a_date(self) -> None:
        """A torn tail has no offsets; the clock of a loss may have been anywhere."""
        torn = Loss(
            at_ms=MAX_LONG, who="recovery", why="x", first_offset=7, last_offset=6, end_offset=7, size=9
        )
        event = of_loss(torn, PARTITION, "data/orders-0")
        assert event.text == "data/orders-0: recovery: no whole batch went at offset 7 (9 bytes); x"
        assert as_fact(event, is_virtual=False)["time"] == f"{MAX_LONG} ms"

    def test_files_stay_as_they_are(self, command: Command, nodes: Path) -> None:
        before = {path: path.read_bytes() for path in nodes.rglob("*") if path.is_file()}
        assert command("timeline", nodes).code == 0
        assert {path: path.read_bytes() for path in nodes.rglob("*") if path.is_file()} == before

    def test_a_real_life_of_a_partition(self, command: Command, tmp_path: Path) -> None:
        """The lines that controller and brokers write: created, failed over, grown, deleted."""
        heard: list[StateChange] = []
        cluster = InProcessCluster(
            [NodeConfig(node_id=number, replica_lag_time_max_ms=1000) for number in range(3)],
            disk_of=lambda _: MemoryDisk(),
            state_changes=heard.append,
        )
        cluster.start()
        cluster.run_until(lambda: any(node.controller.is_active for node in cluster.nodes.values()))
        cluster.advance(100)
        cluster.create_topic(NewTopic("orders", assignment=((1, 2, 0),)))
        cluster.kill_node(1, expire_session=True)
        cluster.advance(1000)
        cluster.start_node(1)
        cluster.advance(5000)
        cluster.administer(DeleteTopicsRequest(("orders",)))
        cluster.advance(5000)
        for node in range(3):
            lines = [format_line(each) for each in heard if each.node_id == node]
            (tmp_path / f"node-{node}.state-changes").write_text("".join(f"{line}\n" for line in lines))
        found = events_of(command("timeline", tmp_path, "--json"))
        led = [(each["leader"], each["leader_epoch"]) for each in found if each["kind"] == "election"]
        assert led[0] == (1, 0)
        assert (2, 1) in led
        assert "isr" in {each["kind"] for each in found}
        assert any(str(each["text"]).startswith("has deleted the topic") for each in found)


@pytest.fixture(scope="module")
def trace() -> tuple[list[str], int, tuple[int, ...]]:
    lines: list[str] = []
    with SimulatedCluster(nodes=3, seed=7, trace=lines.append) as cluster:
        cluster.create_topic("orders")
        cluster.produce("orders", b"placed")
        leader = cluster.leader("orders")
        assert leader is not None
        cluster.kill(leader)
        cluster.produce("orders", b"paid")
        cluster.restart(leader)
        cluster.run_until(cluster.is_in_sync)
        isr = cluster.isr("orders")
    return lines, leader, isr


class TestTraces:
    def test_elections_isr_and_restarts_are_those_of_the_cluster(
        self, trace: tuple[list[str], int, tuple[int, ...]]
    ) -> None:
        lines, killed, isr = trace
        events = list(Reader().read(lines))
        assert [event.time_ms for event in events] == sorted(event.time_ms for event in events)
        elections = [event for event in events if event.kind is Kind.ELECTION]
        epochs = [event.leader_epoch for event in elections]
        assert epochs == sorted(set(epochs)), "each epoch once"
        assert elections[0].leader == killed
        assert elections[-1].leader != killed
        states = [event.facts["isr"] for event in events if "isr" in event.facts]
        assert sorted(isr) in [sorted(each) for each in states if isinstance(each, list)]
        told = [(event.node, event.text) for event in events if event.kind is Kind.NODE]
        assert told.index((killed, "is killed")) < told.index((killed, "starts, life 2"))
        assert any(event.kind is Kind.CONTROLLER for event in events)

    def test_the_command_reads_it(
        self, command: Command, trace: tuple[list[str], int, tuple[int, ...]], tmp_path: Path
    ) -> None:
        path = tmp_path / "trace.txt"
        path.write_text("\n".join(trace[0]))
        found = events_of(command("timeline", path, "--json"))
        assert len(found) == len(list(Reader().read(trace[0])))
        assert str(found[0]["time"]).endswith(" ms")
        none = events_of(command("timeline", path, "--topic", "other", "--json"))
        assert {each["topic"] for each in none} == {None}, "events of nodes concern every partition"
        outcome = command("timeline", path, path)
        assert outcome.code == 2
        assert "name it without other files" in outcome.err

    def test_what_replicas_lose(self) -> None:
        lines = [
            "    10   t-0 node 1 (follows at epoch 0, high watermark 4, end 6)",
            "    20   t-0 node 1 (follows at epoch 1, high watermark 3, end 3)",
            "    30 0 ◀ something else",
            "    40 store ◀ 0 Set(path=/brokers/topics/t/partitions/0/state, "
            'data={"leader":}, version=1) gives success',
        ]
        assert [(event.kind, event.text) for event in Reader().read(lines)] == [
            (Kind.TRUNCATION, "log end 6 to 3"),
            (Kind.WATERMARK, "high watermark 4 to 3"),
            (Kind.TROUBLE, "a state that cannot be read is written"),
        ]

    def test_an_election_outside_the_isr_is_named(self) -> None:
        def line(at_ms: int, leader: int, epoch: int, isr: str) -> str:
            data = f'{{"leader":{leader},"leader_epoch":{epoch},"isr":{isr}}}'
            path = "/brokers/topics/t/partitions/0/state"
            return (
                f"{at_ms:>7} store ◀ 0 Multi(writes=(Set(path={path}, data={data}, version=0))) gives success"
            )

        events = list(Reader().read([line(1, 0, 0, "[0]"), line(2, -1, 1, "[0]"), line(3, 2, 2, "[2]")]))
        assert [event.text for event in events] == [
            "leader 0, epoch 0, ISR [0]",
            "no leader, epoch 1, ISR [0]",
            "leader 2, epoch 2, ISR [2], elected outside the ISR",
        ]

    def test_reassignments_are_read_from_the_topics_node(self) -> None:
        lines: list[str] = []
        with SimulatedCluster(nodes=4, seed=3, trace=lines.append) as cluster:
            cluster.create_topic("orders", replication_factor=2)
            wanted = AlterPartitionReassignmentsRequest({PARTITION: (2, 3)})
            cluster.administer(wanted)
            cluster.run_until(lambda: set(cluster.isr("orders")) == {2, 3})
            cluster.run_for(1000)
        moves = [event.text for event in Reader().read(lines) if event.kind is Kind.REASSIGNMENT]
        assert moves[0] == "a reassignment begins: adding [2, 3], removing [0, 1]"
        assert moves[-1] == "the reassignment ends: replicas [2, 3]"

    @pytest.mark.parametrize(
        ("line", "expected"),
        [("seed 7", True), ("      0 0 starts, life 1", True), (KAFKA, False), ("2026-11-20 15:19", False)],
    )
    def test_which_file_is_a_trace(self, line: str, expected: bool) -> None:
        assert is_trace(line) is expected


class TestDrawing:
    def test_lanes_and_bars(self) -> None:
        def led(at_ms: int, leader: int, epoch: int) -> Event:
            facts: dict[str, object] = {"leader": leader, "leader_epoch": epoch}
            return Event(at_ms, 0, PARTITION, Kind.ELECTION, f"leader {leader} <e{epoch}>", facts)

        events = [led(1, 1, 0), Event(2, 2, PARTITION, Kind.TRUNCATION, "cut"), led(3, -1, 1), led(4, 2, 2)]
        svg = draw("A & B", events, lambda event: f"{event.time_ms} ms")
        root = ElementTree.fromstring(svg)
        bars = [(bar.get("class"), bar.findtext(f"{SVG}title")) for bar in root.iter(f"{SVG}rect")][1:]
        assert bars == [("box e0", "epoch 0"), ("box e2", "epoch 2")], "nobody led epoch 1"
        texts = [text.text for text in root.iter(f"{SVG}text")]
        assert texts[:4] == ["A & B", "node 0", "node 1", "node 2"]
        assert "election: leader 1 <e0>" in texts
        assert [mark.get("class") for mark in root.iter(f"{SVG}circle")] == ["ink", "alarm", "ink"]

    def test_several_partitions_have_no_bars(self) -> None:
        events = [
            Event(1, 0, TopicPartition("t", number), Kind.ELECTION, "x", {"leader": 0, "leader_epoch": 0})
            for number in range(2)
        ]
        root = ElementTree.fromstring(draw("", events, lambda _: ""))
        assert len(list(root.iter(f"{SVG}rect"))) == 1
        assert "election: t-1: x" in [text.text for text in root.iter(f"{SVG}text")]

    def test_the_command_draws(self, command: Command, nodes: Path, tmp_path: Path) -> None:
        target = tmp_path / "out.svg"
        assert command("timeline", nodes, "--topic", "orders", "--svg", target).code == 0
        assert ElementTree.fromstring(target.read_text()).findtext(f"{SVG}title") == "Timeline of orders"

    def test_losses_alone_are_drawn(self, command: Command, nodes: Path, tmp_path: Path) -> None:
        """A partition without an election has no bar; the reason of a loss is any text."""
        with Log.open(nodes / "data/orders-0") as log:
            log.append([b"x"])
            log.truncate_to(3, why="\0\ud800")
        target = tmp_path / "out.svg"
        assert command("timeline", nodes / "data", "--svg", target).code == 0
        root = ElementTree.fromstring(target.read_text())
        assert len(list(root.iter(f"{SVG}circle"))) == 0
        texts = [text.text or "" for text in root.iter(f"{SVG}text") if text.get("class") == "t alarm"]
        assert texts[-1].endswith("; \\x00\\ud800")

    def test_too_many_events_are_refused(self, command: Command, tmp_path: Path) -> None:
        log = tmp_path / "state-change.log"
        log.write_text("\n".join(change(each, "changes the ISR") for each in range(MOST_EVENTS + 1)))
        outcome = command("timeline", log, "--svg", tmp_path / "out.svg")
        assert outcome.code == 1
        assert "too many to draw" in outcome.err
        assert not (tmp_path / "out.svg").exists()


@pytest.mark.parametrize(
    ("text", "side", "kind"),
    [
        ("elects a leader outside the ISR", Side.CONTROLLER, Kind.ELECTION),
        ("ends a reassignment", Side.CONTROLLER, Kind.REASSIGNMENT),
        ("something new", Side.CONTROLLER, Kind.OTHER),
        ("goes offline", Side.BROKER, Kind.TROUBLE),
        ("becomes follower", Side.BROKER, Kind.ROLE),
        ("stops the replica", Side.BROKER, Kind.ROLE),
        ("deletes the replica", Side.BROKER, Kind.TOPIC),
    ],
)
def test_kinds(text: str, side: Side, kind: Kind) -> None:
    event = of_change(StateChange(0, 1, side, 3, PARTITION, text, -1, 5, 9, (1,), (1, 2), "why"))
    assert event.kind is kind
    assert event.text == f"{text}; no leader, epoch 5, ISR [1]; why"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-place"], "no such file or directory: no-such-place"),
        ([".", "--partitions", "0"], "needs --topic"),
        ([str(Path(__file__).parent)], "no state-change log and no loss ledger in"),
    ],
)
def test_a_wrong_command_line_is_refused(command: Command, arguments: list[str], said: str) -> None:
    outcome = command("timeline", *arguments)
    assert outcome.code == 2
    assert said in outcome.err
