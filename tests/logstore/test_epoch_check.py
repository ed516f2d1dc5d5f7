"""An epoch file that rots while nobody has the log, and still parses, is compared with the batches."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.checkpoint.entry_files import (
    LEADER_EPOCH_CHECKPOINT,
    format_leader_epoch_checkpoint,
    parse_leader_epoch_checkpoint,
)
from logstore.cli.whole_trees import verify_tree
from logstore.config import MAX_LONG, LogConfig
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import LOCK_FILE, Disk
from logstore.errors import DamagedLog, DamageKind
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log import epoch_check
from logstore.log.append import append_as_leader
from logstore.log.epoch_check import judged_history
from logstore.log.loading import LoadedLog
from logstore.log.log import Log
from logstore.log.recovery import load
from logstore.segment import segments as segments_module
from logstore.segment.damage import Verdict
from logstore.segment.epochs import EpochEntry, LeaderEpochCache
from logstore.segment.many_batches import find_batches
from logstore.segment.segment import Segment
from logstore.segment.segments import Located, walk_at
from logstore.testing.disks import MemoryDisk, Operation, RecordingDisk
from tests.golden import kafka_directories
from tests.logstore.logs import DIRECTORY, batch, content_of, disk_with, log_file, names, opened, put
from tests.logstore.verdicts import dumped, read, spark_read, verified

T0 = 1_700_000_000_000
DELETED = LogConfig(segment_bytes=700, index_interval_bytes=100, segment_index_bytes=240, retention_ms=-1)
COMPACTED = LogConfig(
    segment_bytes=700,
    index_interval_bytes=100,
    segment_index_bytes=240,
    cleanup_policy="compact,delete",
    retention_ms=-1,
    min_cleanable_dirty_ratio=0.0,
)


def found_of(disk: Disk, config: LogConfig = DELETED, **known: Any) -> LoadedLog:
    """The log as the next owner loads it after a kill."""
    return load(disk, DIRECTORY, config, is_clean=False, now_ms=T0, was_killed=True, **known)


def epochs_of(loaded: LoadedLog) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in loaded.epochs.entries]


# --- histories --------------------------------------------------------------------------------------


class History:
    """A log with elections, rolls, cuts, deletions and compactions, in the order of drawn numbers."""

    def __init__(self, config: LogConfig) -> None:
        self.config, self.disk = config, MemoryDisk(directories=["/data"])
        self.log = Log.open(DIRECTORY, config, disk=self.disk, clock=lambda: T0)
        self.epoch = 0
        self.log.partition.assign_epoch(0, 0)

    def step(self, what: int, where: float) -> None:
        log = self.log.partition
        match what:
            case 0:  # an election; the leader may write nothing
                self.epoch += 1 + int(where * 3)
                log.assign_epoch(self.epoch, log.log_end_offset)
            case 1:
                log.roll()
            case 2:
                self.log.truncate_to(int(where * (log.log_end_offset + 1)))
            case 3:
                start = log.log_start_offset
                self.log.delete_records(start + int(where * (log.log_end_offset - start + 1)))
            case 4 if self.config.is_compacted:
                self.log.compact(T0 + 86_400_000)
            case 5:
                self.log.flush()
            case 6:
                self.log.maintain(T0)
            case _:
                records = [
                    Record(each, T0 + each, b"%d" % (int(where * 7) + each), b"v" * 20)
                    for each in range(1 + int(where * 4))
                ]
                append_as_leader(log, encode_batch(records), leader_epoch=self.epoch, now_ms=T0)

    def killed(self) -> tuple[MemoryDisk, dict[str, Any]]:
        """The disk as a kill leaves it, and the checkpoints."""
        log = self.log.partition
        return self.disk.copy(), {
            "recovery_point": log.recovery_point,
            "log_start_offset": log.log_start_offset,
            "first_dirty_offset": log.first_dirty_offset,
        }


STEPS = st.lists(st.tuples(st.integers(0, 14), st.floats(0, 1, exclude_max=True)), max_size=60)


@settings(deadline=None, max_examples=60)
@given(
    steps=STEPS,
    config=st.sampled_from([DELETED, COMPACTED]),
    later=st.sampled_from([DELETED, COMPACTED]),
    cut=st.none() | st.integers(0, 1 << 20),
)
def test_no_history_of_a_sound_log_is_called_wrong(
    steps: list[tuple[int, float]], config: LogConfig, later: LogConfig, cut: int | None
) -> None:
    """Any elections, truncations, deletions and compactions, before a kill or a power cut.

    The topic's `cleanup.policy` may be another by then.
    """
    history = History(config)
    for step in steps:
        history.step(*step)
    if cut is None:
        disk, known = history.killed()
        loaded = found_of(disk, later, **known)
        held = [tuple(each) for each in history.log.partition.epochs]
        end = loaded.log_end_offset
        if loaded.log_start_offset < end:
            assert epochs_of(loaded) == [each for each in held if each[1] < end]
        report = loaded.report
    else:
        disk = history.disk.power_cut(Random(cut))
        log = Log.open(DIRECTORY, later, disk=disk, clock=lambda: T0)
        report = log.partition.report
        assert log.scrub().damages == ()
    assert report.wrong == []
    assert LEADER_EPOCH_CHECKPOINT not in " ".join(report.rebuilt + report.notes)


def rotten(content: bytes) -> Iterator[bytes]:
    """Every change of one bit after which the file parses, and says something else."""
    right = LeaderEpochCache(parse_leader_epoch_checkpoint(content)).entries
    for position in range(len(content)):
        for bit in range(8):
            changed = content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]
            try:
                found = LeaderEpochCache(parse_leader_epoch_checkpoint(changed)).entries
            except (CorruptCheckpoint, ValueError):
                continue
            if found != right:
                yield changed


def full_log(*, batches_an_epoch: int = 3, epochs: int = 4, config: LogConfig = DELETED) -> History:
    history = History(config)
    for _ in range(epochs):
        for _ in range(batches_an_epoch):
            history.step(9, 0.5)
        history.step(0, 0.5)
    return history


def test_every_bit_that_rots_unseen_is_found() -> None:
    """Three batches an epoch: two batches contradict a wrong file, or an epoch begins inside of one."""
    disk, known = full_log().killed()
    right = content_of(disk, LEADER_EPOCH_CHECKPOINT)
    entries = epochs_of(found_of(disk.copy(), **known))
    assert len(entries) == 4
    count = 0
    for changed in rotten(right):
        after = disk.copy()
        put(after, LEADER_EPOCH_CHECKPOINT, changed)
        loaded = found_of(after, **known)
        assert epochs_of(loaded) == entries, changed
        told = [each.file for each in loaded.report.wrong] + [
            note for note in loaded.report.notes if note.startswith(LEADER_EPOCH_CHECKPOINT)
        ]
        # An entry at the log end goes with every opening: its leader wrote nothing.
        last = LeaderEpochCache(parse_leader_epoch_checkpoint(changed)).entries
        assert told or [tuple(each) for each in last if each.start_offset < loaded.log_end_offset] == entries
        assert content_of(after, LEADER_EPOCH_CHECKPOINT) == format_leader_epoch_checkpoint(entries)
        assert found_of(after.copy(), **known).report.wrong == [], "it is mended once"
        count += bool(told)
    assert count > 15  # other changes do not parse


def test_whoever_only_reads_blames_the_file_too() -> None:
    """They blamed each batch of the epoch, and a reader of a copy stopped there."""
    killed, known = full_log().killed()
    entries = epochs_of(found_of(killed.copy(), **known))
    disk = disk_with({name: content_of(killed, name) for name in names(killed) if name != LOCK_FILE})
    right = content_of(disk, LEADER_EPOCH_CHECKPOINT)
    count = 0
    for changed in rotten(right):
        after = disk.copy()
        put(after, LEADER_EPOCH_CHECKPOINT, changed)
        history, text = judged_history(after, DIRECTORY)
        assert [read(after, DIRECTORY), spark_read(after, DIRECTORY)] == [Verdict.SOUND, Verdict.SOUND], (
            changed
        )
        found = [each for each in verify_tree(after, DIRECTORY, lambda _: None) if each.is_damage]
        if text:
            assert [tuple(each) for each in history] == entries
            assert [(each.path, each.text) for each in found] == [
                (f"{DIRECTORY}/{LEADER_EPOCH_CHECKPOINT}", text)
            ]
        else:  # it begins later, or lacks the newest epoch, as DeleteRecords or a power cut leaves it
            assert found == []
        assert dumped(after, DIRECTORY) is Verdict.SOUND
        count += bool(text)
    assert count > 10


def test_one_batch_against_the_file_is_blamed_by_readers_too() -> None:
    disk = directory(*BATCHES[:4], with_epoch(BATCHES[4], 2), BATCHES[5])
    assert judged_history(disk, DIRECTORY) == ([(0, 0), (1, 4), (3, 8)], "")
    assert verified(disk, DIRECTORY) is read(disk, DIRECTORY) is dumped(disk, DIRECTORY) is Verdict.DAMAGE


def test_the_damage_is_named_for_the_first_who_looks() -> None:
    disk, known = full_log().killed()
    put(disk, LEADER_EPOCH_CHECKPOINT, content_of(disk, LEADER_EPOCH_CHECKPOINT).replace(b"\n2 ", b"\n3 "))
    (wrong,) = found_of(disk, **known).report.wrong
    assert (wrong.kind, wrong.file) == (DamageKind.DERIVED, LEADER_EPOCH_CHECKPOINT)
    assert wrong.text == "it has epoch 3 from offset 9 on, the batches have epoch 2 from offset 9 on"


# --- the batch may be the one that rotted -----------------------------------------------------------

EPOCHS = b"0\n3\n0 0\n1 4\n3 8\n"
BATCHES = [
    batch(at, range(1000 + at, 1002 + at), epoch=[0, 0, 1, 1, 3, 3][at // 2]) for at in range(0, 12, 2)
]


def directory(*batches: bytes, epochs: bytes = EPOCHS) -> MemoryDisk:
    return disk_with({log_file(0): b"".join(batches), LEADER_EPOCH_CHECKPOINT: epochs})


def with_epoch(data: bytes, epoch: int) -> bytes:
    return data[:12] + epoch.to_bytes(4, "big") + data[16:]


def test_one_batch_against_the_file_is_the_one_that_rotted() -> None:
    """Its epoch lies outside of its checksum. The file stands, and the batch is damage, as before."""
    disk = directory(*BATCHES[:4], with_epoch(BATCHES[4], 2), BATCHES[5])
    with pytest.raises(DamagedLog, match="another leader epoch"):
        opened(disk, recovery_point=12)
    assert content_of(disk, LEADER_EPOCH_CHECKPOINT) == EPOCHS


def test_an_epoch_that_begins_inside_a_batch_is_a_wrong_file() -> None:
    loaded = opened(directory(*BATCHES, epochs=b"0\n3\n0 0\n1 3\n3 8\n"), recovery_point=12)
    assert epochs_of(loaded) == [(0, 0), (1, 4), (3, 8)]
    (wrong,) = loaded.report.wrong
    assert wrong.text == "it has epoch 1 from offset 3 on, the batches have epoch 1 from offset 4 on"


def test_one_batch_in_a_segment_as_it_was_sealed_is_right() -> None:
    """Its seal covers the epoch, too."""
    files = {log_file(0): b"".join(BATCHES[:5]), log_file(10): BATCHES[5]}
    disk = disk_with(files | {LEADER_EPOCH_CHECKPOINT: EPOCHS})
    opened(disk)  # seals it
    for epochs in (b"0\n3\n0 0\n1 4\n3 6\n", b"0\n3\n0 0\n1 6\n3 8\n", b"0\n3\n0 0\n1 4\n2 8\n"):
        after = disk.copy()
        put(after, LEADER_EPOCH_CHECKPOINT, epochs)
        loaded = opened(after, recovery_point=12)
        assert epochs_of(loaded) == [(0, 0), (1, 4), (3, 8)], epochs
        assert len(loaded.report.wrong) == 1


def test_a_file_that_is_older_than_the_last_batches_is_completed_in_silence() -> None:
    """As a power cut leaves it, past the durable end. Where the process was killed, it cannot be older."""
    disk = directory(*BATCHES, epochs=b"0\n2\n0 0\n1 4\n")
    loaded = opened(disk.copy(), recovery_point=8)
    assert (epochs_of(loaded), loaded.report.wrong) == ([(0, 0), (1, 4), (3, 8)], [])
    loaded = opened(disk, recovery_point=12)
    assert epochs_of(loaded) == [(0, 0), (1, 4), (3, 8)]
    assert len(loaded.report.wrong) == 1


@pytest.mark.parametrize("epochs", [b"0\n1\n4 0\n", b"0\n2\n0 0\n7 4\n", b"0\n1\n0 8\n"])
def test_past_the_durable_end_the_batches_tell(epochs: bytes) -> None:
    """Row 399: they are read in any case, and a wrong entry is no better than none."""
    for recovery_point in (0, 4):
        loaded = opened(directory(*BATCHES, epochs=epochs), recovery_point=recovery_point)
        assert epochs_of(loaded) == [(0, 0), (1, 4), (3, 8)]


@pytest.mark.parametrize("is_one_segment", [False, True])
def test_a_batch_past_the_durable_end_that_is_older_than_the_file_counts(is_one_segment: bool) -> None:
    """Epochs never fall. With the one below the durable end it makes two against the file, which would cut
    synced batches as the torn end of a write (seed 610937)."""
    logs = {log_file(0): BATCHES[0], log_file(2): BATCHES[1]}
    if is_one_segment:
        logs = {log_file(0): BATCHES[0] + BATCHES[1]}
    disk = disk_with(logs | {LEADER_EPOCH_CHECKPOINT: b"0\n2\n2 0\n2 4\n"})
    loaded = opened(disk, recovery_point=2)
    assert (epochs_of(loaded), loaded.log_end_offset, loaded.report.cuts) == ([(0, 0)], 4, [])
    assert len(loaded.report.wrong) == 1


def test_all_batches_past_the_durable_end_may_be_older_than_the_file() -> None:
    """The log starts at the durable end, so that no batch lies beside the wrong entry: all of them would be
    cut as the torn end of a write."""
    disk = disk_with({log_file(2): BATCHES[1] + batch(4, (1004, 1005), epoch=0)})
    put(disk, LEADER_EPOCH_CHECKPOINT, b"0\n1\n1 1\n")
    loaded = opened(disk, recovery_point=2)
    assert (epochs_of(loaded), loaded.log_end_offset, loaded.report.cuts) == ([(0, 2)], 6, [])
    assert len(loaded.report.wrong) == 1


def test_a_file_whose_offsets_fall_is_rebuilt() -> None:
    """Kafka would drop the first entry (seed 5009756)."""
    disk = disk_with({log_file(2): b"".join(BATCHES[1:])})
    put(disk, LEADER_EPOCH_CHECKPOINT, b"0\n3\n0 2\n1 1\n3 8\n")
    loaded = opened(disk, recovery_point=12)
    assert epochs_of(loaded) == [(0, 2), (1, 4), (3, 8)]
    (wrong,) = loaded.report.wrong
    assert wrong.text.endswith("checkpoint: epoch 1 from offset 1 on follows epoch 0 from offset 2 on")


def test_two_epochs_at_one_offset_are_no_damage() -> None:
    """The first one's leader wrote nothing. The file is written without it."""
    disk = disk_with({log_file(2): b"".join(BATCHES[1:])})
    put(disk, LEADER_EPOCH_CHECKPOINT, b"0\n4\n0 2\n1 4\n2 8\n3 8\n")
    loaded = opened(disk, recovery_point=12)
    assert (epochs_of(loaded), loaded.report.wrong) == ([(0, 2), (1, 4), (3, 8)], [])
    assert content_of(disk, LEADER_EPOCH_CHECKPOINT) == b"0\n3\n0 2\n1 4\n3 8\n"


