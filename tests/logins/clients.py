"""Other projects' clients as programs: each logs in as it is told, writes, reads, and says what came of it.

A program gets JSON: `bootstrap`, `protocol`, `mechanism` ("" for none), `user`, `password`, `token`, `ca`
and `cert` (files in PEM, "" for none), `topic`, `count`, `pause_s`; `by_token` where user and password are
those of a delegation token. It writes the numbers below `count` to partition 0, each after the answer to the
one before and a pause, and reads them again. It prints
`{"written": n, "read": n}` or `{"error": text}`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from bench.kafka.jars import Missing, jars

HERE: Final = Path(__file__).parent
VERSION: Final = "3.9.1"
PATIENCE_S: Final = 120


def _needs(program: str, package: str) -> None:
    if shutil.which(program) is None:
        raise Missing(f"{program} is not installed: apt-get install {package}")


def _run(command: Sequence[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise Missing(f"{' '.join(command)} failed: {(done.stdout + done.stderr)[-500:]}")


@cache
def _build() -> Path:
    """A directory for what is compiled and downloaded, kept until the process ends."""
    made = tempfile.TemporaryDirectory(prefix="logins-")
    _kept.append(made)
    return Path(made.name)


_kept: Final[list[tempfile.TemporaryDirectory[str]]] = []


@cache
def _java() -> list[str]:
    found, classes = jars(VERSION), _build() / "java"
    _needs("javac", "default-jdk-headless")
    source = HERE / "java" / "Logins.java"
    _run(["javac", "-cp", f"{found}/*", "-d", str(classes), str(source)], HERE)
    quiet = "-Dlog4j.configuration=file:/dev/null"
    return ["java", "-Xmx256M", "-XX:TieredStopAtLevel=1", quiet, "-cp", f"{classes}:{found}/*", "Logins"]


@cache
def _franz_go() -> list[str]:
    _needs("go", "golang-go")
    home = _build() / "franz_go"
    shutil.copytree(HERE / "franz_go", home)
    _run(["go", "mod", "tidy"], home)
    _run(["go", "build", "-o", "logins", "."], home)
    return [str(home / "logins")]


@cache
def _kafkajs() -> list[str]:
    _needs("npm", "npm")
    home = _build() / "kafkajs"
    shutil.copytree(HERE / "kafkajs", home)
    _run(["npm", "install", "--silent", "--no-audit", "--no-fund"], home)
    return ["node", "--no-deprecation", str(home / "client.js")]


def _python(name: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-W", "ignore", str(HERE / "python_clients.py"), name]


CLIENTS: Final[dict[str, Callable[[], list[str]]]] = {
    "java": _java,
    "librdkafka": _python("librdkafka"),
    "kafka-python": _python("kafka-python"),
    "aiokafka": _python("aiokafka"),
    "franz-go": _franz_go,
    "kafkajs": _kafkajs,
}
"""The command of each client; raises `Missing`."""


def answer(client: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Run a client; return what it says. Raises `Missing`."""
    command = [*CLIENTS[client](), json.dumps(spec)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said
