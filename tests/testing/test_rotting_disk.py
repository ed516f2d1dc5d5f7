"""Rotten bytes of a simulated disk: what is left of them, what a checker reads, and how they are put back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from logstore.config import MAX_LONG
from logstore.disk.memory import MemoryDisk
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.truncate import truncate_to
from logstore.testing.hosts import Host, node_config
from logstore.testing.observation import _read_as_written, read_all, read_from
from logstore.testing.recovery_checks import check_producers
from logstore.testing.rotting_disk import Rot, as_written, cannot_be_told, put_back
from logstore.testing.swarm import draw
from tests.logstore.producing import NOW_MS, ORDERS, manager_on, plain, produce

PATH = f"/data/{ORDERS}/{0:020d}.log"


def opened(disk: MemoryDisk) -> tuple[Host, LogManager, Log]:
    logs = manager_on(disk)
    host = Host(0, node_config(draw(0), 0), disk)
    node: Any = SimpleNamespace(logs=logs)
    host.node = node
    return host, logs, logs.get_or_create(ORDERS)


def spoil(host: Host, log: Log, position: int, rotten: bytes) -> Rot:
    """Change bytes of the first segment."""
    data, changed, at, behind = host.disk.files()[PATH], [], 0, 0
    for batch in read_all(log.partition):
        if at < position + len(rotten) and position < at + len(batch.data):
            changed.append(batch)
            behind = at + len(batch.data)
        at += len(batch.data)
    end, offsets = position + len(rotten), (changed[0].base, changed[-1].end)
    sound, content = data[position:end], data[:position] + rotten + data[end:behind]
    rot = Rot(ORDERS, PATH, position, sound, rotten, *offsets, content, tuple(changed))
    rot.write(host, rotten)
    host.rots.append(rot)
    return rot


def test_a_mended_log_that_has_the_byte_in_the_same_place_does_not_rot() -> None:
    """A damaged batch below the log start was left out, so the others moved up; one of them had by
    coincidence the changed byte there, and the checker changed it (seed 656266)."""
    host, _, log = opened(MemoryDisk())
    for number in range(3):
        produce(log, number, 0, transaction=False)
    data = host.disk.files()[PATH]
    size = len(data) // 3
    mended = data[size:]
    position = next(at for at in range(size, 2 * size) if data[at] != mended[at])
    rot = spoil(host, log, position, mended[position : position + 1])
    assert rot.is_in_place(host)
    file = host.disk.open(PATH, write=True)
    file.pwrite(mended, 0)
    file.truncate(len(mended))
    assert not rot.is_in_place(host)
    with as_written(host):
        assert host.disk.files()[PATH] == mended


def test_what_a_cut_leaves_of_a_misplaced_block_reads_as_it_was_written() -> None:
    """The block held a sound batch from past the cut, so the cut went through it (seed 656717)."""
    host, _, log = opened(MemoryDisk())
    for number in range(6):
        produce(log, number, 0, transaction=False)
    first, *_, last = read_all(log.partition)
    rot = spoil(host, log, 0, b"\xff" * 20 + last.data + b"\xff" * 200)
    truncate_to(log.partition, 1)
    assert len(host.disk.files()[PATH]) == 20
    assert rot.is_in_place(host)
    assert rot.end_in(log.partition) == 1 < rot.end_offset
    assert _read_as_written(host, log.partition, 0) == [first]
    plain(log)
    held = [first, *read_from(log.partition, 1)]
    assert len(held) == 2
    assert _read_as_written(host, log.partition, 0) == held
    assert _read_as_written(host, log.partition, 1) == held[1:]
    put_back(host, rot, NOW_MS)
    assert not rot.is_in_place(host)
    assert read_all(log.partition) == held


def test_bytes_that_are_put_back_change_what_follows_from_them() -> None:
    """A node that stopped in order had opened the log past a batch; its bytes came back, and the next start
    believed the snapshot that lacks its producer (seed 649524)."""
    host, logs, log = opened(MemoryDisk())
    for number in range(3):
        produce(log, number, 0, transaction=False)
    log.partition.roll()
    log.flush()
    size = len(host.disk.files()[PATH]) // 3
    rot = spoil(host, log, size + 65, b"\xff")
    logs.checkpoint_recovery_points()
    logs.abandon()
    for path in [path for path in host.disk.files() if path.endswith(".snapshot")]:
        host.disk.remove(path)
    rots = host.rots
    host, logs, log = opened(host.disk)
    host.rots = rots
    assert {entry.producer_id for entry in log.partition.producers()} == {0, 2}
    host.is_paused = True
    put_back(host, rot, NOW_MS)
    assert rot.is_in_place(host), "a process that is paused does nothing"
    host.is_paused = False
    put_back(host, rot, NOW_MS)
    assert not rot.is_in_place(host)
    assert log.scrub().damages == ()
    check_producers("orders", read_all(log.partition), log.partition.producers(), NOW_MS)
    logs.close()
    log = opened(host.disk)[2]
    check_producers("orders", read_all(log.partition), log.partition.producers(), NOW_MS)


@pytest.mark.parametrize(("offset", "is_right"), [(1, True), (9, False)])
def test_an_index_entry_that_still_leads_to_its_batch_is_told_by_its_process_only(
    offset: int, is_right: bool
) -> None:
    """The next one compares entries with batches: 1 lies in the batch of 0 to 2, as 2 does (seed 5909)."""
    host, logs, log = opened(MemoryDisk())
    plain(log, 3)
    plain(log, 3)
    logs.close()
    path = PATH.replace(".log", ".timeindex")
    content = bytearray(host.disk.files()[path])
    content[11] = offset
    rot = Rot(ORDERS, path, 11, b"\2", bytes([offset]), MAX_LONG, MAX_LONG, bytes(content), life=host.life)
    rot.write(host, rot.rotten)
    assert rot.is_in_place(host)
    assert not cannot_be_told(host, rot)
    host.life += 1
    assert cannot_be_told(host, rot) is is_right
