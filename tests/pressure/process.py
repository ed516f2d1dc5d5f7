"""A broker or a metadata store in a process of its own, under limits, with what it uses and what it says."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from logstore.broker.limits import Address

ROOT = Path(__file__).parent.parent.parent


class Served:
    """A `logstore` command that serves until it is told to stop."""

    def __init__(self, name: str, directory: Path, arguments: Sequence[str], *, open_files: int = 0) -> None:
        self.name = name
        self._stderr = directory / f"{name}.err"
        self._open_files = open_files
        self._process: asyncio.subprocess.Process | None = None
        self.ready: dict[str, Any] = {}
        keeper = shutil.which("setpriv")
        self._command = [
            *([keeper, "--pdeathsig", "KILL"] if keeper else []),
            *(sys.executable, "-m", "logstore.cli.main", *arguments),
        ]

    async def start(self) -> None:
        """Start, and wait until it says that it serves."""

        def limited() -> None:
            if self._open_files:
                resource.setrlimit(resource.RLIMIT_NOFILE, (self._open_files, self._open_files))

        with self._stderr.open("ab") as stderr:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=asyncio.subprocess.PIPE, stderr=stderr, cwd=ROOT, preexec_fn=limited
            )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 120)
        assert line, self.said[-2000:]
        self.ready = json.loads(line)

    @property
    def address(self) -> Address:
        return Address(self.ready["host"], self.ready["port"])

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def said(self) -> str:
        """Its log."""
        return self._stderr.read_text()

    def _proc(self, name: str) -> Path:
        assert self._process is not None, "started"
        return Path(f"/proc/{self._process.pid}/{name}")

    @property
    def resident_mib(self) -> float:
        (line,) = (each for each in self._proc("status").read_text().splitlines() if each.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    @property
    def descriptors(self) -> int:
        return len(os.listdir(self._proc("fd")))

    @property
    def threads(self) -> int:
        return len(os.listdir(self._proc("task")))

    async def health(self) -> dict[str, Any]:
        """What `/healthz` answers; an error's body counts too."""
        url = f"http://{self.ready['http']}/healthz"

        def read() -> dict[str, Any]:
            with urllib.request.urlopen(url, timeout=30) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found

        return await asyncio.to_thread(read)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal, wait for the end, and return its code."""
        if self._process is None:
            return 0
        if self.is_running:
            self._process.send_signal(number)
        return await asyncio.wait_for(self._process.wait(), 120)


def broker(
    directory: Path,
    node_id: int = 1,
    *,
    metadata: str = "embedded",
    settings: Mapping[str, object] | None = None,
    open_files: int = 0,
) -> Served:
    """A broker under `directory`, with an HTTP port."""
    arguments = [
        *("serve", "--node-id", str(node_id), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        *("--log-dirs", str(directory / f"broker-{node_id}"), "--metadata", metadata),
        *(part for name, value in (settings or {}).items() for part in ("--set", f"{name}={value}")),
    ]
    return Served(f"broker-{node_id}", directory, arguments, open_files=open_files)


def store(directory: Path, *, open_files: int = 0) -> Served:
    """A served metadata store under `directory`."""
    arguments = ["metadata-store", str(directory / "store"), "--listen", "127.0.0.1:0"]
    return Served("store", directory, arguments, open_files=open_files)
