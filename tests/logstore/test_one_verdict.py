"""One judge: recover, verify, `dump --verify` and the reader agree on random damages of Kafka's directories.

The directory has no seals and no checkpoints: a partition that was copied from somewhere. `SLOW=1000` draws
that many damages.
"""

from __future__ import annotations

import os
import random

import pytest

from logstore.cli.inspection import role_of
from logstore.cli.shadow import ShadowDisk
from logstore.cli.verification import verify_files
from logstore.cli.whole_trees import verify_tree
from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.errors import DamagedLog
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.reader import LogReader
from logstore.log.recovery import load
from logstore.segment.damage import Verdict, judge
from logstore.segment.segment import file_name
from logstore.testing.disks import MemoryDisk

DIRECTORY = "/copied/orders-0"
COUNT = int(os.environ.get("SLOW", "60"))


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


def recovered(disk: Disk) -> Verdict:
    try:
        loaded = load(
            ShadowDisk(disk),
            DIRECTORY,
            LogConfig(),
            is_clean=False,
            recovery_point=None,
            log_start_offset=0,
            now_ms=0,
            reads_all=True,
        )
    except DamagedLog:
        return Verdict.DAMAGE
    return Verdict.TORN_TAIL if loaded.report.cuts else Verdict.SOUND


def verified(disk: Disk) -> Verdict:
    found = list(verify_tree(disk, DIRECTORY, lambda _: None))
    if any(each.is_damage for each in found):
        return Verdict.DAMAGE
    torn = any("torn by a crash" in each.text for each in found)
    return Verdict.TORN_TAIL if torn else Verdict.SOUND


def dumped(disk: Disk) -> Verdict:
    names = sorted(entry.name for entry in disk.scan(DIRECTORY))
    files = [(name, role) for name in names if (role := role_of(name)) is not None]
    problems = [each for report in verify_files(disk, DIRECTORY, files) for each in report.problems]
    if any(each.is_damage for each in problems):
        return Verdict.DAMAGE
    return Verdict.TORN_TAIL if problems else Verdict.SOUND


def read(disk: Disk) -> Verdict:
    reader = LogReader(DIRECTORY, disk=disk)
    try:
        for _ in reader.batches():
            pass
    except DamagedLog:
        return Verdict.DAMAGE
    tail = reader.tail
    return Verdict.SOUND if tail is None else judge(tail.fault, is_end=True, below_durable=None)


@pytest.mark.parametrize("seed", range(COUNT))
def test_all_give_one_verdict(seed: int) -> None:
    disk = MemoryDisk({f"{DIRECTORY}/{name}": data for name, data in damaged(seed).items()})
    verdicts = {each.__name__: each(disk) for each in (recovered, verified, dumped, read)}
    assert len(set(verdicts.values())) == 1, verdicts


def test_a_wrong_offset_does_not_make_the_next_segment_a_leftover() -> None:
    """Seed 431: the last batch of a segment claims an offset far above; the next segment is sound."""
    disk = MemoryDisk({f"{DIRECTORY}/{name}": data for name, data in damaged(431).items()})
    assert recovered(disk) is verified(disk) is dumped(disk) is Verdict.DAMAGE
