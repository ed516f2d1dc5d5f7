"""Damage in a replica's log is a state: named, moved away from, and mended from the other replicas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.errors import Damage, DamageKind, LogDirOffline
from logstore.format.batch import walk
from logstore.log.heal import Mended, Steps
from logstore.log.losses import Loss
from logstore.replication import InProcessCluster
from logstore.replication.controller.config import ControllerConfig
from logstore.replication.driver import three_nodes
from logstore.replication.healing import DamagedReplica, failed_partitions
from logstore.replication.messages import (
    FetchResponse,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    NewTopic,
)
from tests.replication.test_driver import BASE, TP, is_whole, values, write

FIRST = "00000000000000000000.log"
WRITTEN = [b"value %d" % number for number in range(30)]


def cluster(disks: dict[int, MemoryDisk], *, replicas: tuple[int, ...] = (0, 1, 2)) -> InProcessCluster:
    """Three nodes and a topic in small segments, led by node 0; its records are committed everywhere."""
    made = InProcessCluster(
        three_nodes(base=BASE),
        disk_of=disks.__getitem__,
        log_config=LogConfig(
            min_insync_replicas=min(2, len(replicas)),
            segment_bytes=600,
            segment_index_bytes=512,
            retention_ms=-1,
        ),
    )
    made.start()
    made.create_topic(NewTopic("t", assignment=(replicas,)))
    for value in WRITTEN:
        write(made, value)
    made.advance(1000)
    return made


def memory_disks() -> dict[int, MemoryDisk]:
    return {node_id: MemoryDisk() for node_id in range(3)}


def path_of(disk: MemoryDisk, name: str) -> str:
    (path,) = (path for path in disk.files() if path.endswith(f"t-0/{name}"))
    return path


def flip(disk: MemoryDisk, name: str = FIRST, at: int = 100, mask: int = 1) -> bytes:
    """Flip bits of one byte of a file; return the file as it was."""
    path = path_of(disk, name)
    before = bytes(disk.files()[path])
    file = disk.open(path, write=True)
    file.pwrite(bytes([before[at] ^ mask]), at)
    file.close()
    return before


def fetch(made: InProcessCluster, offset: int) -> FetchResult:
    reply = made.fetch(TP, offset)
    made.run_until(lambda: reply.is_done, 5000)
    assert isinstance(reply.body, FetchResponse)
    return reply.body.partitions[TP]


def read_all(made: InProcessCluster) -> list[bytes | None]:
    """Read the partition as a consumer does, with retries."""
    found: list[bytes | None] = []
    for _ in range(200):
        result = fetch(made, len(found))
        if result.error is not ErrorCode.NONE:
            made.advance(100)
            continue
        for batch in walk(result.records):
            batch.check_crc()
            found += [record.value for record in batch.records() if record.offset >= len(found)]
        if len(found) >= len(WRITTEN):
            break
    return found


def losses(made: InProcessCluster, node_id: int) -> list[Loss]:
    return made.nodes[node_id].replicas.partitions[TP].log.quarantine.losses()


@pytest.mark.parametrize(("mask", "first"), [(1, 0), (0x80, 1)])
def test_no_bit_of_a_sealed_segment_is_served_wrong(mask: int, first: int) -> None:
    """In each byte of the first batches: consumers read everything once, and the bytes come back."""
    disks = memory_disks()
    made = cluster(disks)
    for at in range(first, 230, 2):
        leader = made.leader_of(TP)
        assert leader is not None
        before = flip(disks[leader], at=at, mask=mask)
        assert read_all(made) == WRITTEN, at
        damaged = made.nodes[leader].replicas.damaged
        assert made.run_until(lambda: not damaged.known, 10_000), at  # noqa: B023
        assert disks[leader].files()[path_of(disks[leader], FIRST)] == before, at
        assert made.run_until(lambda: is_whole(made), 30_000), at


def test_a_damaged_leader_hands_over_and_is_mended() -> None:
    disks = memory_disks()
    made = cluster(disks)
    before = flip(disks[0])
    assert made.leader_of(TP) == 0
    assert read_all(made) == WRITTEN, "consumers are served by a sound replica, and nothing is skipped"
    assert made.leader_of(TP) in (1, 2)
    damaged = made.nodes[0].replicas.damaged
    assert made.run_until(lambda: not damaged.known, 10_000)
    assert (damaged.found_total, damaged.healed_total) == (1, 1)
    assert disks[0].files()[path_of(disks[0], FIRST)] == before, "the same bytes as before"
    (loss,) = losses(made, 0)
    assert (loss.who, loss.first_offset, loss.size > 0) == ("heal", 1, True)
    assert "fetched again from broker" in loss.why
    assert made.run_until(lambda: is_whole(made), 30_000)
    assert [values(made, node_id) for node_id in range(3)] == [WRITTEN] * 3


def test_a_damaged_replica_that_starts_is_not_kept_as_the_leader() -> None:
    """Stopped in order, started again, in sync and elected: the first read moves the leadership on."""
    disks = memory_disks()
    made = cluster(disks)
    made.stop_node(1)
    flip(disks[1])
    made.start_node(1)
    assert made.run_until(lambda: is_whole(made), 60_000)
    made.stop_node(0)
    made.run_until(lambda: made.leader_of(TP) is not None, 30_000)
    made.start_node(0)
    assert made.run_until(lambda: is_whole(made), 60_000)
    assert made.leader_of(TP) == 1
    assert read_all(made) == WRITTEN
    damaged = made.nodes[1].replicas.damaged
    assert made.run_until(lambda: not damaged.known, 10_000)
    assert damaged.healed_total == 1
    assert values(made, 1) == WRITTEN


def test_a_wiped_replica_gets_past_the_damage_of_its_leader() -> None:
    disks = memory_disks()
    made = cluster(disks)
    made.kill_node(2)
    disks[2] = MemoryDisk()
    made.replace_disk(2, disks[2])
    flip(disks[0])
    made.start_node(2)
    assert made.run_until(lambda: is_whole(made), 60_000)
    assert values(made, 2) == WRITTEN
    assert made.run_until(lambda: not made.nodes[0].replicas.damaged.known, 10_000)
    assert values(made, 0) == WRITTEN


def test_without_a_sound_copy_it_serves_up_to_the_damage_and_says_so() -> None:
    disks = memory_disks()
    made = cluster(disks, replicas=(0,))
    flip(disks[0], at=140)
    assert len(fetch(made, 0).records) > 0, "the batch before the damage"
    assert fetch(made, 1).error is ErrorCode.KAFKA_STORAGE_ERROR
    made.advance(100)
    assert fetch(made, 1).error is ErrorCode.CORRUPT_MESSAGE
    replicas = made.nodes[0].replicas
    text = failed_partitions(replicas)[TP]
    assert FIRST in text
    assert "offset 1" in text
    assert len(fetch(made, 2).records) > 0, "behind it, too"
    assert made.leader_of(TP) == 0
    write(made, b"more")


def test_a_replica_that_does_not_answer_may_have_a_sound_copy() -> None:
    """The damage stays to be mended, and is when the other replica answers again."""
    disks = memory_disks()
    made = cluster(disks, replicas=(0, 1))
    before = flip(disks[0])
    made.isolate(1)
    fetch(made, 1)
    replicas = made.nodes[0].replicas
    made.advance(3 * replicas.config.request_timeout_ms)
    assert list(replicas.damaged.known) == [TP]
    assert failed_partitions(replicas) == {}
    made.heal()
    assert made.run_until(lambda: not replicas.damaged.known, 600_000)
    assert disks[0].files()[path_of(disks[0], FIRST)] == before


def test_replicas_damaged_in_different_places_mend_each_other() -> None:
    disks = memory_disks()
    made = cluster(disks)
    before = flip(disks[0], at=100)
    flip(disks[1], at=300)
    flip(disks[2], at=450)
    assert read_all(made) == WRITTEN
    for node_id in range(3):  # what no consumer has read there is found by a scrub
        read = made.nodes[node_id].replicas
        read.damaged.found.append((TP, Damage(DamageKind.BAD_BATCH, FIRST, 0, 0, "found by a scrub", 0)))
    made.advance(5000)
    assert made.run_until(lambda: not any(n.replicas.damaged.known for n in made.nodes.values()), 20_000)
    assert [bytes(disks[node_id].files()[path_of(disks[node_id], FIRST)]) for node_id in range(3)] == [
        before
    ] * 3


def test_damage_that_compaction_meets_is_mended() -> None:
    disks = memory_disks()
    made = cluster(disks)
    flip(disks[0], at=140)
    replicas = made.nodes[0].replicas
    log = replicas.partitions[TP].log
    log.config = replace(log.config, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    assert made.run_until(lambda: replicas.damaged.found_total == 1, 120_000)
    assert made.run_until(lambda: not replicas.damaged.known, 10_000)
    assert [loss.who for loss in losses(made, 0)] == ["heal"]


def test_damage_that_a_search_by_time_meets_is_mended() -> None:
    disks = memory_disks()
    made = cluster(disks)
    flip(disks[0], at=70)
    asked = made.client(ListOffsetsRequest(-1, {TP: ListOffsetsPartition(0)}), 0)
    made.run_until(lambda: asked.is_done, 5000)
    assert isinstance(asked.body, ListOffsetsResponse)
    assert asked.body.partitions[TP].error is ErrorCode.KAFKA_STORAGE_ERROR
    damaged = made.nodes[0].replicas.damaged
    assert damaged.found_total == 1
    assert made.run_until(lambda: not damaged.known, 10_000)


def test_damage_across_the_place_of_a_cut_is_mended_behind_it() -> None:
    """A former leader has to give up its last records, and batches on both sides of that place are bad: it
    gives up those behind, gets those before from the new leader, and is in sync again."""
    disks = memory_disks()
    made = InProcessCluster(
        three_nodes(base=replace(BASE, controller=ControllerConfig(unclean_leader_election_enable=True))),
        disk_of=disks.__getitem__,
        log_config=LogConfig(index_interval_bytes=100),
    )
    made.start()
    made.create_topic(NewTopic("t", assignment=((0, 1),)))
    kept = [b"kept %d" % number for number in range(10)]
    for value in kept:
        write(made, value)
    made.advance(1000)
    made.stop_node(1)
    made.advance(3000)
    for number in range(10):
        write(made, b"gone %d" % number)
    made.stop_node(0)
    size = len(disks[0].files()[path_of(disks[0], FIRST)]) // 20
    file = disks[0].open(path_of(disks[0], FIRST), write=True)
    file.pwrite(bytes(4 * size), 8 * size)
    file.close()
    made.start_node(1)
    made.advance(5000)
    write(made, b"in their place")
    made.start_node(0)
    replicas = made.nodes[0].replicas
    assert made.run_until(lambda: replicas.damaged.healed_total == 1, 10_000)
    assert values(made, 0) == values(made, 1) == [*kept, b"in their place"]
    assert failed_partitions(replicas) == {}


def test_damage_that_a_truncation_takes_along_is_forgotten() -> None:
    """A former leader with a bad batch has to give up all of its records: nothing is left to mend."""
    disks = memory_disks()
    made = InProcessCluster(
        three_nodes(base=replace(BASE, controller=ControllerConfig(unclean_leader_election_enable=True))),
        disk_of=disks.__getitem__,
    )
    made.start()
    made.create_topic(NewTopic("t", assignment=((0, 1),)))
    made.stop_node(1)
    made.advance(3000)
    for number in range(3):
        write(made, b"gone %d" % number)
    flip(disks[0])
    assert fetch(made, 1).error is ErrorCode.KAFKA_STORAGE_ERROR
    replicas = made.nodes[0].replicas
    assert list(replicas.damaged.known) == [TP]
    made.isolate(0)
    made.start_node(1)
    assert made.run_until(lambda: made.leader_of(TP) == 1)
    made.heal()
    assert made.run_until(lambda: replicas.partitions[TP].log.log_end_offset == 0)
    assert made.run_until(lambda: not replicas.damaged.known)
    assert values(made, 0) == values(made, 1) == []


def test_damage_that_a_read_meets_further_on_is_located() -> None:
    """A read that begins behind the damaged batch knows only its own offset; the mending finds the place."""
    disks = memory_disks()
    made = cluster(disks, replicas=(0,))
    size = next(iter(walk(bytes(disks[0].files()[path_of(disks[0], FIRST)])))).size
    flip(disks[0], at=size + 16)
    assert fetch(made, 3).error is not ErrorCode.NONE
    made.advance(1000)
    replicas = made.nodes[0].replicas
    (damage,) = replicas.damaged.known[TP].damages.values()
    assert (damage.offset, damage.position) == (1, size)
    assert "offset 1" in failed_partitions(replicas)[TP]


def test_a_repair_that_ends_on_a_failed_disk_ends() -> None:
    """Its file cannot be removed. The error ended the whole turn, and in a broker the process."""

    def steps() -> Steps:
        try:
            yield None
        finally:
            raise LogDirOffline("the disk failed")
        return Mended(False)

    known = DamagedReplica(0, steps=steps())
    assert known.steps is not None
    next(known.steps)
    known.stop()
    assert known.steps is None
