"""`logstore cluster`: three brokers and their store as a newcomer starts them, uses them, and stops them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from logstore.cli.cluster_file import ClusterFailed, LocalCluster, Member, existing, write
from logstore.cli.local_cluster import add, launch
from logstore.cli.operating import wait_until
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]

ROOT = Path(__file__).parents[2]


def logstore(*arguments: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "logstore.cli.main", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Whatever a test leaves running is ended."""
    directory = tmp_path / "cluster"
    yield directory
    if (directory / "cluster.json").exists():
        logstore("cluster", "stop", directory, "--timeout", 20)


def start(home: Path, nodes: int, *more: object) -> dict[str, Any]:
    code, out, errors = logstore("cluster", "start", "--nodes", nodes, home, "--json", "--timeout", 90, *more)
    assert code == 0, errors
    found: dict[str, Any] = json.loads(out)
    return found


# kafka-python leaves sockets behind where it could not connect, which would fail some later test: so it runs
# in processes of its own.
PRODUCE = """
import sys
from kafka import KafkaProducer

servers, *values = sys.argv[1:]
producer = KafkaProducer(bootstrap_servers=servers.split(","), acks="all")
for sent in [producer.send("t", value.encode(), partition=0) for value in values]:
    sent.get(60)
producer.close()
"""
CONSUME = """
import sys
from kafka import KafkaConsumer, TopicPartition

consumer = KafkaConsumer(bootstrap_servers=sys.argv[1].split(","), auto_offset_reset="earliest")
consumer.assign([TopicPartition("t", 0)])
found = []
while len(found) < int(sys.argv[2]):
    for records in consumer.poll(1000).values():
        found += [record.value.decode() for record in records]
consumer.close()
print(*found, sep="\\n")
"""


