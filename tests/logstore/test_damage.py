"""One judge of damage: the decision over all its inputs."""

from __future__ import annotations

import struct
from contextlib import closing
from itertools import product

import pytest

from logstore.checkpoint.clean_shutdown import remove_clean_shutdown
from logstore.checkpoint.entry_files import RECOVERY_POINT_CHECKPOINT, write_offset_checkpoint
from logstore.config import LogConfig
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DamagedLog
from logstore.log.log import Log
from logstore.segment.damage import Verdict, judge
from logstore.segment.scan import Fault
from logstore.segment.seal import remove_seals
from logstore.segment.segment import LOG_SUFFIX, file_name
from logstore.testing.disks import MemoryDisk

DIRECTORY = "/data/orders-0"


def test_the_verdict_over_all_inputs() -> None:
    """Durable bytes are damage, bytes with batches behind them, and garbage if no durable point is known."""
    for fault, is_end, below_durable in product(Fault, (False, True), (None, False, True)):
        is_damage = (
            below_durable is True
            or not is_end
            or (below_durable is None and fault not in (Fault.TORN, Fault.ZEROS))
        )
        found = judge(fault, is_end=is_end, below_durable=below_durable)
        assert found is (Verdict.DAMAGE if is_damage else Verdict.TORN_TAIL), (fault, is_end, below_durable)


def test_no_fault_is_sound() -> None:
    """Wherever the walk ended."""
    for is_end, below_durable in product((False, True), (None, False, True)):
        assert judge(None, is_end=is_end, below_durable=below_durable) is Verdict.SOUND


@pytest.mark.parametrize("bit", [0, 1, 3, 18, 30, 40])
@pytest.mark.parametrize("number", range(3))
def test_a_durable_offset_that_leaps_is_no_torn_tail(number: int, bit: int) -> None:
    """In a directory as Kafka leaves it, without seals: every record was cut, and the log ended at 2¹⁸."""
    disk, config, durable = MemoryDisk(directories=["/data"]), LogConfig(segment_bytes=500), 3
    with Log.open(DIRECTORY, config, disk=disk) as log:
        for each in range(12):
            log.append(b"%d" % each * 30)
        assert len(log.partition.segments) == 3
        size = log.partition.segments.first.size // 5
    remove_clean_shutdown(disk, DIRECTORY)
    remove_seals(disk, DIRECTORY)
    write_offset_checkpoint(
        disk, DIRECTORY, RECOVERY_POINT_CHECKPOINT, {TopicPartition("orders", 0): durable}
    )
    with closing(disk.open(f"{DIRECTORY}/{file_name(0, LOG_SUFFIX)}", write=True)) as file:
        file.pwrite(struct.pack(">q", number ^ 1 << bit), number * size)
    with pytest.raises(DamagedLog) as caught:
        Log.open(DIRECTORY, config, disk=disk)
    (damage,) = caught.value.damages
    assert damage.offset == number
    with Log.open(DIRECTORY, config, disk=disk, accept_loss=True) as log:
        assert [record.offset for record in log.read()] == list(range(number))
