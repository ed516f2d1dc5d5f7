"""A Java program beside Apache Kafka's classes: one JSON line in, one JSON line out."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from bench.kafka.jars import Missing, compile_java, jars

RELEASE: Final = "4.1.1"


class JavaProcess:
    """The process, compiled from source files; the last one has `main`."""

    def __init__(self, *sources: Path, release: str = RELEASE) -> None:
        """Compile and start the program beside Apache Kafka `release`. Raises `Missing`."""
        found = jars(release)
        self._scratch = tempfile.TemporaryDirectory(prefix="judge-")
        classes = f"{self._scratch.name}:{found}/*"
        compile_java(found, Path(self._scratch.name), *sources)
        self._process = subprocess.Popen(
            ["java", "-Xmx256M", "-XX:TieredStopAtLevel=1", "-ea", "-cp", classes, sources[-1].stem],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._scratch.cleanup()

    def ask(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Send an operation and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(operation) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def while_tested(source: Path, *, release: str) -> Iterator[JavaProcess]:
    """Yield the process of a module's fixture, and end it; skip the tests where the jars are missing."""
    try:
        process = JavaProcess(source, release=release)
    except Missing as reason:
        pytest.skip(str(reason))
    yield process
    process.end()
