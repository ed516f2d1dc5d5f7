"""A broker in a process of its own, as `logstore serve` starts it, with its HTTP port."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
COMMAND = [sys.executable, "-m", "logstore.cli.main"]


@contextlib.contextmanager
def served(directory: Path, *options: str) -> Iterator[dict[str, Any]]:
    """Serve until the end; yields what the broker says when it is ready: `host`, `port`, `http`, …"""
    command = [*COMMAND, "serve", "--node-id", "1", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with (
        open(directory / "broker.log", "wb") as log,
        subprocess.Popen(
            [*command, "--log-dirs", str(directory / "data"), *options], stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (directory / "broker.log").read_text()
            yield json.loads(line)
        finally:
            process.terminate()
