"""Seals: their bytes, what they prove, and when they come and go."""

from __future__ import annotations

from typing import ClassVar

import pytest

from logstore.checkpoint.clean_shutdown import CLEAN_SHUTDOWN_FILE
from logstore.cli.owning import load_unclean
from logstore.cli.whole_trees import verify_tree
from logstore.config import LogConfig
from logstore.disk.errors import EngineError
from logstore.errors import CorruptSeal, DamagedLog, DamageKind
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.log import Log
from logstore.segment.damage import Expected, Listed, judge_chain, judge_segment
from logstore.segment.seal import Seal, broken_blocks, decode_seal, make_seal, read_seal, write_seal
from logstore.testing.disks import MemoryDisk, Operation, RecordingDisk
from tests.logstore.logs import DIRECTORY, log_file, names, put

SEAL = Seal(5, 9, 10, 3, 0, 0, 0, 2, b"\x00\x00\x00\x01\xff\x00\x00\x02")


def sealed_log(disk: MemoryDisk | RecordingDisk | None = None) -> tuple[MemoryDisk, Log]:
    """A log of segments 0, 2, 4, …, each of two batches; the last one is active."""
    below = MemoryDisk(directories=["/data"])
    log = Log.open(DIRECTORY, LogConfig(segment_bytes=150), disk=disk or below, clock=lambda: 1000)
    for number in range(7):
        log.append(b"%d" % number)
    return below, log


def reopened(disk: MemoryDisk, *, accept_loss: bool = False) -> Log:
    return Log.open(
        DIRECTORY, LogConfig(segment_bytes=150), disk=disk, clock=lambda: 1000, accept_loss=accept_loss
    )


def seal_name(base_offset: int) -> str:
    return f"{base_offset:020d}.seal"


class TestBytes:
    def test_round_trip(self) -> None:
        assert decode_seal(SEAL.encode(), base_offset=5) == SEAL

    def test_any_flipped_bit_is_seen(self) -> None:
        data = SEAL.encode()
        for position in range(len(data)):
            for bit in range(8):
                broken = bytearray(data)
                broken[position] ^= 1 << bit
                with pytest.raises(CorruptSeal):
                    decode_seal(broken, base_offset=5)

    def test_any_length_but_its_own_is_seen(self) -> None:
        data = SEAL.encode()
        for size in range(len(data)):
            with pytest.raises(CorruptSeal):
                decode_seal(data[:size], base_offset=5)
        with pytest.raises(CorruptSeal):
            decode_seal(data + b"\0", base_offset=5)

    @pytest.mark.parametrize(
        "seal",
        [
            SEAL._replace(base_offset=6),
            SEAL._replace(end_offset=4),
            SEAL._replace(successor=8),
            SEAL._replace(size=5),
            SEAL._replace(block_bytes=0),
        ],
    )
    def test_fields_that_contradict_each_other(self, seal: Seal) -> None:
        """A right checksum over wrong fields: another segment's seal, or another writer's."""
        with pytest.raises(CorruptSeal):
            decode_seal(seal.encode(), base_offset=5)

    def test_blocks_say_where(self) -> None:
        disk = MemoryDisk({"/d/x": bytes(5 << 19)})
        file = disk.open("/d/x", write=True)
        seal = make_seal(file, 5 << 19, base_offset=0, end_offset=9, successor=9)
        assert len(seal.blocks) == 3 * 4
        assert list(broken_blocks(file, seal)) == []
        file.pwrite(b"\x01", (1 << 20) + 7)
        file.pwrite(b"\x01", (5 << 19) - 1)
        assert list(broken_blocks(file, seal)) == [(1 << 20, 2 << 20), (2 << 20, 5 << 19)]