def test_a_batch_past_the_durable_end_that_is_newer_than_the_file_counts_not() -> None:
    """It says nothing of the one batch below the durable end, which may be the one that rotted."""
    newer = batch(2, (1002, 1003), epoch=3)
    disk = disk_with({log_file(0): BATCHES[0] + newer, LEADER_EPOCH_CHECKPOINT: b"0\n1\n2 0\n"})
    with pytest.raises(DamagedLog, match="another leader epoch"):
        opened(disk, recovery_point=2)
    assert content_of(disk, LEADER_EPOCH_CHECKPOINT) == b"0\n1\n2 0\n"


def test_a_file_whose_entries_all_lie_past_the_durable_end_is_completed() -> None:
    """The batches before it are sealed, and nothing else would read them."""
    files = {log_file(0): b"".join(BATCHES[:2]), log_file(4): b""}
    disk = disk_with(files | {LEADER_EPOCH_CHECKPOINT: b"0\n1\n0 0\n"})
    opened(disk)  # seals it
    put(disk, LEADER_EPOCH_CHECKPOINT, b"0\n1\n3 4\n")
    loaded = opened(disk, recovery_point=4)
    assert epochs_of(loaded) == [(0, 0)]
    assert len(loaded.report.notes) == 1


def test_a_first_entry_past_the_first_batches_is_completed_with_a_note() -> None:
    """Kafka leaves it if it is killed after DeleteRecords: the checkpoint of log starts is a minute older."""
    loaded = opened(directory(*BATCHES, epochs=b"0\n2\n1 6\n3 8\n"), recovery_point=12)
    assert epochs_of(loaded) == [(0, 0), (1, 4), (3, 8)]
    assert loaded.report.wrong == []
    (note,) = loaded.report.notes
    assert note == "leader-epoch-checkpoint begins at offset 6, the batches at 0; it was completed from them"


