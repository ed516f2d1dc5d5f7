"""One judge: recover, verify, `dump --verify`, the reader and Spark's source agree on random damages.

Of our own directory, and of partitions that Kafka wrote. They have no seals and no checkpoints beside them:
a partition that was copied from somewhere. `SLOW=1000` draws that many damages;
`tests/spark/test_one_verdict.py` asks the source in a session of Spark.
"""

from __future__ import annotations

import os
import random

import pytest

from logstore.disk.files import Disk
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.segment.damage import Verdict
from logstore.segment.segment import file_name
from logstore.testing.disks import MemoryDisk
from tests.logstore import test_salvage as kafka
from tests.logstore.verdicts import PARTS, spark_read

DIRECTORY = "/copied/orders-0"
COUNT = int(os.environ.get("SLOW", "60"))
KNOWN = () if COUNT > 999 else (68, 99, 100, 238, 354, 725, 900)
"""Seeds on which they once disagreed."""


def whole() -> dict[str, bytes]:
    """Three segments of several batches each, of two epochs, with a gap that a compaction left."""
    files: dict[str, bytes] = {}
    offset = 0
    for base_offset in (0, 20, 45):
        data = b""
        while offset < base_offset + 18:
            count = 1 + offset % 3
            records = [
                Record(offset + each, 1000 + offset, b"k", b"value %d" % each) for each in range(count)
            ]
            data += encode_batch(records, base_offset=offset, leader_epoch=offset // 30)
            offset += count + (offset == 23)
        files[file_name(base_offset, ".log")] = data
        offset = base_offset + 20 if base_offset == 0 else 45
    return files


def damaged(seed: int) -> dict[str, bytes]:
    """A flipped bit, a block of zeros or noise, a cut, or an appended piece, in one of the segments."""
    chance = random.Random(seed)
    files = whole()
    name = chance.choice(sorted(files))
    data = bytearray(files[name])
    at = chance.randrange(len(data))
    match chance.randrange(5):
        case 0 | 1:
            data[at] ^= 1 << chance.randrange(8)
        case 2:
            data[at : at + 40] = bytes(len(data[at : at + 40]))
        case 3:
            del data[at:]
        case _:
            data += chance.choice([bytes(30), chance.randbytes(30), bytes(data[:at])])
    return files | {name: bytes(data)}


def check_one_verdict(disk: Disk) -> None:
    verdicts = {each.__name__: each(disk, DIRECTORY) for each in PARTS}
    assert len(set(verdicts.values())) == 1, verdicts
    is_damaged = Verdict.DAMAGE in verdicts.values()
    assert (spark_read(disk, DIRECTORY) is Verdict.DAMAGE) == is_damaged, verdicts


@pytest.mark.parametrize("seed", range(COUNT))
def test_all_give_one_verdict(seed: int) -> None:
    check_one_verdict(MemoryDisk({f"{DIRECTORY}/{name}": data for name, data in damaged(seed).items()}))


@pytest.mark.parametrize("seed", [*range(COUNT), *KNOWN])
def test_all_give_one_verdict_on_what_kafka_wrote(seed: int) -> None:
    """Every codec, transactions, a compacted topic, deleted partitions; one to three damages of each kind."""
    _, _, files = kafka.damaged(seed)
    check_one_verdict(MemoryDisk({f"{DIRECTORY}/{name}": data for name, data in files.items()}))


def test_a_wrong_offset_does_not_make_the_next_segment_a_leftover() -> None:
    """Seed 431: the last batch of a segment claims an offset far above; the next segment is sound."""
    check_one_verdict(MemoryDisk({f"{DIRECTORY}/{name}": data for name, data in damaged(431).items()}))
