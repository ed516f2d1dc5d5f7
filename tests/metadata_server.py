"""The embedded metadata store, served on the loopback: by a thread of this process, or by one of its own."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from logstore.broker.limits import Address
from logstore.broker.metadata.entrance import read_entrance
from logstore.broker.metadata.server import MetadataServer, session_secret
from logstore.cli.ports import free_ports
from logstore.disk.files import Disk, SteadyClock
from logstore.disk.memory import MemoryDisk
from logstore.replication.metastore.embedded import EmbeddedStore

DEADLINE_S = 30.0


@contextmanager
def served(
    disk: Disk | None = None, directory: str = "/meta", settings: Mapping[str, str] | None = None
) -> Iterator[int]:
    """The port of a server over a store in memory, or on `disk`."""
    ports: list[int] = []
    is_up, is_over = threading.Event(), threading.Event()

    async def serve(stop: list[asyncio.Event]) -> None:
        clock, ground = SteadyClock(), disk or MemoryDisk()
        with EmbeddedStore(directory, disk=ground, journal_limit=1 << 14, sessions_from_ms=clock()) as store:
            secret = session_secret(directory, disk=ground, random=random.Random(0))
            entrance = read_entrance(settings or {})
            server = MetadataServer(store, clock=clock, secret=secret, entrance=entrance)
            ports.append((await server.listen(Address("127.0.0.1", 0))).port)
            stop.append(asyncio.Event())
            is_up.set()
            await stop[0].wait()
            server.close()

    stop: list[asyncio.Event] = []
    loop = asyncio.new_event_loop()

    def run() -> None:
        try:
            loop.run_until_complete(serve(stop))
        finally:
            loop.close()
            is_up.set()
            is_over.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert is_up.wait(DEADLINE_S)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop[0].set)
        assert is_over.wait(DEADLINE_S)
        thread.join(DEADLINE_S)


class StoreProcess:
    """The served store in a process; it may be stopped, killed, paused and started again on the same data."""

    def __init__(self, directory: Path, *, log_file: Path | None = None) -> None:
        """Its log goes to stderr, or to a file."""
        (self.port,) = free_ports(1)
        self._log = ("--log-file", str(log_file)) if log_file is not None else ()
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"zookeeper://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it says where it listens; on the same port as before."""
        assert self._process is None, "already running"
        command = [
            *([keeper, "--pdeathsig", "KILL"] if (keeper := shutil.which("setpriv")) else []),
            *(sys.executable, "-m", "logstore.cli.main", "metadata-store", str(self._directory)),
            *("--listen", f"127.0.0.1:{self.port}", *self._log),
        ]
        root = Path(__file__).parents[1]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it ended at once"
        self.port = json.loads(line)["port"]

    def stop(self) -> None:
        assert self._end(signal.SIGTERM) in (None, 0)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        assert self._process is not None, "running"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None, "running"
        self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> int | None:
        if self._process is None:
            return None
        process, self._process = self._process, None
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        process.stdout.close()
        return process.wait(DEADLINE_S)