def test_damaged_batches_rebuild_nothing() -> None:
    """Their epochs are unknown. The damage is mended first."""
    bad = bytearray(BATCHES[2])
    bad[70] ^= 1
    wrong = b"0\n3\n0 0\n1 4\n2 8\n"
    disk = directory(*BATCHES[:2], bytes(bad), *BATCHES[3:], epochs=wrong)
    with pytest.raises(DamagedLog):
        opened(disk, recovery_point=12)
    assert content_of(disk, LEADER_EPOCH_CHECKPOINT) == wrong


def test_an_index_that_rotted_too_misleads_nobody() -> None:
    for seed in range(40):
        chance = Random(seed)
        disk, known = full_log().killed()
        for name in names(disk):
            if name.endswith(".index"):
                put(disk, name, chance.randbytes(chance.randrange(64)))
        assert found_of(disk.copy(), **known).report.wrong == []
        put(disk, LEADER_EPOCH_CHECKPOINT, b"0\n4\n0 0\n1 9\n2 18\n4 27\n")
        assert len(found_of(disk, **known).report.wrong) == 1


# --- cost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches_an_epoch", [10, 100])
def test_a_right_file_costs_some_headers_for_each_entry(batches_an_epoch: int) -> None:
    """Below the recovery point, and no more in a longer log."""
    history = full_log(batches_an_epoch=batches_an_epoch, epochs=8)
    history.step(5, 0)
    disk, known = history.killed()
    read = 0

    def count(operation: Operation) -> None:
        nonlocal read
        if operation.name == "pread" and operation.path.endswith((".log", ".index")):
            read += operation.length

    found_of(RecordingDisk(disk, before=count, reads=True), **known)
    assert history.log.partition.segments.active.size < 1000
    assert read < 8 * 4 * 1000


