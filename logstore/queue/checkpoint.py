"""The checkpoint of a topic: its state as one small file, so that opening reads a bounded number of events.

    <topic>.checkpoint      one record batch, whose checksum covers it; replaced whole (`publish`)
    ┌──────────────┬───────────────────────────────────────────────────────────────────┐
    │ key          │ value                                                             │
    ├──────────────┼───────────────────────────────────────────────────────────────────┤
    │ bounds       │ JSON: version, next_offset, events_offset, keys_offset, is_clean  │
    │ unfinished   │ int64 each: the offsets below next_offset, ascending              │
    │ deliveries   │ int32 for each of them                                            │
    │ delays       │ int64 pairs: offset, not before (ms)                              │   little-endian
    │ keys         │ the keys of the deduplication window (`recent_keys.py`)           │
    │ leases, cuts │ of shared queues: int64 pairs, offset, until (ms); int64          │
    └──────────────┴───────────────────────────────────────────────────────────────────┘

Events at or past `events_offset` happened after it, and messages at or past `keys_offset` may have keys that
it does not know. Messages and events below these bounds were synced before it was written. `is_clean`: the
queue was closed, and nobody can have died with one of its unfinished messages in hand.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

import numpy as np

from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import Disk, publish, read_small_file
from logstore.errors import CorruptBatch, InvalidRecord
from logstore.format.batch import Batch, encode_batch_of_pairs
from logstore.queue.state import QueueState

CHECKPOINT_SUFFIX: Final = ".checkpoint"
VERSION: Final = 1
_LARGEST_BYTES: Final = (1 << 31) - 1
_BOUNDS: Final = {"version", "next_offset", "events_offset", "keys_offset", "is_clean"}


class Checkpoint(NamedTuple):
    """A topic's state, and its positions in the logs."""

    state: QueueState
    events_offset: int
    keys_offset: int
    is_clean: bool
    keys: bytes = b""


def encode_checkpoint(checkpoint: Checkpoint, *, is_shared: bool = False) -> bytes:
    """Return the file's bytes. It has leases if these outlive their process, in a shared queue."""
    state = checkpoint.state
    count = len(state.unfinished)
    bounds = {
        "version": VERSION,
        "next_offset": state.next_offset,
        "events_offset": checkpoint.events_offset,
        "keys_offset": checkpoint.keys_offset,
        "is_clean": checkpoint.is_clean,
    }
    parts = [
        (b"bounds", json.dumps(bounds).encode()),
        (b"unfinished", np.fromiter(state.unfinished, "<i8", count).tobytes()),
        (b"deliveries", np.fromiter(state.unfinished.values(), "<i4", count).tobytes()),
        (b"delays", np.array(list(state.delays.items()), "<i8").tobytes()),
        (b"keys", checkpoint.keys),
    ]
    if is_shared:
        leases = np.array(list(state.leases.items()), "<i8").tobytes()
        parts += [(b"leases", leases), (b"cuts", state.cuts.to_bytes(8, "little"))]
    return encode_batch_of_pairs(parts)


def decode_checkpoint(data: bytes, path: str) -> Checkpoint:
    """Return what `encode_checkpoint` wrote. Raises `CorruptCheckpoint` for anything else."""
    try:
        batch = Batch(data)
        batch.check_crc()
        parts = {record.key: record.value or b"" for record in batch.records()}
        bounds = json.loads(parts[b"bounds"])
        if bounds.keys() != _BOUNDS or bounds["version"] != VERSION:
            raise CorruptCheckpoint(
                f"{path}: version {bounds.get('version')} is not supported, only version {VERSION}"
            )
        state = QueueState.restored(
            bounds["next_offset"],
            np.frombuffer(parts[b"unfinished"], "<i8").tolist(),
            np.frombuffer(parts[b"deliveries"], "<i4").tolist(),
            np.frombuffer(parts[b"delays"], "<i8").reshape(-1, 2).tolist(),
        )
        for offset, until_ms in np.frombuffer(parts.get(b"leases", b""), "<i8").reshape(-1, 2).tolist():
            state.leases.set(offset, until_ms)
        state.cuts = int.from_bytes(parts.get(b"cuts", b""), "little")
        return Checkpoint(
            state, bounds["events_offset"], bounds["keys_offset"], bounds["is_clean"], parts[b"keys"]
        )
    except (CorruptBatch, InvalidRecord, ValueError, KeyError) as error:
        raise CorruptCheckpoint(
            f"{path} is damaged ({error}); restore it, or remove it: then every message that is still stored "
            "is delivered again, also acknowledged ones"
        ) from error


def read_checkpoint(disk: Disk, path: str) -> Checkpoint | None:
    """Read the file; None if it does not exist. Raises `CorruptCheckpoint`, `OSError`."""
    data = read_small_file(disk, path, limit=_LARGEST_BYTES)
    return None if data is None else decode_checkpoint(data, path)


def write_checkpoint(disk: Disk, directory: str, topic: str, checkpoint: Checkpoint) -> None:
    """Replace the topic's file durably. Raises `OSError`."""
    publish(disk, directory, f"{topic}{CHECKPOINT_SUFFIX}", encode_checkpoint(checkpoint))
