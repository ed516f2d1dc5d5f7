"""A cleaner of Kafka's rewrote a sealed segment without a change of its size, while the log was closed.

Every batch is sound and in order, and the blocks are not the sealed ones. An opening does not read them.
"""

from __future__ import annotations

from random import Random

import pytest

from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE
from logstore.checkpoint.entry_files import (
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    write_leader_epoch_checkpoint,
    write_offset_checkpoint,
)
from logstore.cli.owning import load_unclean
from logstore.config import MAX_LONG, LogConfig
from logstore.errors import DamagedLog, DamageKind
from logstore.format.batch import encode_batch, walk
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.partition_log import is_dense
from logstore.segment.seal import read_seal
from logstore.spark.directory_files import SegmentSize
from logstore.spark.verification.check import Kind, examine
from logstore.spark.verification.planning import Run
from logstore.testing.disks import MemoryDisk
from tests.logstore.logs import DIRECTORY, log_file
from tests.logstore.producing import ORDERS


def opened(disk: MemoryDisk, policy: str) -> Log:
    config = LogConfig(segment_bytes=400, cleanup_policy=policy)
    return Log.open(DIRECTORY, config, disk=disk, clock=lambda: 1000)


def rewritten(policy: str) -> MemoryDisk:
    """The first segment's batches have delete horizons, as after the pass that sets them."""
    disk = MemoryDisk(directories=["/data"])
    with opened(disk, policy) as log:
        for number in range(20):
            log.append(b"%02d" % number, key=b"k%02d" % number)
    file = disk.open(f"{DIRECTORY}/{log_file(0)}", write=True)
    data = b"".join(
        encode_batch(
            list(batch.records()),
            base_offset=batch.base_offset,
            leader_epoch=batch.leader_epoch,
            delete_horizon_ms=1001,
        )
        for batch in walk(file.pread(file.size(), 0))
    )
    assert len(data) == file.size()
    file.pwrite(data, 0)
    return disk


def flip(disk: MemoryDisk, position: int) -> None:
    file = disk.open(f"{DIRECTORY}/{log_file(0)}", write=True)
    file.pwrite(bytes([file.pread(1, position)[0] ^ 1]), position)


def test_the_scrub_of_a_compacted_log_seals_it_anew() -> None:
    disk = rewritten("compact")
    with opened(disk, "compact") as log:
        first = log.scrub()
        assert first.damages == ()
        assert [(each.kind, each.file) for each in first.rebuilt] == [(DamageKind.DERIVED, f"{0:020d}.seal")]
        assert log.scrub().rebuilt == ()
        assert log.partition.segments.first.seal == read_seal(disk, DIRECTORY, 0)
        flip(disk, 3)  # of a base offset, which no checksum covers
        assert log.scrub().damages, "the new seal is believed"
        flip(disk, 3)
    with opened(disk, "compact") as log:
        assert log.scrub()[2:] == ((), ()), "after a restart, too"


def test_in_a_log_that_is_not_compacted_it_is_damage() -> None:
    disk = rewritten("delete")
    with opened(disk, "delete") as log:
        (damage,) = log.scrub().damages
        assert damage.kind is DamageKind.CHANGED
        assert log.scrub().damages == (damage,)


def test_a_recovery_that_reads_everything_compares_it_with_its_seal() -> None:
    """`logstore recover` says so, and believes the bytes once that is accepted: no batch goes."""
    disk = rewritten("delete")
    with pytest.raises(DamagedLog, match="differ from the sealed content") as raised:
        load_unclean(disk, DIRECTORY, None)
    assert [each.kind for each in raised.value.damages] == [DamageKind.CHANGED]
    accepted = load_unclean(disk, DIRECTORY, None, accept_loss=True)
    assert (accepted.log_end_offset, [each.kind for each in accepted.report.damages]) == (
        20,
        [DamageKind.CHANGED],
    )
    assert load_unclean(disk, DIRECTORY, None).report.damages == []


def test_a_recovery_that_reads_everything_seals_what_a_cleaner_rewrote_anew() -> None:
    disk = rewritten("delete")
    named_by_a_cleaner(disk, "/data")
    before = read_seal(disk, DIRECTORY, 0)
    loaded = load_unclean(disk, DIRECTORY, None)
    assert loaded.report.damages == []
    assert [note for note in loaded.report.notes if "was rewritten" in note]
    assert read_seal(disk, DIRECTORY, 0) not in (before, None)