def many_small(rng: Random, count: int, base: int = 0) -> bytes:
    """Batches end to end, of one size or of several, with a gap here and there."""
    sizes = [60] if rng.random() < 0.5 else [10, 40, 90]
    found = b""
    for _ in range(count):
        record = Record(base, T0, None, b"v" * rng.choice(sizes))
        found += encode_batch([record], base_offset=base, leader_epoch=0)
        base += rng.choice([1, 1, 2])
    return found


def test_small_batches_without_index_entries_are_not_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a crash, which may leave a whole segment without them."""
    for seed in range(4):
        log = encode_batch([Record(0, T0, None, bytes(seed * 10_000))], leader_epoch=0)
        log += many_small(Random(seed), 3000, base=1)
        disk = disk_with({log_file(0): log, LEADER_EPOCH_CHECKPOINT: b"0\n1\n0 0\n"})
        looked_at = 0
        place = segments_module._place

        def count(*given: Any, place: Any = place) -> Any:
            nonlocal looked_at
            looked_at += 1
            return place(*given)

        with monkeypatch.context() as patched:
            patched.setattr(segments_module, "_place", count)
            assert found_of(disk, recovery_point=0, log_start_offset=0).report.wrong == []
        assert looked_at < 500, f"seed {seed}"


def test_a_segment_without_an_index_is_walked_once_for_all_its_epochs() -> None:
    """And not from its begin for each of them."""
    count = 50
    log = b"".join(
        encode_batch([Record(number, T0, None, bytes(20_000))], base_offset=number, leader_epoch=number)
        for number in range(count)
    )
    epochs = "".join(f"{number} {number}\n" for number in range(count))
    disk = disk_with({log_file(0): log, LEADER_EPOCH_CHECKPOINT: f"0\n{count}\n{epochs}".encode()})
    reads = 0

    def note(operation: Operation) -> None:
        nonlocal reads
        reads += operation.name == "pread" and operation.path.endswith(".log")

    segments = epoch_check._segments_of(RecordingDisk(disk, before=note, reads=True), DIRECTORY)
    entries = [EpochEntry(number, number) for number in range(count)]
    assert not epoch_check._is_doubtful(segments, entries, 0, MAX_LONG)
    assert reads < 5 * count


@pytest.mark.parametrize("seed", range(30))
def test_batches_around_an_offset_are_those_of_a_walk_over_all(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any bytes of headers changed, too."""
    rng = Random(seed)
    data = bytearray(many_small(rng, 700))
    starts = find_batches(bytes(data), len(data))[0]
    for _ in range(rng.choice([0, 1, 3])):
        data[int(rng.choice(starts)) + rng.choice([0, 7, 8, 11, 16, 16, 23, 23, 26])] ^= 1 << rng.randrange(8)
    disk = disk_with({log_file(0): bytes(data)})
    segment = Segment(disk, DIRECTORY, 0, LogConfig(), size=len(data), now_ms=0)
    monkeypatch.setattr(epoch_check, "_SKIPPED_BYTES", rng.choice([1 << 14, 1 << 15, 1 << 20]))
    monkeypatch.setattr(epoch_check, "_WORTH_SKIPPING_BYTES", 0)
    offsets = [0, 1, 5, MAX_LONG, *(rng.randrange(1200) for _ in range(20))]
    offsets.sort()
    found = [epoch_check._around_in(segment, offset, {}) for offset in offsets]
    reached: dict[int, Located] = {}
    assert found == [epoch_check._around_in(segment, offset, reached) for offset in offsets], f"seed {seed}"
    monkeypatch.setattr(epoch_check, "_WORTH_SKIPPING_BYTES", MAX_LONG)
    assert found == [epoch_check._around_in(segment, offset, {}) for offset in offsets], f"seed {seed}"