@pytest.mark.parametrize(("judged", "kind"), [(2, DamageKind.SHORTER), (4, DamageKind.LONGER)])
def test_a_segment_of_another_size_than_sealed(judged: int, kind: DamageKind) -> None:
    """Every batch is sound, and the segment ends before or behind the place where it was sealed."""
    batches = [encode_batch([Record(number, 0, None, b"v")], base_offset=number) for number in range(4)]
    file = MemoryDisk({"/d/x": b"".join(batches)}).open("/d/x")
    sealed, size = (sum(map(len, batches[:count])) for count in (3, judged))
    seal = make_seal(file, sealed, base_offset=0, end_offset=3, successor=3)
    *_, last = judge_segment(file, Expected(0, size, judged, seal))
    (damage,) = last.damages
    assert (damage.kind, damage.position, damage.offset, damage.end_offset) == (kind, size, judged, 3)
    assert damage.text == f"{size} bytes where {sealed} were sealed"


def test_a_batch_that_reaches_into_the_next_segment() -> None:
    """Its last offset is the base of the next segment."""
    batches = [encode_batch([Record(number, 0, None, b"v")], base_offset=number) for number in range(3)]
    data = b"".join(batches)
    file = MemoryDisk({"/d/x": data}).open("/d/x")
    for end_offset, found in ((3, []), (2, [DamageKind.BAD_BATCH])):
        *_, last = judge_segment(file, Expected(0, len(data), end_offset))
        assert [each.kind for each in last.damages] == found


class TestChain:
    SEALS: ClassVar = {0: SEAL._replace(base_offset=0, end_offset=4, successor=4, size=100)}

    def kinds(self, *segments: tuple[int, int], start: int = 0) -> list[DamageKind]:
        listed = [Listed(*segment) for segment in segments]
        return [damage.kind for damage in judge_chain(listed, self.SEALS, start).damages]

    def test_what_is_as_it_was(self) -> None:
        assert self.kinds((0, 100), (4, 7)) == []

    def test_what_a_crash_leaves(self) -> None:
        """No successor yet; bytes appended after a roll that failed; a successor that was being replaced."""
        assert self.kinds((0, 100)) == []
        assert self.kinds((0, 130)) == []
        assert self.kinds((0, 100), (2, 0)) == []
        chain = judge_chain([Listed(0, 100), Listed(2, 0), Listed(4, 9)], self.SEALS, 0)
        assert (chain.damages, chain.replaced) == ([], [2])

    def test_what_none_does(self) -> None:
        assert self.kinds((0, 99)) == [DamageKind.SHORTER]
        assert self.kinds((0, 101), (4, 7)) == [DamageKind.LONGER]
        assert self.kinds((0, 100), (7, 7)) == [DamageKind.SEGMENT_GONE]
        assert self.kinds((0, 100), (7, 0)) == [DamageKind.SEGMENT_GONE]
        assert self.kinds((0, 100), (3, 7)) == [DamageKind.OVERLAP]

    def test_a_hole_below_the_start_is_a_deletion(self) -> None:
        assert self.kinds((0, 100), (7, 7), start=6) == [DamageKind.SEGMENT_GONE]
        assert self.kinds((0, 100), (7, 7), start=7) == []


