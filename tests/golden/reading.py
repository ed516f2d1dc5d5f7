"""The golden vectors: bytes that Apache Kafka's own classes read, and mostly wrote, with what they mean.

`vectors/vectors.json` lists header fields, derived values and records of each file beside it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent / "vectors"
ALL: dict[str, Any] = json.loads((VECTORS / "vectors.json").read_text(encoding="utf-8"))
BATCHES: list[dict[str, Any]] = ALL["batches"]
STREAMS: list[dict[str, Any]] = ALL["streams"]
FILES: dict[str, dict[str, Any]] = {entry["file"]: entry for entry in ALL["files"]}


def content(name: str) -> bytes:
    """The bytes of a vector file."""
    return (VECTORS / name).read_bytes()


def named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The vector of that name."""
    return next(entry for entry in entries if entry["name"] == name)


def same_blob(actual: bytes | None, listed: dict[str, Any] | None) -> bool:
    """Whether bytes are those that the listing describes: literally, as a pattern, or by digest."""
    if actual is None or listed is None:
        return actual is None and listed is None
    if "sha256" in listed:
        digest = hashlib.sha256(actual).hexdigest()
        return (len(actual), digest) == (listed["length"], listed["sha256"])
    if "repeat_hex" in listed:
        return bytes.fromhex(listed["repeat_hex"]) * int(listed["times"]) == actual
    return bytes.fromhex(listed["hex"]) == actual
