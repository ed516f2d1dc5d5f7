"""Log dirs that Apache Kafka 3.9.1 wrote, as files in memory.

`kraft-dir` is the data directory of one KRaft broker: ordinary, compacted and internal topics, its metadata
with snapshots, and two deleted partitions. `kafka-logs` has more segments: `plain` is not compressed, `mixed`
has every codec, `deals` has transactions of which every other one was aborted, `keyed` was compacted.
"""

from __future__ import annotations

import tarfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent / "operators"


@cache
def directory(name: str) -> dict[str, bytes]:
    """The files of a log dir, by their path in it."""
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        files = {}
        for member in archive.getmembers():
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                files[member.name.partition("/")[2]] = content.read()
    return files


def unpack(name: str, target: Path) -> Path:
    """Write the log dir below `target`, and return its path."""
    for path, content in directory(name).items():
        (target / name / path).parent.mkdir(parents=True, exist_ok=True)
        (target / name / path).write_bytes(content)
    return target / name
