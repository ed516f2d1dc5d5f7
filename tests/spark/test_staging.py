"""What a task leaves is whole, in the order of its rows, and known again; or it is said that it is not."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from logstore.columnar.encoding import Columns
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import CorruptBatch
from logstore.format.batch import Batch
from logstore.format.compression import Codec
from logstore.format.record import NO_TIMESTAMP
from logstore.log.outgoing import PLAIN, Compression
from logstore.spark.errors import RowRefused, StagedFileGone
from logstore.spark.publishing import Stage, Staged, StagedFile
from logstore.spark.sink_rows import Placed
from logstore.testing.disks import MemoryDisk

SLOTS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]


def stage(disk: MemoryDisk, *, compression: Compression = PLAIN, limit: int = 1000, flush: int = 1) -> Stage:
    return Stage(
        disk,
        "/staged/00000-1-a",
        SLOTS,
        compression=compression,
        batch_bytes=300,
        max_batch_bytes=lambda topic: limit,
        flush_bytes=flush,
    )


def placed(values: Sequence[bytes], slots: Sequence[int]) -> Placed:
    rows = Columns.of(pa.RecordBatch.from_pydict({"value": list(values)}), NO_TIMESTAMP)
    return Placed(rows, np.array(slots, np.int64))


def of_file(disk: MemoryDisk, staged: Staged) -> dict[TopicPartition, list[bytes | None]]:
    file = StagedFile(disk, f"/staged/{staged.name}", staged.size)
    return {
        partition: [record.value for data in file.batches(partition) for record in Batch(data).records()]
        for partition in SLOTS
    }


@pytest.mark.parametrize("flush", [1, 400, 1 << 20])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
def test_rows_come_back_by_partition_in_their_order(codec: Codec, flush: int) -> None:
    random, disk = Random(5), MemoryDisk()
    expected: dict[TopicPartition, list[bytes]] = {partition: [] for partition in SLOTS}
    writing = stage(disk, compression=Compression(codec), flush=flush)
    for number in range(7):
        slots = [random.randrange(3) for _ in range(random.randrange(60))]
        rows = [b"%d %d" % (number, row) for row in range(len(slots))]
        for slot, row in zip(slots, rows, strict=True):
            expected[SLOTS[slot]].append(row)
        writing.add(placed(rows, slots))
    staged = writing.finish()
    assert of_file(disk, staged) == expected
    assert staged.records == {partition: len(found) for partition, found in expected.items()}
    assert of_file(disk.durable_image(), staged) == expected, "a task that is done has synced its file"


def test_no_batch_is_above_what_is_asked_for() -> None:
    disk = MemoryDisk()
    writing = stage(disk, limit=400)
    writing.add(placed([b"x" * 50] * 20 + [b"y" * 330], [0] * 21))
    staged = writing.finish()
    sizes = [len(data) for data in StagedFile(disk, f"/staged/{staged.name}", staged.size).batches(SLOTS[0])]
    assert max(sizes[:-1]) <= 61 + 200, "half of the limit, to leave room"
    assert sizes[-1] > 330, "one that is larger is alone"


def test_rows_that_grow_when_they_are_compressed() -> None:
    random = Random(1)
    writing = stage(MemoryDisk(), compression=Compression(Codec.GZIP), limit=470)
    with pytest.raises(RowRefused, match=r"t-0 are 4.. bytes with kafka.compression.type=gzip.* 470"):
        writing.add(placed([random.randbytes(395)], [0]))
    writing.close()


def test_a_task_without_rows_leaves_nothing() -> None:
    disk = MemoryDisk(directories=["/"])
    writing = stage(disk)
    writing.add(placed([], []))
    assert writing.finish() == Staged()
    writing.close()
    assert disk.scan("/") == []


def test_every_attempt_has_a_file_of_its_own() -> None:
    disk = MemoryDisk()
    first = stage(disk)
    first.add(placed([b"1"], [0]))
    with pytest.raises(FileExistsError):
        stage(disk).add(placed([b"2"], [0]))


def test_a_file_that_is_not_what_was_staged() -> None:
    """Each byte of the index and behind it, a length that is another, no file at all."""
    disk = MemoryDisk()
    writing = stage(disk)
    writing.add(placed([b"one", b"two"], [0, 2]))
    staged = writing.finish()
    path = f"/staged/{staged.name}"
    file = disk.open(path, write=True)
    content = file.pread(staged.size, 0)
    batches = sum(len(data) for slot in SLOTS for data in StagedFile(disk, path, staged.size).batches(slot))
    for at in range(batches, staged.size):
        file.pwrite(bytes([content[at] ^ 1]), at)
        with pytest.raises(StagedFileGone, match="differs from what its task wrote"):
            StagedFile(disk, path, staged.size)
        file.pwrite(content[at : at + 1], at)
    for size in (0, 7, staged.size - 1, staged.size + 1):
        with pytest.raises(StagedFileGone, match="differs from what its task wrote"):
            StagedFile(disk, path, size)
    with pytest.raises(StagedFileGone, match="option stagingPath"):
        StagedFile(disk, f"{path}x", staged.size)


def test_a_batch_that_the_disk_changed_is_not_summed_anew() -> None:
    disk = MemoryDisk()
    writing = stage(disk)
    writing.add(placed([b"one"], [0]))
    staged = writing.finish()
    found = StagedFile(disk, f"/staged/{staged.name}", staged.size)
    file = disk.open(f"/staged/{staged.name}", write=True)
    file.pwrite(b"0", 70)
    with pytest.raises(CorruptBatch, match="checksum"):
        list(found.batches(SLOTS[0]))
