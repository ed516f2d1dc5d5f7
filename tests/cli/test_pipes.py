"""Readers of a command's output that exit, and connections that break: only the former end it quietly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.cli.certs import make_certificates
from logstore.log.log import Log
from tests.metadata_server import served

COMMAND = (sys.executable, "-m", "logstore.cli.main")
IMPATIENT = (
    "import logstore.cli.cluster_state as state, logstore.cli.main as command; "
    "state.OPENING_S = 1.0; command.main()"
)
BY_PIPE = -signal.SIGPIPE


def test_a_store_that_closes_the_connection_is_reported(tmp_path: Path) -> None:
    """The write to it ended the process by SIGPIPE, without a word."""
    make_certificates(tmp_path, {"broker": ["127.0.0.1"], "one": [], "eve": []})
    trust = f"ssl.truststore.location={tmp_path / 'ca.pem'}"
    settings = {
        "ssl.keystore.location": str(tmp_path / "broker.pem"),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.client.auth": "required",
        "super.users": "User:CN=one",
    }
    own = (f"zookeeper.{trust}", f"zookeeper.ssl.keystore.location={tmp_path / 'eve.pem'}")
    (tmp_path / "eve").write_text("\n".join(("zookeeper.ssl.client.enable=true", *own)))
    with served(settings=settings) as port:
        words = ("users", "list", "--metadata", f"zookeeper://127.0.0.1:{port}")
        done = subprocess.run(
            (sys.executable, "-c", IMPATIENT, *words, "--command-config", tmp_path / "eve"),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 1, done
    assert done.stderr.startswith("logstore: the metadata store ("), done


@pytest.mark.parametrize("words", [("cat",), ("dump", "--json"), ("cat", "--follow")], ids=" ".join)
def test_a_reader_that_exits_ends_a_command_quietly(tmp_path: Path, words: tuple[str, ...]) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        for _ in range(300):
            log.append([b"x" * 1000] * 10)
    command = subprocess.Popen(
        (*COMMAND, *words, tmp_path / "orders-0"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.readline()
    command.stdout.close()
    assert command.wait(60) == BY_PIPE
    assert command.stderr.read() == b""
    command.stderr.close()


def test_errors_nobody_reads_end_it_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run((*COMMAND, "cat", "/nonexistent"), stderr=writer, timeout=60)
    os.close(writer)
    assert done.returncode == BY_PIPE
