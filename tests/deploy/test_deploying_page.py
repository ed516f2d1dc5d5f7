"""docs/deploying.md as an operator follows it: its commands, in order, on real broker processes under load.

`systemctl` and `rm` act on the processes of a local cluster; what is said to be done on each host is done for
each broker. Everything else is the page's.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from functools import partial
from pathlib import Path

import pytest

from logstore.broker.blocking import BlockingClient
from logstore.broker.limits import Address
from logstore.checkpoint import parse_offset_checkpoint
from logstore.cli import local_cluster
from logstore.cli.cluster_file import existing
from logstore.cli.main import run
from logstore.cli.operating import security_of
from logstore.disk.errors import EngineError
from tests.deploy.serving import ROOT, served
from tests.page_runner import blocks_of
from tests.zookeeper import eventually

PAGE = ROOT / "docs" / "deploying.md"
DATA, BACKUP = "/var/lib/logstore/data", "/var/lib/logstore/monday"
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "zookeeper.session.timeout.ms": "6000",
    "replica.high.watermark.checkpoint.interval.ms": "500",
}


def commands() -> Iterator[str]:
    """The lines of the page's text blocks that are commands, from `## Start` on."""
    lines = PAGE.read_text().splitlines()
    start = lines.index("## Start") + 1
    for block in blocks_of(PAGE):
        if block.language == "text" and block.line > start:
            yield from (line for line in block.code.splitlines() if not line.startswith("nothing is wrong"))


class Load(threading.Thread):
    """Appends with acks=all, and keeps what was acknowledged."""

    def __init__(self, addresses: list[Address]) -> None:
        super().__init__(daemon=True)
        self._addresses, self._ends = addresses, threading.Event()
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        with BlockingClient(self._addresses) as client:
            while not self._ends.is_set():
                value = b"%d" % len(self.acknowledged)
                try:
                    client.append("orders", value)
                except EngineError:
                    continue  # its fate is unknown: it may be there once more
                self.acknowledged.append(value)
                self._ends.wait(0.01)

    def end(self) -> None:
        self._ends.set()
        self.join()