class TestComingAndGoing:
    def test_sealed_segments_have_one_and_the_active_has_none(self) -> None:
        disk, log = sealed_log()
        bases = [segment.base_offset for segment in log.partition.segments]
        assert [name for name in names(disk) if name.endswith(".seal")] == [seal_name(b) for b in bases[:-1]]
        for segment, successor in zip(log.partition.segments, bases[1:], strict=False):
            seal = read_seal(disk, DIRECTORY, segment.base_offset)
            assert seal is not None
            assert (seal.end_offset, seal.successor, seal.size) == (successor, successor, segment.size)
            assert not list(broken_blocks(segment.log_file, seal))

    def test_one_sync_a_roll(self) -> None:
        """Its name waits for the directory's next sync, which the new segment's needs anyway."""
        calls: list[Operation] = []
        _, log = sealed_log(RecordingDisk(MemoryDisk(directories=["/data"]), before=calls.append))
        calls.clear()
        log.partition.roll()
        names = [operation.name for operation in calls if operation.path.endswith(".seal")]
        assert names == ["create", "truncate", "pwrite", "sync"]
        after = calls[[operation.path.endswith(".seal") for operation in calls].index(True) + len(names)]
        assert after.name != "sync_dir"

    def test_a_truncation_removes_the_one_of_the_segment_it_cuts(self) -> None:
        disk, log = sealed_log()
        log.truncate_to(3)
        assert [name for name in names(disk.durable_image()) if name.endswith(".seal")] == [seal_name(0)]

    def test_a_gap_is_in_the_chain(self) -> None:
        """The log end lies past the last batch: the segment that begins there is named as the next one."""
        disk = MemoryDisk(directories=["/data"])
        log = Log.open(DIRECTORY, LogConfig(), disk=disk, clock=lambda: 1000)
        log.append([b"0", b"1", b"2"])
        log.append([b"3", b"4", b"5"])
        log.truncate_to(5)
        assert [segment.base_offset for segment in log.partition.segments] == [0, 5]
        seal = read_seal(disk, DIRECTORY, 0)
        assert seal is not None
        assert (seal.end_offset, seal.successor) == (3, 5)
        log.close()
        again = reopened(disk)
        assert (again.log_end_offset, again.partition.recovery_point) == (5, 5)

    def test_replacing_the_empty_active_segment_rewrites_it(self) -> None:
        disk, log = sealed_log()
        log.partition.roll()
        log.partition.roll_at(20, 1000)  # as a follower's append past a gap does
        last = log.partition.segments[-2].base_offset
        seal = read_seal(disk, DIRECTORY, last)
        assert seal is not None
        assert (seal.successor, log.partition.segments[-1].base_offset) == (20, 20)

    def test_a_broker_that_closed_in_order_makes_them_void(self) -> None:
        """It may have rewritten what they speak of: they go, durably, before its mark does."""
        disk, log = sealed_log()
        log.close()
        put(disk, CLEAN_SHUTDOWN_FILE, b'{"version":0,"brokerEpoch":12}')
        disk.remove(f"{DIRECTORY}/{log_file(0)}")
        order: list[str] = []

        def note(operation: Operation) -> None:
            if operation.name == "remove":
                order.append(operation.path.rsplit("/", 1)[1])

        again = Log.open(DIRECTORY, LogConfig(), disk=RecordingDisk(disk, before=note), clock=lambda: 1000)
        assert again.log_start_offset == 2
        marker = order.index(CLEAN_SHUTDOWN_FILE)
        assert [name for name in order[:marker] if not name.endswith(".seal")] == []
        assert len(order[:marker]) == 3

    def test_garbage_counts_for_nothing(self) -> None:
        disk, log = sealed_log()
        log.close()
        put(disk, seal_name(0), b"garbage")
        again = reopened(disk)
        assert [record.value for record in again.read()] == [b"%d" % number for number in range(7)]
        assert any("seal 0" in note for note in again.partition.report.notes)

    def test_what_recovery_has_read_is_sealed_again(self) -> None:
        disk, _ = sealed_log()
        disk.remove(f"{DIRECTORY}/{seal_name(0)}")
        for name in ("recovery-point-offset-checkpoint", seal_name(2), seal_name(4)):
            disk.remove(f"{DIRECTORY}/{name}")
        again = reopened(disk.copy())
        assert [segment.seal is not None for segment in again.partition.segments] == [True, True, True, False]

    def test_recovery_seals_what_it_rebuilt_of_aborted_transactions(self) -> None:
        """A compaction removes the data of an aborted transaction; its index entry goes with a recovery."""
        config = LogConfig(cleanup_policy="compact", segment_bytes=200)
        disk = MemoryDisk(directories=["/data"])
        log = Log.open(DIRECTORY, config, disk=disk, clock=lambda: 1000)
        for sequence, key in enumerate((b"gone", b"kept")):
            data = encode_batch(
                [Record(0, 1000, key, b"x")],
                producer_id=1, producer_epoch=0, base_sequence=sequence, is_transactional=True,
            )  # fmt: skip
            append_as_leader(log.partition, data, leader_epoch=0, now_ms=1000)
            log.end_transaction(1, 0, commit=key == b"kept")
        log.partition.roll()
        log.compact()
        loaded = load_unclean(disk := disk.survivor(), DIRECTORY, None)
        assert loaded.segments[0].aborts.index.encode() == b""
        assert not [each for each in verify_tree(disk, DIRECTORY, lambda _: None) if each.is_damage]


