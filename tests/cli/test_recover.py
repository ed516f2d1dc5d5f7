"""`logstore recover`: the engine's own loading, for real or as a plan that leaves no trace."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DamagedLog
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.log import Log
from logstore.log.manager import LogManager
from tests.cli.conftest import (
    FIRST,
    SECOND,
    SEGMENT_0,
    SEGMENT_4,
    THIRD,
    Outcome,
    snapshot,
)

Command = Callable[..., Outcome]

SIXTH = encode_batch([Record(6, 1, None, b"six")], base_offset=6, leader_epoch=1)


def tear(partition: Path) -> None:
    """Half a batch at the end, an index lost, another one overwritten."""
    with (partition / f"{SEGMENT_4}.log").open("ab") as file:
        file.write(THIRD[:50])
    (partition / f"{SEGMENT_4}.timeindex").unlink()
    (partition / f"{SEGMENT_0}.index").write_bytes(struct.pack(">ii", 2, 7))


def test_checkpoints_that_cannot_be_read_go(command: Command, tmp_path: Path) -> None:
    """They counted for nothing, and `verify` reported them as damaged for ever."""
    directory = tmp_path / "orders-0"
    with Log.open(directory) as log:
        log.append(b"one")
    names = [f"{each}-offset-checkpoint" for each in ("recovery-point", "cleaner")]
    for name in names:
        (directory / name).write_text("rot")
    for plan in (["--plan"], []):
        assert command("verify", directory).code == 1
        deleted = json.loads(command("recover", directory, *plan, "--json").out)["deleted"]
        assert sorted(deleted) == sorted(names)
    assert command("verify", directory).code == 0


def test_an_unreadable_topic_id_is_set_aside(command: Command, tmp_path: Path) -> None:
    """`recover` kept the unreadable file, so the log could not be opened."""
    directory = tmp_path / "orders-0"
    with Log.open(directory) as log:
        log.append(b"one")
        log.partition.set_topic_id("AAECAwQFBgcICQoLDA0ODw")
    damaged = b"version: 0\ntopic_id: AAECAwQFBgcICQ"
    (directory / "partition.metadata").write_bytes(damaged)
    with pytest.raises(CorruptCheckpoint, match=f"set the file aside with `logstore recover {directory}`"):
        Log.open(directory)
    for plan in (["--plan"], []):
        assert command("verify", directory).code == 1
        report = json.loads(command("recover", directory, *plan, "--json").out)
        assert report["renamed"] == [["partition.metadata", "partition.metadata.damaged"]]
        assert "that no deleted topic of that name left the directory" in report["notes"][-1]
    assert command("verify", directory).code == 0
    assert (directory / "partition.metadata.damaged").read_bytes() == damaged
    assert json.loads(command("recover", directory, "--json").out)["renamed"] == []
    with Log.open(directory) as log:
        assert [record.value for record in log.read()] == [b"one"]
        assert log.partition.topic_id is None
        log.partition.set_topic_id("AAECAwQFBgcICQoLDA0ODw")


SEALED = LogConfig(segment_bytes=250)


@pytest.mark.parametrize("bit", [0, 2, 9, 18, 31, 32, 40, 62])
@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_an_offset_that_leaps_out_of_its_segment_is_damage(
    bit: int, place: tuple[int, int], command: Command, tmp_path: Path
) -> None:
    """It put what follows past the durable end: eleven of twelve records went as a torn tail, with code 0.

    After `--accept-loss` the record stayed at its wrong offset, and a second recovery gave it up.
    """
    directory = tmp_path / "orders-0"
    with Log.open(directory, SEALED) as log:
        for number in range(8):
            log.append(b"%d" % number * 30, sync=True)
        segments = [segment.base_offset for segment in log.partition.segments]
    assert segments == [0, 2, 4, 6]
    base_offset, number = segments[place[0]], place[1]
    path = directory / f"{base_offset:020}.log"
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, number * (len(data) // 2), (base_offset + number) ^ 1 << bit)
    path.write_bytes(data)
    before = snapshot(directory)
    assert command("recover", directory).code == 1
    assert snapshot(directory) == before
    assert command("recover", directory, "--accept-loss").code == 0
    assert command("verify", directory).code == 0
    with Log.open(directory, SEALED) as log:
        assert [(each.offset, each.value) for each in log.read()] == [
            (offset, b"%d" % offset * 30) for offset in range(base_offset + number)
        ]


def test_the_answer(command: Command, partition: Path) -> None:
    """Every fact about the log, and what was cut or rebuilt with its byte range."""
    tear(partition)
    outcome = command("recover", partition, "--json")
    answer = json.loads(outcome.out)
    assert outcome.code == 0
    assert answer["log_start_offset"] == 0
    assert answer["log_end_offset"] == 6
    assert answer["epochs"] == [[0, 0], [1, 3]]
    assert answer["segments"] == [
        {
            "base_offset": 0, "size": len(FIRST + SECOND), "index_entries": 0, "time_index_entries": 1,
            "max_timestamp": 2000,
        },
        {
            "base_offset": 4, "size": len(THIRD), "index_entries": 0, "time_index_entries": 1,
            "max_timestamp": 3001,
        },
    ]  # fmt: skip
    (cut,) = answer["cut"]
    assert (cut["file"], cut["from"], cut["to"]) == (f"{SEGMENT_4}.log", len(THIRD), len(THIRD) + 50)
    assert {f"{SEGMENT_0}.index", f"{SEGMENT_4}.timeindex"} <= set(answer["rebuilt"])
    with Log.open(partition) as log:
        assert [record.value for record in log.read(3)] == [None, b"four", b"five"]


def test_a_plan_says_the_same_and_changes_nothing(command: Command, partition: Path) -> None:
    """Byte for byte, file for file: not even a lock file is left."""
    tear(partition)
    (partition / f"{SEGMENT_4}.log.deleted").write_bytes(b"left over")
    before = snapshot(partition.parent)
    planned = command("recover", partition, "--plan", "--json")
    assert snapshot(partition.parent) == before
    assert json.loads(planned.out)["deleted"] == [f"{SEGMENT_4}.log.deleted"]
    done = command("recover", partition, "--json")
    assert done.out == planned.out
    again = json.loads(command("recover", partition, "--json").out)
    assert (again["cut"], again["rebuilt"], again["deleted"]) == ([], [], [])


def test_a_plan_for_a_log_that_is_in_use(command: Command, partition: Path) -> None:
    """A plan takes no lock; recovery itself refuses."""
    with Log.open(partition):
        assert command("recover", partition, "--plan").code == 0
        outcome = command("recover", partition)
    assert outcome.code == 1
    assert str(partition) in outcome.err


def test_the_owner_of_the_log_dir_is_respected(command: Command, partition: Path) -> None:
    """A broker locks the log dir, not its partitions."""
    lock = OsDisk().lock(str(partition.parent))
    try:
        before = snapshot(partition)
        assert command("recover", partition).code == 1
        assert snapshot(partition) == before
    finally:
        lock.release()


def break_below_the_recovery_point(partition: Path) -> None:
    """A flipped bit in a batch that was synced, with a good batch behind it."""
    (partition.parent / "recovery-point-offset-checkpoint").write_bytes(b"0\n1\norders 0 7\n")
    broken = bytearray(THIRD)
    broken[70] ^= 1
    (partition / f"{SEGMENT_4}.log").write_bytes(bytes(broken) + SIXTH)


def test_damage_below_the_recovery_point_is_refused(command: Command, partition: Path) -> None:
    """What was synced once is not a torn tail: cutting it would lose the good batch behind it."""
    break_below_the_recovery_point(partition)
    before = {name: content for name, (content, _) in snapshot(partition).items()}
    for options in (["--plan"], []):
        outcome = command("recover", partition, *options)
        assert outcome.code == 1
        assert f"{SEGMENT_4}.log" in outcome.err
    after = {name: content for name, (content, _) in snapshot(partition).items() if name != ".lock"}
    assert after == before


@pytest.mark.parametrize("plan", [True, False])
def test_recovery_point_0_gives_it_up_knowingly(command: Command, partition: Path, plan: bool) -> None:
    """The operator's word: everything from the first bad batch on goes."""
    break_below_the_recovery_point(partition)
    answer = json.loads(
        command("recover", partition, "--recovery-point", 0, "--json", *["--plan"] * plan).out
    )
    assert answer["log_end_offset"] == 4
    assert [(cut["file"], cut["from"], cut["to"]) for cut in answer["cut"]] == [
        (f"{SEGMENT_4}.log", 0, len(THIRD + SIXTH)),
    ]


