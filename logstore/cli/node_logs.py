"""The last lines of the logs of a cluster's node, for `logstore cluster logs`."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path


def last_lines(directory: Path, name: str, count: int) -> list[dict[str, object]]:
    """Return the last lines of a node's log, and what its process last printed; the oldest first."""
    found: deque[dict[str, object]] = deque(maxlen=count)
    paths = [directory / f"{name}.{suffix}" for suffix in ("log.1", "log", "err")]
    written = {path: path.stat().st_mtime_ns for path in paths if path.exists()}
    for path in sorted(written, key=lambda path: written[path]):
        with path.open(errors="backslashreplace") as lines:
            found.extend(map(_parsed, lines))
    return list(found)


def _parsed(line: str) -> dict[str, object]:
    try:
        parsed = json.loads(line)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"message": line.rstrip("\n")}