class TestDamage:
    """Named, with nothing changed; or cut there, if the loss is accepted."""

    def damaged(self, disk: MemoryDisk) -> DamagedLog:
        before = disk.files()
        with pytest.raises(DamagedLog) as caught:
            reopened(disk)
        after = disk.files()
        assert all(after[path] == content for path, content in before.items() if path.endswith(".log"))
        return caught.value

    @pytest.mark.parametrize("clean", [True, False])
    def test_a_segment_gone(self, clean: bool) -> None:
        disk, log = sealed_log()
        if clean:
            log.close()
        disk = disk.copy()
        disk.remove(f"{DIRECTORY}/{log_file(2)}")
        error = self.damaged(disk)
        assert [(each.kind, each.file, each.offset) for each in error.damages] == [
            (DamageKind.SEGMENT_GONE, log_file(2), 2)
        ]
        again = reopened(disk, accept_loss=True)
        assert [record.value for record in again.read()] == [b"0", b"1"]
        assert again.partition.report.damages == list(error.damages)
        assert not [name for name in names(disk) if name.endswith(".seal")]

    @pytest.mark.parametrize("clean", [True, False])
    def test_the_last_segment_gone(self, clean: bool) -> None:
        disk, log = sealed_log()
        log.flush()
        if clean:
            log.close()
        else:  # the recovery point is noted when segments are sealed, and at a close
            put(disk, "recovery-point-offset-checkpoint", b"0\n1\norders 0 7\n")
        disk = disk.copy()
        disk.remove(f"{DIRECTORY}/{log_file(6)}")
        assert [each.kind for each in self.damaged(disk).damages] == [DamageKind.END_LOST]
        assert reopened(disk, accept_loss=True).log_end_offset == 6

    @pytest.mark.parametrize("change", [-1, 1])
    def test_a_size(self, change: int) -> None:
        disk, log = sealed_log()
        log.close()
        file = disk.open(f"{DIRECTORY}/{log_file(2)}", write=True)
        file.truncate(file.size() + change)
        kind = DamageKind.SHORTER if change < 0 else DamageKind.LONGER
        assert [each.kind for each in self.damaged(disk).damages] == [kind]
        again = reopened(disk, accept_loss=True)
        assert again.log_end_offset == (3 if change < 0 else 4)

    def test_the_durable_end_is_that_of_the_last_seal(self) -> None:
        """No recovery point is known, and the bad batch lies in a sealed segment."""
        disk = sealed_log()[0].copy()
        disk.remove(f"{DIRECTORY}/recovery-point-offset-checkpoint")
        for name in (seal_name(0), seal_name(2)):
            disk.remove(f"{DIRECTORY}/{name}")
        disk.remove(f"{DIRECTORY}/{log_file(2)[:-4]}.index")
        file = disk.open(f"{DIRECTORY}/{log_file(2)}", write=True)
        file.pwrite(b"\xa5", 68)
        assert [each.kind for each in self.damaged(disk).damages] == [DamageKind.BAD_BATCH]


