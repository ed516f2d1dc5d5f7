"""`logstore compat` against the broker it speaks of: Apache Kafka comes up, or not, as it says.

The directory is one that Kafka 3.9.1 left in order; a broker of each version starts on copies of it with one
thing planted. Needs Java; the jars come from Maven.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.kafka import asking
from bench.kafka.jars import Missing, jars
from bench.kafka.servers import free_port
from logstore.cli.compat import Effect, Version, findings
from logstore.disk.files import OsDisk
from logstore.log.salvage import Salvage, salvage
from tests.golden.kafka_directories import unpack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RELEASES = {Version.KAFKA_3_9: "3.9.1", Version.KAFKA_4: "4.1.1"}
DEADLINE_S = 90.0
LOG = f"{0:020d}.log"


class Start(NamedTuple):
    """How the broker's start ended, and what it logged."""

    is_up: bool
    output: str


def serves(port: int) -> bool:
    """Whether the broker is registered and answers, which it does when its logs are loaded."""
    try:
        return len(asking.brokers(port)[0]) == 1
    except OSError:
        return False


def start(directory: Path, version: Version) -> Start:
    """Start a broker on the log dir, and stop it as soon as it is up."""
    try:
        classes = jars(RELEASES[version])
    except Missing as error:
        pytest.skip(str(error))
    client, controller = free_port(), free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(directory),
    }
    file, log = directory.parent / "server.properties", directory.parent / "server.out"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with log.open("w") as out:
        command = ["java", "-Xmx512M", "-cp", f"{classes}/*", "kafka.Kafka", str(file)]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    end = time.monotonic() + DEADLINE_S
    is_up = False
    while process.poll() is None and not is_up and time.monotonic() < end:
        time.sleep(0.2)
        is_up = serves(client)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return Start(is_up, log.read_text())


def cut_in_the_middle(directory: Path) -> None:
    """Killed, and a bit flipped in the first batch of three."""
    (directory / ".kafka_cleanshutdown").unlink()
    (directory / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    data = bytearray((directory / "orders-0" / LOG).read_bytes())
    data[100] ^= 1
    (directory / "orders-0" / LOG).write_bytes(data)


class Case(NamedTuple):
    plant: Callable[[Path], object]
    effect: Effect | None
    is_up: bool


CASES = {
    "as it was": Case(lambda directory: None, None, True),
    "lost+found": Case(lambda directory: (directory / "lost+found").mkdir(), Effect.REFUSES, False),
    "a name without a number": Case(
        lambda directory: (directory / "orders-0" / "note.swap").write_bytes(b""), Effect.REFUSES, False
    ),
    "no meta.properties": Case(
        lambda directory: (directory / "meta.properties").unlink(), Effect.REFUSES, False
    ),
    "our own files": Case(
        lambda directory: [
            (directory / "orders-0" / name).write_bytes(b"") for name in (f"{0:020d}.seal", ".lock")
        ],
        None,
        True,
    ),
    "damage before sound batches": Case(cut_in_the_middle, Effect.CUTS, True),
}


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("name", CASES)
def test_the_broker_does_as_compat_says(tmp_path: Path, version: Version, name: str) -> None:
    case = CASES[name]
    directory = unpack("kraft-dir", tmp_path)
    case.plant(directory)
    size = (directory / "orders-0" / LOG).stat().st_size
    effects = {each.effect for each in findings(OsDisk(), str(directory), version)} - {Effect.NOTE}
    assert effects == ({case.effect} if case.effect else set())
    begun = start(directory, version)
    assert begun.is_up == case.is_up, begun.output[-3000:]
    is_cut = (directory / "orders-0" / LOG).stat().st_size < size
    assert is_cut == (case.effect is Effect.CUTS)


@pytest.mark.parametrize("version", RELEASES)
def test_the_broker_takes_a_salvaged_directory(tmp_path: Path, version: Version) -> None:
    """It cuts nothing of it, where it would have cut the damaged one."""
    source, target = unpack("kraft-dir", tmp_path), tmp_path / "saved"
    cut_in_the_middle(source)
    results: list[Salvage] = []
    salvage(OsDisk(), str(source), str(target), results.append)
    sizes = {path: path.stat().st_size for path in target.glob("*/*.log") if "__" not in str(path)}
    assert [each.is_whole for each in results].count(False) == 1
    assert start(target, version).is_up
    assert {path: path.stat().st_size for path in sizes} == sizes