def test_the_answer_in_words(command: Command, partition: Path) -> None:
    tear(partition)
    outcome = command("recover", partition, "--plan")
    assert "nothing was changed" in outcome.out
    assert f"cut bytes {len(THIRD)} to {len(THIRD) + 50} of {SEGMENT_4}.log" in outcome.out


def test_an_index_that_recovery_need_not_read_is_reported_too(command: Command, partition: Path) -> None:
    """Below the recovery point only the times are missing: they are rebuilt when they are counted."""
    (partition / f"{SEGMENT_0}.timeindex").unlink()
    for flags in (["--plan"], []):
        answer = json.loads(command("recover", partition, "--recovery-point", "6", "--json", *flags).out)
        assert f"{SEGMENT_0}.timeindex" in answer["rebuilt"]


@pytest.mark.parametrize("flags", [[], ["--plan"]])
def test_a_directory_that_is_no_partition(command: Command, tmp_path: Path, flags: list[str]) -> None:
    """A log dir or a home named by mistake must not be made a log."""
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    before = snapshot(tmp_path)
    outcome = command("recover", tmp_path, *flags)
    assert outcome.code == 2
    assert "has no segments, and directory" in outcome.err
    assert snapshot(tmp_path) == before


def test_what_it_changed_is_not_called_clean(command: Command, tmp_path: Path) -> None:
    """The mark of a clean stop holds the sums of files that are not what they were any more."""
    directory = tmp_path / "orders-0"
    with Log.open(directory) as log:
        log.append([b"%d" % number for number in range(100)])
    (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    segment = directory / f"{SEGMENT_0}.log"
    segment.write_bytes(segment.read_bytes()[:-10])
    assert command("verify", directory).code == 1
    assert command("recover", directory, "--accept-loss").code == 0
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert command("verify", directory).code == 0


def test_what_it_accepts_is_sound(command: Command, tmp_path: Path) -> None:
    """Also a producer snapshot that it had no need to read."""
    directory = tmp_path / "orders-0"
    with Log.open(directory, LogConfig(segment_bytes=200)) as log:
        for number in range(9):
            log.append(b"%d" % number)
    first = min(directory.glob("*.snapshot"))
    first.write_bytes(b"noise" * 10)
    assert command("verify", directory).code == 1
    recovered = command("recover", directory)
    assert (recovered.code, f"deleted {first.name}" in recovered.out) == (0, True)
    assert command("verify", directory).code == 0


def managed(log_dir: Path) -> LogManager:
    return LogManager([str(log_dir)], disk=OsDisk(), clock=lambda: 1, random=random.Random(1))


class TestNoDurablePointIsKnown:
    """A partition's directory that was copied from somewhere: nothing beside it says what was synced."""

    @pytest.fixture
    def bare(self, tmp_path: Path) -> Path:
        partition = tmp_path / "copied" / "orders-0"
        partition.mkdir(parents=True)
        batches = [encode_batch([Record(each, 1, None, b"value")], base_offset=each) for each in range(20)]
        damaged = bytearray(b"".join(batches))
        damaged[3 * len(batches[0]) + 70] ^= 1
        (partition / f"{SEGMENT_0}.log").write_bytes(damaged)
        return partition

    @pytest.mark.parametrize("options", [[], ["--plan"]])
    def test_sound_batches_behind_a_bad_one_are_damage(
        self, command: Command, bare: Path, options: list[str]
    ) -> None:
        content = (bare / f"{SEGMENT_0}.log").read_bytes()
        for _ in range(2):  # also after what the first one left behind
            outcome = command("recover", bare, *options)
            assert outcome.code == 1
            assert "offset 3" in outcome.err
            assert "16 records up to offset 19 lie behind it" in outcome.err
            assert (bare / f"{SEGMENT_0}.log").read_bytes() == content
            assert not (bare / "lost").exists()

    def test_opening_refuses_as_often_as_it_is_tried(self, bare: Path) -> None:
        content = (bare / f"{SEGMENT_0}.log").read_bytes()
        for _ in range(2):
            with pytest.raises(DamagedLog, match="16 records up to offset 19 lie behind it"):
                Log.open(bare)
            manager = managed(bare.parent)
            assert "16 records" in str(manager.damaged[TopicPartition("orders", 0)])
            manager.close()
            assert (bare / f"{SEGMENT_0}.log").read_bytes() == content
            (bare.parent / "recovery-point-offset-checkpoint").rename(bare.parent / "aside")

    def test_the_next_start_of_the_broker_refuses_too(self, bare: Path) -> None:
        """Its recovery points now exist: they say that what lies behind the damage was durable."""
        for _ in range(3):
            manager = managed(bare.parent)
            assert TopicPartition("orders", 0) in manager.damaged
            manager.close()
        assert "orders 0 20" in (bare.parent / "recovery-point-offset-checkpoint").read_text()

    def test_the_headline_counts_what_goes(self, command: Command, bare: Path) -> None:
        for options in (["--accept-loss"], ["--recovery-point", "3"]):
            planned = command("recover", bare, "--plan", *options)
            assert planned.out.splitlines()[1] == "16 records would go"
        outcome = command("recover", bare, "--recovery-point", "3")
        assert outcome.code == 0
        assert outcome.out.startswith("16 records went to quarantine\noffsets 0 to 3 ")
        with Log.open(bare) as log:
            assert [loss.records for loss in log.losses()] == [16]

    def test_damage_below_the_given_point(self, command: Command, bare: Path) -> None:
        assert command("recover", bare, "--recovery-point", "4").code == 1

    def test_a_torn_tail_is_cut(self, command: Command, tmp_path: Path) -> None:
        """Nothing sound lies behind it."""
        partition = tmp_path / "orders-0"
        partition.mkdir()
        (partition / f"{SEGMENT_0}.log").write_bytes(FIRST + SECOND[:-5])
        outcome = command("recover", partition)
        assert outcome.code == 0
        assert outcome.out.startswith("0 records went to quarantine\n")

    def test_a_log_of_ours_knows_its_durable_point_from_the_start(self, tmp_path: Path) -> None:
        """Otherwise a hole that a power cut leaves would look like damage."""
        log = Log.open(tmp_path / "orders-0")
        assert (
            tmp_path / "orders-0" / "recovery-point-offset-checkpoint"
        ).read_text() == "0\n1\norders 0 0\n"
        log.append([b"value"] * 2)
        log.append([b"value"])
        log.append([b"value"])
        log.partition.abandon()
        path = tmp_path / "orders-0" / f"{SEGMENT_0}.log"
        content = bytearray(path.read_bytes())
        content[80] ^= 1
        path.write_bytes(content)
        with Log.open(tmp_path / "orders-0") as log:
            assert log.log_end_offset == 0
            assert [loss.records for loss in log.losses()] == [2]


def test_the_loss_of_a_log_whose_directory_was_renamed(command: Command, tmp_path: Path) -> None:
    """Its recovery point has the former name, and is lowered all the same."""
    with Log.open(tmp_path / "orders-0") as log:
        for number in range(5):
            log.append(b"%d" % number)
    directory = (tmp_path / "orders-0").rename(tmp_path / "kept-0")
    path = directory / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedLog):
        Log.open(directory)
    assert command("recover", "--accept-loss", str(directory)).code == 0
    with Log.open(directory) as log:
        assert log.log_end_offset == 4