def test_what_changes_after_it_was_compared_is_damage() -> None:
    """Nobody else writes to a log that this process has: not even a change that compaction might make."""
    disk = rewritten("compact")
    file = disk.open(f"{DIRECTORY}/{log_file(0)}", write=True)
    horizons = file.pread(file.size(), 0)
    with opened(disk, "compact") as log:
        log.scrub()
        assert log.scrub()[2:] == ((), ())
        before = [encode_batch(list(each.records()), base_offset=each.base_offset) for each in walk(horizons)]
        file.pwrite(b"".join(before), 0)
        assert log.scrub().damages


def test_a_bad_checksum_in_it_is_damage() -> None:
    disk = rewritten("compact")
    flip(disk, 70)
    with opened(disk, "compact") as log:
        assert log.scrub().damages[0].kind is DamageKind.BAD_BATCH


@pytest.mark.parametrize("is_compacted", [True, False])
def test_the_verification_of_replicas(is_compacted: bool) -> None:
    disk = rewritten("compact")
    size = disk.open(f"{DIRECTORY}/{log_file(0)}").size()
    following = next(base for base in range(1, 20) if f"{DIRECTORY}/{log_file(base)}" in disk.files())
    run = Run(
        0, DIRECTORY, (SegmentSize(0, size),), SegmentSize(following, 100), 0, MAX_LONG, (), is_compacted
    )
    found = [fault.kind for fault in examine(disk, run).faults]
    assert found == ([] if is_compacted else [Kind.SEAL])


# --- whatever the settings are by now -----------------------------------------------------------------


def named_by_a_cleaner(disk: MemoryDisk, directory: str) -> None:
    write_offset_checkpoint(disk, directory, CLEANER_OFFSET_CHECKPOINT, {ORDERS: 20})


@pytest.mark.parametrize("place", ["/data", DIRECTORY])
def test_the_checkpoint_of_a_cleaner_counts_as_much_as_the_settings(place: str) -> None:
    """`cleanup.policy` was changed from compact to delete, or a program has settings of its own."""
    disk = rewritten("delete")
    named_by_a_cleaner(disk, place)
    with opened(disk, "delete") as log:
        assert not is_dense(log.partition)
        first = log.scrub()
        assert first.damages == ()
        assert [each.file for each in first.rebuilt] == [f"{0:020d}.seal"]


def test_the_scrub_of_a_broker_whose_topic_is_no_longer_compacted() -> None:
    disk = rewritten("delete")
    disk.remove(f"{DIRECTORY}/recovery-point-offset-checkpoint")
    named_by_a_cleaner(disk, "/data")
    config = LogConfig(segment_bytes=400)
    manager = LogManager(["/data"], disk=disk, clock=lambda: 1000, random=Random(1), config=config)
    log = manager.get(ORDERS)
    assert log is not None
    assert log.scrub().damages == ()
    manager.close()


def test_deleted_records_were_all_that_was_compacted() -> None:
    disk = rewritten("delete")
    with opened(disk, "delete") as log:
        later = log.partition.segments[1].base_offset
        log.delete_records(later)
        log.maintain(1000)
        assert log.partition.segments.first.base_offset == later
    write_offset_checkpoint(disk, "/data", CLEANER_OFFSET_CHECKPOINT, {ORDERS: later})
    with opened(disk, "delete") as log:
        assert is_dense(log.partition)


def test_a_cut_lowers_what_the_cleaner_of_the_log_dir_noted() -> None:
    disk = rewritten("delete")
    named_by_a_cleaner(disk, "/data")
    with opened(disk, "delete") as log:
        log.truncate_to(3)
        log.append([b"again"] * 30)
    with opened(disk, "delete") as log:
        assert log.partition.first_dirty_offset == 3


@pytest.mark.parametrize("recover", [False, True])
def test_a_wrong_epoch_file_beside_what_was_rewritten(recover: bool) -> None:
    """All batches of the rewritten segment contradict the file, so the file is wrong."""
    disk = rewritten("delete")
    named_by_a_cleaner(disk, "/data")
    disk.remove(f"{DIRECTORY}/{CLEAN_SHUTDOWN_FILE}")
    write_leader_epoch_checkpoint(disk, DIRECTORY, [(7, 0)])
    if recover:
        report = load_unclean(disk, DIRECTORY, None).report
    else:
        with opened(disk, "delete") as log:
            report = log.partition.report
    assert [each.file for each in report.wrong] == [LEADER_EPOCH_CHECKPOINT]