class Operator:
    """Carries out the page's lines."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.cluster = local_cluster.start(directory, 3, SETTINGS, patience_s=60)
        self.addresses = [Address("127.0.0.1", node.port) for node in self.cluster.nodes]
        self.load = Load(self.addresses)
        self.hosts = ["one", "two", "three"]
        self.output = ""
        self._fourth = stack.enter_context(ExitStack())
        self._variables: dict[str, str] = {}

    def data_of(self, host: str) -> Path:
        """The log dir of a host's broker."""
        return self.directory / ("four/data" if host == "four" else self._name(host))

    def _name(self, host: str) -> str:
        return f"node-{self.hosts.index(host) + 1}"

    def carry_out(self, line: str) -> None:
        """Do what a line of the page says."""
        command, _, where = line.partition("  #")
        if match := re.fullmatch(r'(\w+)="(.*)"', command):
            self._variables[match[1]] = match[2]
            return
        if "on four" in where:
            self.hosts.append("four")
        named = re.search(r"on (three|four)\b", where)
        hosts = [named[1]] if named else self.hosts
        match self._words(command):
            case ["systemctl", *rest]:
                for host in hosts:
                    self._systemctl(rest[0], host)
            case ["rm", "-r", data]:
                assert data == DATA
                for host in hosts:
                    shutil.rmtree(self.data_of(host))
            case ["sed", *_]:
                subprocess.run(["bash", "-c", command], cwd=self.directory, check=True)
            case ["until", "logstore", *arguments]:
                asked = arguments[: arguments.index("do")]
                asked[-1] = asked[-1].rstrip(";")
                eventually(lambda: self._logstore(asked) == 0, command)
            case ["logstore", *arguments] if DATA in arguments:
                for host in hosts:
                    places = {DATA: str(self.data_of(host)), BACKUP: str(self.directory / f"monday-{host}")}
                    assert self._logstore([places.get(each, each) for each in arguments]) == 0, self.output
            case ["logstore", *arguments]:
                target = arguments[-1] if arguments[-2] == ">" else ""
                assert self._logstore(arguments[:-2] if target else arguments) == 0, self.output
                if target:
                    (self.directory / target).write_text(self.output)
            case _:
                raise AssertionError(f"no runner for this line of the page: {line}")

    def _words(self, command: str) -> list[str]:
        for name, value in self._variables.items():
            command = command.replace(f"${name}", value)
        for host, address in zip(self.hosts, self.addresses, strict=False):
            command = command.replace(f"{host}.example.org:9092", str(address))
        return shlex.split(command)

    def _logstore(self, arguments: list[str]) -> int:
        """Run the verb; its files are in the directory of the test."""
        is_file = re.compile(r"[\w-]+\.(json|properties)")
        placed = [str(self.directory / each) if is_file.fullmatch(each) else each for each in arguments]
        with redirect_stdout(io.StringIO()) as out:
            code = run(placed)
        self.output = out.getvalue()
        return code

    def _systemctl(self, action: str, host: str) -> None:
        """A restart waits until the cluster is well again, as the page says."""
        if action in ("stop", "restart"):
            if host == "four":
                self._fourth.close()
            else:
                local_cluster.send_signal(self.directory, self._name(host), signal.SIGTERM)
                eventually(lambda: not self._is_running(host), f"the end of {host}")
        if action != "stop" and not self._is_running(host):
            if host == "four":
                self._serve_fourth()
            else:
                local_cluster.launch(self.directory, [self._name(host)], patience_s=60)
        if action == "restart":
            self.carry_out("until logstore health $CLUSTER; do sleep 5; done")

    def _serve_fourth(self) -> None:
        place = self.directory / "four"
        place.mkdir(exist_ok=True)
        settings = [word for each in SETTINGS.items() for word in ("--set", "=".join(each))]
        options = ["--metadata", self.cluster.metadata, "--node-id", "4", *settings]
        self._fourth.enter_context(served(place, *options))

    def _is_running(self, host: str) -> bool:
        if host == "four":
            return False
        members = existing(self.directory).nodes
        (member,) = (each for each in members if each.name == self._name(host))
        return local_cluster.is_running(self.directory, member)

    def has_checkpointed(self, count: int) -> bool:
        """Whether the brokers' checkpoints have high watermarks for so many records, with each replica."""
        total = 0
        for host in self.hosts:
            data = (self.data_of(host) / "replication-offset-checkpoint").read_bytes()
            total += sum(
                end for known, end in parse_offset_checkpoint(data).items() if known.topic == "orders"
            )
        return total >= 3 * count


def test_the_settings_of_the_page_have_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the certificates that the page makes."""
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(PAGE)
    (certs,) = (block.code for block in blocks if block.language == "sh")
    assert run(shlex.split(certs)[1:]) == 0
    broker, client = (block.code for block in blocks if block.language == "properties")
    (tmp_path / "server.properties").touch(mode=0o600)
    (tmp_path / "server.properties").write_text(broker.replace("/etc/logstore", str(tmp_path / "tls")))
    code = run(["security", "check", "--config", "server.properties"])
    assert code == 0, capsys.readouterr().out
    (tmp_path / "admin.properties").write_text(client.replace("/etc/logstore", str(tmp_path / "tls")))
    assert security_of(tmp_path / "admin.properties") is not None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_operator_follows_the_page_and_loses_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stack.callback(local_cluster.stop, tmp_path, patience_s=60)
        operator = Operator(tmp_path, stack)
        (tmp_path / "admin.properties").write_text("security.protocol=PLAINTEXT\n")
        (topics,) = (block.code for block in blocks_of(PAGE) if block.language == "json")
        (tmp_path / "topics.json").write_text(topics)
        load = operator.load
        backed_up = 0
        for line in commands():
            if line.startswith("logstore snapshot"):
                load.end()
                backed_up = len(load.acknowledged)
                eventually(
                    partial(operator.has_checkpointed, backed_up), "checkpoints of what was acknowledged"
                )
            operator.carry_out(line)
            if line.startswith("logstore topics describe"):
                assert operator.output.count("isr") == 6
                load.start()
            elif line.startswith("until logstore health"):
                assert operator.output.startswith("nothing is wrong: "), operator.output
            elif line.startswith("logstore reassign verify"):
                assert "4" in (tmp_path / "plan.json").read_text()
        assert backed_up == len(load.acknowledged) > 50
        with BlockingClient(operator.addresses) as client:
            found = {record.value for number in range(6) for record in client.scan("orders", number)}
        assert set(load.acknowledged) - found == set()