# --- Kafka's directories ----------------------------------------------------------------------------


def partitions() -> dict[str, dict[str, bytes]]:
    """The files of each partition that Apache Kafka wrote, of both log dirs."""
    found: dict[str, dict[str, bytes]] = {}
    for name in ("kraft-dir", "kafka-logs"):
        for path, content in kafka_directories.directory(name).items():
            partition, _, file = path.rpartition("/")
            if LEADER_EPOCH_CHECKPOINT in path or f"{partition}/{LEADER_EPOCH_CHECKPOINT}" in (
                kafka_directories.directory(name)
            ):
                found.setdefault(f"{name}/{partition}", {})[file] = content
    return found


@pytest.mark.parametrize("is_clean", [True, False])
def test_what_kafka_wrote_is_right(is_clean: bool) -> None:
    """Compacted partitions, transactions and logs without a record among them."""
    count = 0
    for name, files in partitions().items():
        for cleanup in ("delete", "compact"):
            disk = disk_with(files)
            loaded = opened(disk, clean=is_clean, config=LogConfig(cleanup_policy=cleanup))
            assert loaded.report.wrong == [], name
            assert LEADER_EPOCH_CHECKPOINT not in " ".join(loaded.report.rebuilt + loaded.report.notes), name
            count += 1
    assert count > 20


def test_a_wrong_epoch_in_what_kafka_wrote_is_found() -> None:
    count = 0
    for files in partitions().values():
        entries = parse_leader_epoch_checkpoint(files[LEADER_EPOCH_CHECKPOINT])
        disk = disk_with(files)
        loaded = opened(disk, clean=True)
        batches = sum(1 for each in loaded.segments.values() if each.size for _ in walk_at(each, 0))
        if len(entries) != 1 or batches < 2:
            continue
        disk = disk_with(files | {LEADER_EPOCH_CHECKPOINT: b"0\n1\n%d 0\n" % (entries[0][0] + 8)})
        found = opened(disk, clean=True)
        assert len(found.report.wrong) == 1
        assert {entry.epoch for entry in found.epochs.entries} == {entries[0][0]}
        count += 1
    assert count > 3
