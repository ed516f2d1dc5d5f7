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

from bench.kafka.jars import Missing, jars
from bench.kafka.servers import free_port
from logstore.cli.compat import Effect, Version, findings
from logstore.disk.files import OsDisk
from tests.golden.kafka_directories import unpack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RELEASES = {Version.KAFKA_3_9: "3.9.1", Version.KAFKA_4: "4.1.1"}
STARTED, DEADLINE_S = "Kafka Server started", 90.0
LOG = f"{0:020d}.log"


class Start(NamedTuple):
    """How the broker's start ended, and what it logged."""

    is_up: bool
    output: str


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
    (directory.parent / "log4j.properties").write_text(
        "log4j.rootLogger=INFO, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.out.layout.ConversionPattern=%p %m (%c)%n\n"
    )
    with log.open("w") as out:
        command = [
            *("java", "-Xmx512M", f"-Dlog4j.configuration=file:{directory.parent}/log4j.properties"),
            *("-Dlog4j2.level=INFO", "-cp", f"{classes}/*", "kafka.Kafka", str(file)),
        ]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    end = time.monotonic() + DEADLINE_S
    while process.poll() is None and STARTED not in log.read_text() and time.monotonic() < end:
        time.sleep(0.2)
    is_up = process.poll() is None and STARTED in log.read_text()
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
