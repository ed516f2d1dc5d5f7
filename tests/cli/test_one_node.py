"""`logstore cluster` with one node at a time, and what `cluster start` does with a damaged cluster."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from logstore.broker.wire import types as t
from logstore.cli import cluster_file, local_cluster
from logstore.cli.cluster_file import ClusterFailed, LocalCluster, Member, State, alone, existing
from logstore.cli.local_cluster import add, named, relaunch, remarks, start, state_of, stop
from logstore.cli.operating import properties_of, wait_until
from logstore.cli.partition_counts import Counts, counted, of_metadata
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]
PATIENCE_S = 60.0
SETTINGS = {"zookeeper.session.timeout.ms": "3000", "replica.lag.time.max.ms": "3000"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Whatever a test leaves running is ended."""
    directory = tmp_path / "cluster"
    yield directory
    if (directory / "cluster.json").exists():
        stop(directory, patience_s=0)


def states(command: Command, home: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(command("cluster", "status", home, "--json").out)["states"]
    return found


@pytest.mark.interop
def test_one_node_at_a_time(command: Command, home: Path) -> None:
    """Three brokers: one is paused, one killed, one drained; `cluster start` makes all whole again."""
    cluster = start(home, 3, SETTINGS, patience_s=PATIENCE_S)
    over = ("--bootstrap", cluster.bootstrap)
    made = command("topics", "create", "t", *over, "--replication-factor", 3, "--wait", 60)
    assert made.code == 0, made.err
    assert command("cluster", "status", home).code == 0
    assert command("cluster", "pause", home, 2).out.endswith("  paused\n")
    killed = command("cluster", "kill", home, "node-3", "--json")
    assert json.loads(killed.out)["state"] == "stopped"
    assert states(command, home) == {
        "metadata": "running",
        "node-1": "running",
        "node-2": "paused",
        "node-3": "stopped",
    }
    assert command("cluster", "status", home).code == 1
    assert command("cluster", "resume", home, 3).code == 1, "it does not run"
    mended = command("cluster", "start", home, "--no-supervise")
    assert mended.code == 0, mended.err
    assert "node-2 was paused, and is resumed" in mended.err
    assert "node-3 is not running, and is started" in mended.err
    assert wait_until(PATIENCE_S, lambda: command("cluster", "status", home).code == 0)
    added = command("cluster", "add", home, "--json")
    assert json.loads(added.out)["node"] == "node-4"
    drained = command("brokers", "drain", 1, "--metadata", cluster.metadata, "--wait", 60, "--json")
    assert json.loads(drained.out) == {"broker": 1, "drained": True, "still_leads": []}
    assert command("cluster", "status", home, "--json").code == 1, "its replica is out of sync"
    assert command("cluster", "stop", home, 1).out.endswith("  stopped\n")
    assert command("cluster", "start", home, 1).out.endswith("  running\n")
    assert wait_until(PATIENCE_S, lambda: command("cluster", "status", home).code == 0)
    lines = command("cluster", "logs", home, 1, "--lines", 5, "--json").out.splitlines()
    assert all("message" in json.loads(line) for line in lines)
    assert "stop it first" in command("cluster", "start", home).err


def test_a_node_that_is_killed_and_paused(command: Command, home: Path) -> None:
    """It stays down, is started alone, and a paused one ends in order."""
    start(home, 1, {}, patience_s=PATIENCE_S)
    assert command("cluster", "kill", home, 1).out.endswith("  stopped\n")
    assert states(command, home) == {"metadata": "running", "node-1": "stopped"}
    assert command("cluster", "start", home, 1).out.endswith("  running\n")
    assert command("cluster", "pause", home, 1).out.endswith("  paused\n")
    assert states(command, home)["node-1"] == "paused"
    assert command("cluster", "stop", home).code == 0, "it did not have to be killed"


@pytest.mark.interop
def test_a_cluster_without_its_store_stops_in_order(command: Command, home: Path) -> None:
    """The brokers wait for no controller: none had to be killed, and every log dir is marked as clean."""
    cluster = start(home, 2, SETTINGS, patience_s=PATIENCE_S)
    over = ("--bootstrap", cluster.bootstrap)
    made = command("topics", "create", "t", *over, "--replication-factor", 2, "--wait", 60)
    assert made.code == 0, made.err
    assert command("cluster", "kill", home, "metadata").out.endswith("  stopped\n")
    stopped = command("cluster", "stop", home, "--timeout", 50)
    assert stopped.code == 0, stopped.err
    assert "the metadata store does not run: brokers stop without transferring leaderships" in stopped.err
    for number in (1, 2):
        assert (home / f"node-{number}" / ".kafka_cleanshutdown").exists()


# --- without processes ------------------------------------------------------------------------------------


def written(home: Path, nodes: int = 2) -> None:
    """A cluster file of a cluster that does not run, whose first broker has data."""
    members = [{"name": f"node-{number}", "port": 1, "http_port": 1} for number in range(1, nodes + 1)]
    store = {"name": "metadata", "port": 1}
    facts = {"metadata": "zookeeper://127.0.0.1:1", "store": store, "nodes": members, "settings": {}}
    (home / "node-1").mkdir(parents=True)
    (home / "node-1" / "meta.properties").write_text("")
    (home / "cluster.json").write_text(json.dumps(facts))


def test_a_store_whose_directory_is_gone_is_not_started_empty(home: Path) -> None:
    written(home)
    with pytest.raises(ClusterFailed, match="is gone, and with it topics and the cluster's id"):
        start(home, None, {}, patience_s=0)
    with pytest.raises(ClusterFailed, match="is gone"):
        remarks(home)  # nor is it said what starts empty
    assert not (home / "metadata").exists()


def test_another_store_than_that_of_the_cluster_is_refused(command: Command, home: Path) -> None:
    written(home)
    (home / "metadata").mkdir()
    other = command("cluster", "start", home, "--metadata", "zookeeper://127.0.0.1:2")
    assert (
        other.code,
        "has the store zookeeper://127.0.0.1:1, not zookeeper://127.0.0.1:2" in other.err,
    ) == (1, True)


def test_a_broker_whose_directory_is_gone_is_named(home: Path) -> None:
    written(home)
    (home / "metadata").mkdir()
    said = "node-2 has no directory: it starts empty, and copies its replicas from other brokers"
    assert remarks(home) == [said]


def test_directories_of_more_brokers_than_are_asked_for(home: Path) -> None:
    (home / "node-5").mkdir(parents=True)
    with pytest.raises(ClusterFailed, match="directories of 5 brokers; use --nodes 5"):
        start(home, 3, {}, patience_s=0)


def test_a_cluster_file_that_is_damaged(home: Path) -> None:
    home.mkdir()
    (home / "cluster.json").write_text("{")
    with pytest.raises(ClusterFailed, match="the directories keep their data"):
        start(home, None, {}, patience_s=0)
    (home / "cluster.json").unlink()


def test_what_the_supervisor_restarts_meanwhile_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cluster start` writes its settings into the file as it is then, not as it was at first."""
    written(home)
    (home / "metadata").mkdir()
    found: list[int] = []

    def restarted(*_: object) -> None:
        facts = json.loads((home / "cluster.json").read_text())
        facts["nodes"][0]["pid"] = 4_194_305  # above the highest one of Linux
        (home / "cluster.json").write_text(json.dumps(facts))

    def launched(*_: object, **__: object) -> LocalCluster:
        found.extend(node.pid for node in existing(home).nodes)
        assert existing(home).settings == {"num.partitions": "2"}
        raise ClusterFailed("no more")

    monkeypatch.setattr(local_cluster, "_check_store", restarted)
    monkeypatch.setattr(local_cluster, "launch", launched)
    with pytest.raises(ClusterFailed, match="no more"):
        start(home, None, {"num.partitions": "2"}, patience_s=0)
    assert found == [4_194_305, 0]
    assert existing(home).settings == {}, "a start that failed leaves none behind"


def test_a_cluster_is_started_beside_its_running_supervisor(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `cluster kill`, say: the supervisor is no member, and gets no signal."""
    written(home)
    (home / "metadata").mkdir()
    facts = json.loads((home / "cluster.json").read_text())
    facts["supervisor"] = {"name": "supervisor", "port": 0}
    (home / "cluster.json").write_text(json.dumps(facts))

    def launched(*_: object, **__: object) -> LocalCluster:
        raise ClusterFailed("no more")

    monkeypatch.setattr(local_cluster, "is_running", lambda _, member: member.name == "supervisor")
    monkeypatch.setattr(local_cluster, "launch", launched)
    with pytest.raises(ClusterFailed, match="no more"):
        start(home, None, {}, patience_s=0)


class Sleepers:
    """Processes in place of brokers and the store: those named in `ready` say that they are."""

    def __init__(self, *ready: str) -> None:
        self.ready, self.commands = ready, list[str]()

    def spawned(self, command: list[str], home: Path) -> int:
        self.commands.append(" ".join(command))
        Path(f"{home}.out").write_text("\n" if home.name in self.ready else "")
        return os.posix_spawnp("tail", ["tail", "-n", "0", "-f", f"{home}.out"], os.environ)


@pytest.fixture
def sleepers(monkeypatch: pytest.MonkeyPatch) -> Sleepers:
    made = Sleepers("metadata", "node-1", "node-3")
    monkeypatch.setattr(local_cluster, "_spawned", made.spawned)
    return made


def of_state(home: Path) -> dict[str, State]:
    return {each.name: state_of(home, each) for each in existing(home).members}


def test_a_start_that_fails_ends_what_it_started_and_nothing_else(home: Path, sleepers: Sleepers) -> None:
    """Broker 1 ran before. Broker 3 was started and became ready; broker 2 does not."""
    written(home, 3)
    (home / "metadata").mkdir()
    relaunch(home, ["metadata", "node-1"])
    before = existing(home)
    with pytest.raises(ClusterFailed, match="node-2 not ready in 0 s"):
        start(home, None, {"num.partitions": "2"}, patience_s=0, console="--console")
    assert of_state(home) == {
        "metadata": State.RUNNING,
        "node-1": State.RUNNING,
        "node-2": State.STOPPED,
        "node-3": State.STOPPED,
    }
    assert existing(home) == before, "its settings are taken back, too"


def test_a_broker_that_is_added_too_late_is_not_of_the_cluster(home: Path, sleepers: Sleepers) -> None:
    written(home, 1)
    relaunch(home, ["metadata", "node-1"])
    before = existing(home)
    with pytest.raises(ClusterFailed, match="node-2 not ready in 0 s"):
        add(home, patience_s=0)
    assert existing(home) == before
    assert any("node-2" in each for each in sleepers.commands)
    sleepers.ready = ("node-2",)
    assert add(home, patience_s=60).name == "node-2"


def test_two_starts_at_once(home: Path, sleepers: Sleepers) -> None:
    """The second one is refused before it changes anything, also in a new directory."""
    home.mkdir()
    with (
        alone(home),
        pytest.raises(ClusterFailed, match="another logstore cluster start or stop of"),
    ):
        start(home, 1, {}, patience_s=0)
    assert sorted(path.name for path in home.iterdir()) == ["cluster.starting"]
    start(home, 1, {}, patience_s=60)


def test_ctrl_c_right_after_a_process_was_started(
    home: Path, sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the cluster file already, so that the start that is interrupted ends it."""
    started: list[int] = []

    def spawned(command: list[str], at: Path) -> int:
        started.append(sleepers.spawned(command, at))
        os.kill(os.getpid(), signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(local_cluster, "_spawned", spawned)
    with pytest.raises(KeyboardInterrupt):
        start(home, 1, {}, patience_s=60)
    (process,) = started
    with suppress(ChildProcessError):
        os.waitpid(process, os.WNOHANG)  # an ended child may still have its pid
    with pytest.raises(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def test_a_stop_keeps_others_from_starting_members(
    command: Command, home: Path, sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member started meanwhile would be missing from the file that the stop writes, and stay running."""
    start(home, 1, {}, patience_s=60)
    with alone(home):
        refused = command("cluster", "stop", home)
    assert refused.code == 1
    assert "another logstore cluster start or stop of" in refused.err
    assert set(of_state(home).values()) == {State.RUNNING}
    looked: list[Path] = []

    def end(*_: object) -> list[str]:
        looked.append(home)
        with (home / "cluster.lock").open("w") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return []

    with monkeypatch.context() as patched:
        patched.setattr(local_cluster, "_end", end)
        before = existing(home)
        stop(home, patience_s=0)
    assert looked
    cluster_file.write(home, before)


def test_a_process_that_was_reaped_a_moment_ago(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not there, though the signal found it: a stop would report that it had to be killed."""
    monkeypatch.setattr(os, "kill", lambda *_: None)
    assert state_of(home, Member("node-1", 1, pid=4_194_305)) is State.DIED


def test_secrets_in_settings_are_for_the_owner_only(home: Path, sleepers: Sleepers) -> None:
    """Neither files nor command lines show them."""
    secret = "password='hush hush' \\ \u00e9"
    start(home, 1, {"http.basic.password": secret}, patience_s=60)
    assert not [each for each in sleepers.commands if "hush" in each]
    places = [path for path in home.iterdir() if path.is_file() and b"hush" in path.read_bytes()]
    assert sorted(path.name for path in places) == ["cluster.json", "node-1.properties"]
    assert {path.stat().st_mode & 0o777 for path in places} == {0o600}
    assert properties_of(home / "node-1.properties")["http.basic.password"] == secret


def test_names_of_nodes() -> None:
    cluster = LocalCluster("", Member("metadata", 1), (Member("node-1", 2), Member("node-12", 3)))
    assert [named(cluster, word) for word in ("1", "node-12", "metadata")] == [
        "node-1",
        "node-12",
        "metadata",
    ]
    with pytest.raises(ClusterFailed, match="no 2 in this cluster; it has metadata, node-1, node-12"):
        named(cluster, "2")


def answer(*partitions: tuple[int, list[int]]) -> t.MetadataResponse:
    """Metadata of a topic with these leaders and ISRs, on the brokers 1 and 2."""
    found: list[Any] = [
        t.MetadataResponsePartition(
            partition_index=number, leader_id=leader, isr_nodes=isr, replica_nodes=[1, 2]
        )
        for number, (leader, isr) in enumerate(partitions)
    ]
    return t.MetadataResponse(topics=[t.MetadataResponseTopic(name="t", partitions=found)])


@pytest.mark.parametrize(
    ("metadata", "line"),
    [
        (answer((1, [1, 2])), "1, all led and in sync"),
        (
            answer((-1, [1]), (1, [1]), (1, [1, 2])),
            "3, 1 without a leader (t-0); 1 with replicas out of sync (t-1)",
        ),
        (answer(*[(1, [1])] * 5), "5, 5 with replicas out of sync (t-0, t-1, t-2, …)"),
    ],
)
def test_partitions_in_one_line(metadata: t.MetadataResponse, line: str) -> None:
    found = of_metadata(metadata)
    assert str(found) == line
    assert found.are_sound == ("all led" in line)


def test_partitions_that_nobody_tells_of() -> None:
    assert not Counts(error="no broker is running").are_sound
    assert "no broker answers" in str(counted(["127.0.0.1:1"]))
    assert str(counted([])) == "unknown: no broker is running"


def test_a_directory_whose_name_is_no_text(tmp_path: Path) -> None:
    """It was a `UnicodeEncodeError` once the brokers had started."""
    member = Member("node-1", port=1, pid=os.getpid())
    assert state_of(tmp_path / os.fsdecode(b"\xff"), member) is State.DIED


def test_a_directory_with_a_comma_is_refused(tmp_path: Path) -> None:
    """Its brokers took it for two log dirs, in directories that are nobody's."""
    with pytest.raises(ClusterFailed, match="is a list with commas"):
        start(tmp_path / "a,b", 1, {}, patience_s=0)
