"""The files of two logs that were closed in order, and the differences between them.

Seals, the loss ledger and files that wait for their deletion are not compared. Nor are the files of an empty
sealed segment, which a truncation leaves in Kafka's log alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from logstore.format.batch import walk
from logstore.log.producer_state import decode_snapshot
from tests.judge.sides import EXPIRATION_MS, Ours

Content = dict[str, Any]
"""The compared content by the name of its file."""
_SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint")

_NO_EPOCHS: Final = b"0\n0\n"
"""The epoch file of a log that has had no epoch; it may be missing."""


def differing_files(side: Ours, kafka: str, start_offset: int) -> Iterator[str]:
    """Yield the differences between our closed log, which began at `start_offset`, and that in `kafka`."""
    mine, theirs = (_content(path, side.now_ms, start_offset) for path in (side.directory, kafka))
    for name in list(_not_compared(mine, theirs, side.adopted_at)):
        mine.pop(name, None)
        theirs.pop(name, None)
    for name in sorted(mine.keys() | theirs.keys()):
        one, other = mine.get(name), theirs.get(name)
        if one == other or (
            name.endswith(".txnindex") and _is_same_aborted(one or b"", other or b"", start_offset)
        ):
            continue
        # Kafka's cleaner makes new indexes where we leave a segment as it is.
        may_differ = side.was_compacted and name.endswith((".index", ".timeindex"))
        if may_differ and is_sound_index(name, mine) and is_sound_index(name, theirs):
            continue
        yield f"{name}: ours {_shown(one)}, Kafka's {_shown(other)}"


def _content(directory: str, now_ms: int, start_offset: int) -> Content:
    found: Content = {}
    for path in Path(directory).iterdir():
        if not path.name.endswith(_SUFFIXES):
            continue
        data = path.read_bytes()
        if path.suffix == ".snapshot":
            # Neither side would read one at the log start, nor keep producers that are as old as these.
            if int(path.stem) > start_offset:
                found[path.name] = sorted(
                    str((entry.producer_id, entry.epoch, entry.coordinator_epoch, entry.last_timestamp_ms,
                         entry.transaction_first_offset, *entry.batches))
                    for entry in decode_snapshot(data)
                    if entry.transaction_first_offset >= 0
                    or (entry.epoch >= 0 and now_ms - entry.last_timestamp_ms < EXPIRATION_MS)
                )  # fmt: skip
        elif (data and data != _NO_EPOCHS) or path.suffix == ".log":
            found[path.name] = data
    return found


def _not_compared(mine: Content, theirs: Content, adopted_at: int) -> Iterator[str]:
    names = sorted(mine.keys() | theirs.keys())
    for content in (mine, theirs):
        logs = sorted(name for name in content if name.endswith(".log"))
        empty = {name[:20] for name in logs[:-1] if not content[name]}
        yield from (name for name in names if name[:20] in empty)
    # Snapshots of an earlier stop: the next opening removes them.
    snapshots = [name for name in names if name.endswith(".snapshot")]
    yield from (name for name in snapshots[:-1] if f"{name[:20]}.log" not in mine)
    yield from (name for name in snapshots if int(name[:20]) < adopted_at)


def _is_same_aborted(ours: bytes, kafka: bytes, start_offset: int) -> bool:
    """Compare two indexes of aborted transactions.

    In an append of many batches, Kafka's stable offset knows transactions that begin behind a marker. When
    Kafka reads a segment again, a transaction that began below the log start begins later, or is not known.
    """
    entries = ((each[:2], *each[2:]) for each in struct.iter_unpack(">hqqqq", kafka))
    theirs = {(whose, last): (first, stable) for whose, first, last, stable in entries}
    for version, producer_id, first, last, stable in struct.iter_unpack(">hqqqq", ours):
        known_first, known_stable = theirs.pop(((version, producer_id), last), (2**62, stable))
        if not (first == known_first or first < start_offset <= known_first) or stable > known_stable:
            return False
    return not theirs


def is_sound_index(name: str, content: Content) -> bool:
    """Return whether each entry of the index `name` describes a batch of its segment."""
    base_offset, is_of_times = int(name[:20]), name.endswith(".timeindex")
    described: dict[int, int] = {}
    position, largest_ms = 0, -1
    for batch in walk(content[f"{name[:20]}.log"]):
        described[batch.last_offset - base_offset] = batch.max_timestamp_ms if is_of_times else position
        position += batch.size
        largest_ms = max(largest_ms, batch.max_timestamp_ms)
    rows = [*struct.iter_unpack(">qi" if is_of_times else ">ii", content.get(name, b""))]
    entries = [(row[1], row[0]) for row in rows] if is_of_times else rows
    is_complete = not is_of_times or max([-1, *(at for _, at in entries)]) == largest_ms
    return is_complete and all(described.get(delta) == at for delta, at in entries)


def _shown(content: Any) -> str:
    if isinstance(content, bytes):
        return f"{len(content)} bytes, the last are {content[-72:].hex()}"
    return str(content)
