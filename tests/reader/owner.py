"""A process that owns a log and does everything to it: appends, rolls, cuts, restarts, deletes, compacts.

    python -m tests.reader.owner DIR SEED OPERATIONS SECONDS

Ends after so many operations and so many seconds, whichever is later. Every value names the offset at which
it was written and a checksum of itself, so that whoever reads it can tell that it is what it says. Each
fifth offset has a key of its own: no compaction may take it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from random import Random
from zlib import crc32

from logstore import Log, LogConfig
from logstore.format.record import Record
from logstore.log.truncate import truncate_fully_and_start_at

KEPT_EVERY = 5
CONFIG = LogConfig.from_kafka(
    {
        "segment.bytes": "6000",
        "index.interval.bytes": "200",
        "cleanup.policy": "compact,delete",
        "retention.bytes": "60000",
        "retention.ms": "-1",
        "min.cleanable.dirty.ratio": "0.1",
        "file.delete.delay.ms": "0",
    }
)


def value_at(offset: int, generation: int) -> bytes:
    """What is written at `offset` in the log's `generation`-th history."""
    text = b"%d %d " % (offset, generation)
    text += b"." * (offset % 37)
    return b"%s%08x" % (text, crc32(text))


def offset_of(value: bytes) -> int:
    """The offset that a value says; `AssertionError` for one that nobody wrote."""
    text, checksum = value[:-8], value[-8:]
    assert b"%08x" % crc32(text) == checksum, f"nobody wrote {value!r}"
    return int(text.split()[0])


def key_at(offset: int, random: Random) -> bytes:
    return b"kept %d" % offset if offset % KEPT_EVERY == 0 else b"key %d" % random.randrange(20)


def maintain(log: Log) -> int:
    """`Log.maintain`; returns how many records it compacted away, each of which has to have a later one."""
    before = {record.offset: record.key for record in log.read()}
    log.maintain()
    after = {record.key: record.offset for record in log.read()}
    left = {record.offset for record in log.read()}
    went = [offset for offset in before if offset >= log.log_start_offset and offset not in left]
    for offset in went:
        assert after.get(before[offset], -1) > offset, f"the only record of {before[offset]!r} went"
    return len(went)


def doubled(log: Log) -> list[bytes | None]:
    """Keys that are there more than once where the log has been compacted."""
    clean = Counter(record.key for record in log.read() if record.offset < log.partition.first_dirty_offset)
    return [key for key, count in clean.items() if count > 1]


def one_step(log: Log, random: Random, bases: list[int], generation: int, done: Counter[str]) -> int:
    """One thing that an owner does; returns the generation of the history after it.

    `done` counts the compactions, and the records that they replaced.
    """
    end, start = log.log_end_offset, log.log_start_offset
    steps = {"append": 60, "roll": 3, "cut": 2, "delete": 1, "maintain": 4, "restart": 0.1}
    match random.choices(list(steps), list(steps.values()))[0]:
        case "append":
            records = [
                Record(0, 1_700_000_000_000 + end, key_at(offset, random), value_at(offset, generation))
                for offset in range(end, end + random.randint(1, 8))
            ]
            bases.append(end)
            log.append(records)
        case "roll":
            log.partition.roll()
        case "cut" if kept := [base for base in bases[-20:] if base >= start]:
            # Between two batches: a cut inside one leaves a gap, and nobody could tell it from a skip.
            generation += 1
            log.truncate_to(random.choice(kept))
            bases[:] = [base for base in bases if base < log.log_end_offset]
        case "delete":
            log.delete_records(random.randint(start, (start + end) // 2))
        case "maintain":
            replaced = maintain(log)
            done["replaced"] += replaced
            done["compactions"] += replaced > 0
        case "restart":
            generation += 1
            bases.clear()
            truncate_fully_and_start_at(log.partition, end + random.randrange(100))
    return generation


def main(directory: str, seed: int, operations: int, seconds: float) -> None:
    random = Random(seed)
    bases: list[int] = []
    generation = steps = 0
    done: Counter[str] = Counter()
    until = time.monotonic() + seconds
    with Log.open(directory, CONFIG) as log:
        print("ready", flush=True)
        while steps < operations or time.monotonic() < until:
            generation = one_step(log, random, bases, generation, done)
            steps += 1
    print(steps, generation, done["compactions"], done["replaced"], flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