def client(program: str, *arguments: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def produce(bootstrap: str, values: list[bytes]) -> None:
    client(PRODUCE, bootstrap, *(value.decode() for value in values))


def consume(bootstrap: str, count: int) -> list[bytes]:
    return [line.encode() for line in client(CONSUME, bootstrap, count)]


def test_three_brokers_are_started_used_stopped_and_started_again(home: Path) -> None:
    facts = start(home, 3, "--set", "min.insync.replicas=2", "--no-supervise")
    assert len(facts["bootstrap"].split(",")) == 3
    made = logstore(
        "topics", "create", "t", "--metadata", facts["metadata"],
        "--partitions", 1, "--replication-factor", 3, "--wait", 30,
    )  # fmt: skip
    assert made[0] == 0, made
    produce(facts["bootstrap"], [b"one", b"two"])
    again = logstore("cluster", "start", "--nodes", 3, home)
    assert (again[0], "stop it first" in again[2]) == (1, True)
    os.kill(facts["pids"]["node-2"], signal.SIGKILL)
    code, out, _ = logstore("cluster", "status", home, "--json")
    assert (code, json.loads(out)["running"]["node-2"]) == (1, False)
    assert logstore("cluster", "stop", home)[0] == 0
    assert logstore("cluster", "status", home)[0] == 1
    back = start(home, 3)
    assert back["bootstrap"] == facts["bootstrap"]
    assert consume(back["bootstrap"], 2) == [b"one", b"two"]
    assert logstore("cluster", "stop", home)[0] == 0


def test_a_store_and_a_broker_that_die_are_started_again(home: Path) -> None:
    facts = start(home, 1)
    for name in ("metadata", "node-1"):
        os.kill(facts["pids"][name], signal.SIGKILL)
        assert wait_until(100, partial(_is_ready_again, home, name, facts["pids"][name]))
    said = (home / "supervisor.log").read_text()
    assert "metadata (process" in said
    assert "node-1 (process" in said
    made = logstore(
        "topics", "create", "t", "--metadata", facts["metadata"],
        "--partitions", 1, "--replication-factor", 1, "--wait", 60,
    )  # fmt: skip
    assert made[0] == 0, made
    produce(facts["bootstrap"], [b"one"])
    assert logstore("cluster", "stop", home)[0] == 0
    code, out, _ = logstore("cluster", "status", home, "--json")
    assert (code, json.loads(out)["running"]) == (1, {"metadata": False, "node-1": False})


def _is_ready_again(home: Path, name: str, old: int) -> bool:
    """Whether there is a new process that has said that it is ready: a broker is registered by then."""
    (pid,) = [each.pid for each in existing(home).members if each.name == name]
    return pid != old and b"\n" in (home / f"{name}.out").read_bytes()


def test_a_secured_cluster_gives_its_clients_what_they_need(home: Path) -> None:
    facts = start(home, 1, "--secured", "--console")
    clients = Path(facts["client_properties"])
    assert [path.stat().st_mode & 0o777 for path in (clients, home / "tls/ca.key")] == [0o600, 0o600]
    create = ("topics", "create", "t", "--bootstrap", facts["bootstrap"])
    code, _, errors = logstore(*create)
    assert code == 1
    assert "--command-config if the listener uses TLS or logins" in errors
    code, _, errors = logstore(*create, "--command-config", clients)
    assert code == 0, errors
    with urlopen(f"http://{facts['http'][0]}/api/overview", timeout=30) as answer:
        assert [each["state"] for each in json.load(answer)["brokers"]] == ["up"], "the console logs in, too"
    with pytest.raises(HTTPError, match="403") as refused:
        urlopen(f"http://{facts['http'][0]}/api/messages?partition=t-0", timeout=30)
    with refused.value as answer:
        assert "records are not shown" in json.load(answer)["error"]
    reach = ("--bootstrap", facts["bootstrap"], "--command-config", clients)
    code, _, errors = logstore("brokers", "drain", 1, *reach)
    assert code == 1
    assert "use logstore cluster drain DIR 1" in errors
    code, out, errors = logstore("cluster", "drain", home, 1)
    assert (code, out) == (1, "")
    assert "broker 1 still leads t-0: it has the only replica" in errors


def test_a_cluster_is_not_secured_later(home: Path) -> None:
    home.mkdir()
    plain: dict[str, object] = {"metadata": "", "store": None, "nodes": [], "settings": {}}
    plain["nodes"] = [{"name": "node-1", "port": 1}]
    (home / "cluster.json").write_text(json.dumps(plain))
    code, _, errors = logstore("cluster", "start", "--nodes", 1, home, "--secured")
    assert code == 1
    assert "has a cluster without security; use another directory" in errors


def test_what_cannot_start_says_why_and_leaves_nothing_running(home: Path) -> None:
    code, _, errors = logstore("cluster", "start", "--nodes", 1, home, "--set", "no.such.setting=1")
    assert code == 1
    assert "no.such.setting" in errors
    assert logstore("cluster", "status", home)[0] == 1
    facts = json.loads((home / "cluster.json").read_text())
    assert facts["store"]["pid"] == 0
    assert logstore("cluster", "stop", home / "elsewhere")[0] == 1


def test_a_port_that_another_program_has_taken_meanwhile(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        store = Member("metadata", taken.getsockname()[1])
        write(tmp_path, LocalCluster(f"zookeeper://127.0.0.1:{store.port}", store, ()))
        with pytest.raises(ClusterFailed) as failed:
            launch(tmp_path, ["metadata"], patience_s=30)
    said = str(failed.value)
    assert f"127.0.0.1:{store.port}: Address already in use; end the program that has the port" in said


@pytest.mark.parametrize("start_one", [add, partial(launch, names=["node-1"])])
def test_a_broker_without_its_store_is_refused_at_once(
    start_one: Callable[..., object], tmp_path: Path
) -> None:
    """It was started, and ended after 30 seconds without an answer."""
    stopped = LocalCluster("zookeeper://127.0.0.1:1", Member("metadata", 1), (Member("node-1", 2),))
    write(tmp_path, stopped)
    with pytest.raises(ClusterFailed, match=f"start it first: logstore cluster start {tmp_path} metadata"):
        start_one(tmp_path, patience_s=60)
    assert existing(tmp_path) == stopped
    assert not (tmp_path / "node-1.out").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "--log-dirs"),
        (("--log-dirs", "d", "--metadata", "zookeeper://127.0.0.1:1"), "--node-id"),
        (("--node-id", 1, "--listen", "nowhere", "--log-dirs", "d"), "host:port"),
        (("--node-id", 1, "--listen", "h:1", "--log-dirs", "d", "--set", "name"), "NAME=VALUE"),
        (("--config", "not-there.properties"), "not-there.properties"),
        (("--node-id", 1, "--set", "broker.id=2"), "--node-id 1, and 2 by --set, contradict each other"),
        (("--log-dirs", "d", "--set", "log.dir=e"), "--log-dirs d, and e by --set, contradict each other"),
    ],
)
def test_a_broker_that_is_told_too_little_or_too_much_is_bad_usage(
    arguments: tuple[object, ...], complaint: str, command: Command
) -> None:
    code, _, errors = command("serve", *map(str, arguments))
    assert code == 2
    assert complaint in errors


@pytest.mark.parametrize(
    "setting", ["log.dirs=/d", "node.id=7", "listeners=PLAINTEXT://127.0.0.1:0", "port=1"]
)
def test_what_a_local_cluster_gives_each_broker_is_not_set(
    home: Path, setting: str, command: Command
) -> None:
    """The brokers' own came first, and the setting had no effect."""
    code, _, errors = command("cluster", "start", home, "--set", setting)
    assert code == 1
    assert f"{setting.partition('=')[0]}: logstore cluster gives each broker its own" in errors
    assert not home.exists()
