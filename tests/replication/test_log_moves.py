"""Replicas that move between the log dirs of their node, in whole clusters that go on writing."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import ErrorCode
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import Durability, InProcessCluster
from logstore.replication.driver import three_nodes
from logstore.replication.log_dir_messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from logstore.replication.log_moves import LEAST_ROOM_BYTES, LogMoves, Turn
from logstore.replication.messages import DeleteTopicsRequest, NewTopic
from logstore.replication.throttle import replication_windows
from logstore.testing.disks.faulty import Fault, FaultyDisk
from tests.replication.test_driver import BASE, TP, is_whole, values, write

OTHER = TopicPartition("other", 0)
SMALL = LogConfig(min_insync_replicas=2, segment_bytes=600, retention_ms=-1)


def cluster(durability: Durability = Durability.REPLICATED) -> tuple[InProcessCluster, dict[int, FaultyDisk]]:
    """A cluster on disks that may fail."""
    disks = {node_id: FaultyDisk(MemoryDisk()) for node_id in range(3)}
    return plain_cluster(durability, disks.__getitem__), disks


def plain_cluster(
    durability: Durability, disk_of: Callable[[int], Disk] = lambda node_id: MemoryDisk()
) -> InProcessCluster:
    """Three nodes with two log dirs each, and a topic of one partition, led by node 0."""
    made = InProcessCluster(
        three_nodes(base=replace(BASE, durability=durability)),
        disk_of=disk_of,
        log_config=SMALL,
        log_dirs_of=lambda node_id: ("one", "two"),
    )
    made.start()
    made.create_topic(NewTopic("t", assignment=((0, 1, 2),)))
    return made


def home(made: InProcessCluster, node_id: int) -> str:
    return made.nodes[node_id].replicas.partitions[TP].log.directory.partition("/")[0]


def other(made: InProcessCluster, node_id: int) -> str:
    return "two" if home(made, node_id) == "one" else "one"


def alter(made: InProcessCluster, node_id: int, path: str, topic_partition: TopicPartition = TP) -> ErrorCode:
    answer = made.call(AlterReplicaLogDirsRequest({topic_partition: path}), node_id)
    assert isinstance(answer, AlterReplicaLogDirsResponse)
    return answer.codes[topic_partition]


def is_moving(made: InProcessCluster, node_id: int) -> bool:
    return TP in made.nodes[node_id].logs.moves.under_way


def write_until_moved(made: InProcessCluster, node_id: int, wanted: str) -> int:
    """Write while the log moves; return how many records there are."""
    number = len(values(made, node_id))
    for _ in range(200):
        write(made, b"%d" % number)
        number += 1
        if home(made, node_id) == wanted:
            return number
        made.advance(5)
    raise AssertionError(f"it never moved: {made.nodes[node_id].logs.moves.under_way}")


@pytest.mark.parametrize("durability", Durability)
def test_leader_and_followers_move_while_records_are_written(durability: Durability) -> None:
    made, _ = cluster(durability)
    for number in range(30):
        write(made, b"%d" % number)
    for node_id in range(3):
        wanted = other(made, node_id)
        assert alter(made, node_id, wanted) is ErrorCode.NONE
        assert is_moving(made, node_id)
        write_until_moved(made, node_id, wanted)
    assert made.leader_of(TP) == 0, "no role has changed"
    assert made.run_until(lambda: is_whole(made)), made.describe(TP)
    logs = [values(made, node_id) for node_id in range(3)]
    assert logs[0] == logs[1] == logs[2] == [b"%d" % number for number in range(len(logs[0]))]
    for node_id in range(3):
        made.kill_node(node_id)
        made.start_node(node_id)
        assert made.run_until(lambda: is_whole(made), 120_000), made.describe(TP)
        assert values(made, node_id) == logs[0]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) if seed > 2 else seed for seed in range(1, 30)]
)
def test_nodes_lose_power_while_their_logs_move(seed: int) -> None:
    """Nothing that was acknowledged is lost, on any node, whichever directory it finds."""
    rng = Random(seed)
    made = plain_cluster(Durability.SYNCED)
    written: list[bytes] = []

    def write_one() -> None:
        write(made, b"%d" % len(written))
        written.append(b"%d" % len(written))

    for _ in range(25):
        for _ in range(rng.randrange(4)):
            write_one()
        node_id = rng.randrange(3)
        if TP in made.nodes[node_id].replicas.partitions and rng.random() < 0.6:
            alter(made, node_id, rng.choice(("one", "two")))
        made.advance(rng.choice((0, 1, 3, 8, 20)))
        if rng.random() < 0.3:
            made.kill_node(node_id, power_cut=rng if rng.random() < 0.7 else None)
            if rng.random() < 0.5:
                write_one()
            made.start_node(node_id)
            assert made.run_until(lambda: is_whole(made), 120_000), made.describe(TP)
    assert made.run_until(lambda: is_whole(made), 120_000), made.describe(TP)
    for node_id, node in made.nodes.items():
        # A write that is repeated because its answer was lost may be there twice.
        assert list(dict.fromkeys(values(made, node_id))) == written
        assert not node.logs.damaged
        assert not node.logs.offline_dirs


def test_the_answers_are_kafkas() -> None:
    made, _ = cluster()
    assert alter(made, 0, "three") is ErrorCode.LOG_DIR_NOT_FOUND
    assert alter(made, 0, home(made, 0)) is ErrorCode.NONE
    assert alter(made, 0, "two", TopicPartition("t" * 240, 0)) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert alter(made, 0, "two", OTHER) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    made.create_topic(NewTopic("elsewhere", assignment=((1, 2),)))
    assert alter(made, 0, "two", TopicPartition("elsewhere", 0)) is ErrorCode.REPLICA_NOT_AVAILABLE
    assert alter(made, 0, "two", TopicPartition("no/topic", 0)) is ErrorCode.INVALID_TOPIC_EXCEPTION
    made.create_topic(NewTopic("other", assignment=((0, 1, 2),)))
    assert made.nodes[0].replicas.partitions[OTHER].log.directory == "two/other-0", "as it was named before"


def test_a_move_ends_with_its_topic() -> None:
    made, disks = cluster()
    write(made, b"0")
    alter(made, 1, other(made, 1))
    made.administer(DeleteTopicsRequest(("t",)))
    assert made.run_until(lambda: TP not in made.nodes[1].replicas.partitions)
    made.advance(120_000)
    assert not made.nodes[1].logs.moves.under_way
    assert not made.nodes[1].replicas.moves.turns
    left = [each.name for path in ("one", "two") for each in disks[1].scan(path) if each.is_directory]
    assert left == []


def test_the_copy_of_a_topic_that_was_deleted_while_its_log_dir_was_offline_goes() -> None:
    made, disks = cluster()
    write(made, b"0")
    target = other(made, 1)
    disks[1].inject(Fault(operation="pwrite", path=lambda path: "-future/0" in path, forever=True))
    assert alter(made, 1, target) is ErrorCode.NONE
    assert made.run_until(lambda: target in made.nodes[1].logs.offline_dirs)
    made.administer(DeleteTopicsRequest(("t",)))
    assert made.run_until(lambda: TP not in made.nodes[1].replicas.partitions)
    made.stop_node(1)
    disks[1].heal()
    (left,) = [each.name for each in disks[1].scan(target) if each.is_directory]
    assert left.endswith("-future")
    made.start_node(1)
    made.advance(120_000)
    assert [each.name for each in disks[1].scan(target) if each.is_directory] == []


def test_a_move_goes_on_after_a_kill_of_the_node() -> None:
    made, _ = cluster()
    for number in range(30):
        write(made, b"%d" % number)
    wanted = other(made, 1)
    alter(made, 1, wanted)
    made.kill_node(1)
    write(made, b"30")
    made.start_node(1)
    assert made.run_until(lambda: TP in made.nodes[1].replicas.partitions)
    write_until_moved(made, 1, wanted)
    assert made.run_until(lambda: is_whole(made)), made.describe(TP)


def test_a_full_target_is_named_and_the_replica_serves_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    made, disks = cluster()
    write(made, b"0")
    wanted = other(made, 0)
    real = disks[0].inner.room
    monkeypatch.setattr(disks[0].inner, "room", lambda path: real(path)._replace(free=LEAST_ROOM_BYTES - 1))
    assert alter(made, 0, wanted) is ErrorCode.NONE
    made.advance(1000)
    problem = made.nodes[0].logs.moves.under_way[TP].problem
    assert f"{wanted} is full" in problem
    write(made, b"1")
    monkeypatch.undo()
    disks[0].inject(Fault(operation="pwrite", path=lambda path: "-future" in path, errno=errno.ENOSPC, at=2))
    write_until_moved(made, 0, wanted)
    assert not made.nodes[0].replicas.full_dirs.since_ms, "a copy that finds no room makes no log dir full"


def test_a_move_that_is_refused_for_want_of_room_does_not_begin_with_the_next_start() -> None:
    made, disks = cluster()
    write(made, b"1")
    source, target = home(made, 1), other(made, 1)
    disks[1].inject(
        Fault(operation="pwrite", path=lambda path: "-future" in path, forever=True, errno=errno.ENOSPC)
    )
    assert alter(made, 1, target) is ErrorCode.KAFKA_STORAGE_ERROR
    disks[1].heal()
    assert not [entry.name for entry in disks[1].scan(target) if entry.name.endswith("-future")]
    made.stop_node(1)
    made.start_node(1)
    made.advance(60_000)
    assert home(made, 1) == source


@pytest.mark.parametrize("operation", ["pwrite", "sync"])
def test_a_target_that_dies_ends_the_move_and_nothing_else(operation: str) -> None:
    made, disks = cluster()
    for number in range(10):
        write(made, b"%d" % number)
    at, wanted = home(made, 0), other(made, 0)
    log_files = Fault(
        operation=operation, path=lambda path: "-future" in path and path.endswith(".log"), forever=True
    )
    disks[0].inject(log_files)
    assert alter(made, 0, wanted) is ErrorCode.NONE
    made.advance(1000)
    assert list(made.nodes[0].logs.offline_dirs) == [wanted]
    assert not is_moving(made, 0)
    write(made, b"10")
    assert (made.leader_of(TP), home(made, 0)) == (0, at)
    assert values(made, 0) == [b"%d" % number for number in range(11)]
    assert alter(made, 0, wanted) is ErrorCode.KAFKA_STORAGE_ERROR
    log = made.nodes[0].replicas.partitions[TP].log
    assert log.compaction_lock.acquire(blocking=False), "nothing is held"
    assert log.flushed_first is None


def test_a_throttle_bounds_what_is_copied() -> None:
    made, _ = cluster()
    for number in range(60):
        write(made, bytes(200) + b"%d" % number)
    moves = made.nodes[0].replicas.moves
    moves.limit(1000)
    moves.record(20_000, made.now_ms)  # what other moves have copied just now
    wanted = other(made, 0)
    alter(made, 0, wanted)
    made.advance(3000)
    assert is_moving(made, 0)
    assert moves.copied_bytes == 20_000, "nothing more while the rate is exceeded"
    moves.limit(None)
    assert made.run_until(lambda: home(made, 0) == wanted)


def test_one_log_is_copied_at_a_time_and_one_that_hangs_holds_up_no_other() -> None:
    made, _ = cluster()
    moves = LogMoves(replication_windows(BASE))
    made.create_topic(NewTopic("other", assignment=((0, 1, 2),)))
    alter(made, 0, other(made, 0))
    (move,) = made.nodes[0].logs.moves.under_way.values()
    first, second = Turn(replace(move), 100), Turn(replace(move), 5)
    moves.turns = {OTHER: first, TP: second}
    assert moves.next_turn() is first, "the first by name, though the other is due before"
    first.move.problem = "full"
    assert moves.next_turn() is second
    second.due_ms = 200
    assert moves.next_turn() is first, "it is tried again when its pause ends"
    first.due_ms = None
    assert moves.next_turn() is second, "one that waits for a flush does not count"
    second.due_ms = None
    assert moves.deadline_ms is None