class TestReadsBelieveNoHeader:
    """Base offset and leader epoch lie outside of a batch's checksum: its neighbours and the history tell."""

    @pytest.mark.parametrize("position", [0, 7, 12, 15])
    def test_a_flipped_bit(self, position: int) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = Log.open(DIRECTORY, LogConfig(), disk=disk, clock=lambda: 1000)
        for number in range(4):
            log.append(b"%d" % number)
        file = disk.open(f"{DIRECTORY}/{log_file(0)}", write=True)
        second = 12 + int.from_bytes(file.pread(4, 8))
        byte = file.pread(1, second + position)[0]
        file.pwrite(bytes([byte ^ 1]), second + position)
        with pytest.raises(EngineError):
            list(log.read())


COMPACTED = LogConfig(cleanup_policy="compact")


class TestRewritten:
    """Segments that Kafka's cleaner rewrote behind our back: sound, in order, of another size than sealed."""

    @pytest.mark.parametrize("recover", ["open", "accept"])
    def test_the_seal_goes_with_a_note(self, recover: str) -> None:
        disk, log = sealed_log()
        log.partition.abandon()
        path = f"{DIRECTORY}/{log_file(2)}"
        file = disk.open(path, write=True)
        size = file.size()
        file.pwrite(file.pread(size // 2, size // 2), 0)  # offset 2 has a later heir
        file.truncate(size // 2)
        with reopened(disk, accept_loss=recover == "accept") as again:
            assert [record.offset for record in again.read()] == [0, 1, 3, 4, 5, 6]
            assert [note for note in again.partition.report.notes if "was rewritten" in note]
            assert again.partition.report.damages == []
            assert again.losses() == []
        assert seal_name(2) not in names(disk)

    def test_two_segments_merged_into_one(self) -> None:
        disk, log = sealed_log()
        log.partition.abandon()
        first, second = (disk.open(f"{DIRECTORY}/{log_file(base)}", write=True) for base in (2, 4))
        first.pwrite(second.pread(second.size(), 0), first.size())
        disk.remove(f"{DIRECTORY}/{log_file(4)}")
        with reopened(disk) as again:
            assert [record.offset for record in again.read()] == [0, 1, 2, 3, 4, 5, 6]
        assert {seal_name(2), seal_name(4)}.isdisjoint(names(disk))

    def test_an_end_that_was_cut_off_is_damage(self) -> None:
        """A prefix is sound and in order, too."""
        disk, log = sealed_log()
        log.partition.abandon()
        file = disk.open(f"{DIRECTORY}/{log_file(2)}", write=True)
        file.truncate(file.size() // 2)
        with pytest.raises(DamagedLog, match="shorter than sealed"):
            reopened(disk)
        assert seal_name(2) in names(disk)

    @pytest.mark.parametrize("left", ["nothing", "a megabyte and more"])
    def test_in_a_compacted_log_too(self, left: str) -> None:
        """An unsynced file loses its end, or all of it, with the power; a cleaner changes what it leaves."""
        config = LogConfig(cleanup_policy="compact", segment_bytes=4 << 20)
        disk = MemoryDisk(directories=["/data"])
        log = Log.open(DIRECTORY, config, disk=disk, clock=lambda: 1000)
        ends = []
        for number in range(30):
            log.append([(b"%d" % number, b"v" * 100_000)])
            ends.append(log.partition.segments[-1].size)
        log.partition.roll()
        log.flush()
        log.partition.abandon()
        disk.open(f"{DIRECTORY}/{log_file(0)}", write=True).truncate(ends[19] if left != "nothing" else 0)
        with pytest.raises(DamagedLog, match="shorter than sealed"):
            Log.open(DIRECTORY, config, disk=disk, clock=lambda: 1000)

    @staticmethod
    def emptied(*names: str) -> MemoryDisk:
        """A compacted log, killed, with some files of its first sealed segment emptied."""
        disk = MemoryDisk(directories=["/data"])
        log = Log.open(DIRECTORY, COMPACTED, disk=disk, clock=lambda: 1000)
        for number in range(6):
            log.append([(b"k%d" % (number % 2), b"v")])
            if number % 2:
                log.partition.roll()
        log.flush()
        log.partition.abandon()
        for name in names:
            disk.open(f"{DIRECTORY}/{0:020d}{name}", write=True).truncate(0)
        return disk

    def test_a_segment_of_which_no_key_is_left(self) -> None:
        """Kafka's cleaner leaves the first segment empty, and its new indexes too."""
        disk = self.emptied(".log", ".index", ".timeindex")
        with Log.open(DIRECTORY, COMPACTED, disk=disk, clock=lambda: 1000) as log:
            assert [record.offset for record in log.read()] == [2, 3, 4, 5]
            assert log.partition.report.damages == []
        assert seal_name(0) not in names(disk)

    def test_nothing_is_said_of_segments_that_are_all_there(self) -> None:
        disk = self.emptied()
        put(disk, "cleaner-offset-checkpoint", b"0\n1\norders 0 6\n")
        with Log.open(DIRECTORY, COMPACTED, disk=disk, clock=lambda: 1000) as log:
            assert [note for note in log.partition.report.notes if "compacted away" in note] == []

    def test_settings_that_do_not_know_that_it_was_compacted(self) -> None:
        """A program opens a directory of Kafka's with its own settings."""
        disk = self.emptied(".log", ".index", ".timeindex")
        put(disk, "cleaner-offset-checkpoint", b"0\n1\norders 0 4\n")
        with Log.open(DIRECTORY, LogConfig(), disk=disk, clock=lambda: 1000) as log:
            assert [record.offset for record in log.read()] == [2, 3, 4, 5]

    @pytest.mark.parametrize("policy", ["compact", "delete"])
    def test_an_emptied_segment_beside_its_old_index_is_damage(self, policy: str) -> None:
        disk = self.emptied(".log")
        with pytest.raises(DamagedLog, match="shorter than sealed"):
            Log.open(DIRECTORY, LogConfig(cleanup_policy=policy), disk=disk, clock=lambda: 1000)

    def test_an_emptied_segment_of_a_log_that_is_not_compacted_is_damage(self) -> None:
        disk = self.emptied(".log", ".index", ".timeindex")
        with pytest.raises(DamagedLog, match="shorter than sealed"):
            Log.open(DIRECTORY, LogConfig(), disk=disk, clock=lambda: 1000)

    def test_a_segment_that_was_merged_into_an_empty_one(self) -> None:
        """Nothing is left of either: the first one is empty, as it was sealed, and the second one is gone."""
        first = self.emptied(".log", ".index", ".timeindex")
        file = first.open(f"{DIRECTORY}/{log_file(0)}", write=True)
        write_seal(
            first, f"{DIRECTORY}/{seal_name(0)}", make_seal(file, 0, base_offset=0, end_offset=0, successor=2)
        )
        for suffix in (".log", ".index", ".timeindex"):
            first.remove(f"{DIRECTORY}/{2:020d}{suffix}")
        with_checkpoint = first.copy()
        with Log.open(DIRECTORY, COMPACTED, disk=first, clock=lambda: 1000) as log:
            assert [record.offset for record in log.read()] == [4, 5]
            assert log.partition.report.damages == []
            assert [note for note in log.partition.report.notes if "compacted away" in note]
        with Log.open(DIRECTORY, COMPACTED, disk=first, clock=lambda: 1000) as log:
            assert log.partition.report.notes == [], "the seal before it names the next one"
        with_checkpoint.remove(f"{DIRECTORY}/{seal_name(2)}")
        with pytest.raises(DamagedLog, match="should follow"):
            Log.open(DIRECTORY, COMPACTED, disk=with_checkpoint.copy(), clock=lambda: 1000)
        put(with_checkpoint, "cleaner-offset-checkpoint", b"0\n1\norders 0 4\n")
        for config in (COMPACTED, LogConfig()):  # the checkpoint names compacted logs alone
            with Log.open(DIRECTORY, config, disk=with_checkpoint.copy(), clock=lambda: 1000) as log:
                assert [record.offset for record in log.read()] == [4, 5]
