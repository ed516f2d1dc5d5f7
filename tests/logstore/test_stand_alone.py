"""A log that keeps its own lock, marks and checkpoints, and what happens when it changes hands."""

from __future__ import annotations

import errno
import gc
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import DirectoryLocked
from logstore.disk.files import DirectoryEntry, Disk, OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import DamagedLog, DamageKind, DiskFull, LogDirOffline, LogGone
from logstore.log.log import Log
from logstore.log.manager import LogManager
from logstore.log.reader import LogReader
from logstore.log.upkeep import advance_log_start_offset, flush_sealed
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk, RecordingDisk
from tests.logstore.logs import DIRECTORY, names, put

ORDERS = TopicPartition("orders", 0)
MARK = ".kafka_cleanshutdown"


def new_disk() -> MemoryDisk:
    return MemoryDisk(directories=["/data"])


def opened(disk: MemoryDisk | RecordingDisk | FaultyDisk, **settings: Any) -> Log:
    return Log.open(DIRECTORY, LogConfig(**settings), disk=disk, clock=lambda: 1000)


def managed(disk: MemoryDisk) -> LogManager:
    return LogManager(["/data"], disk=disk, clock=lambda: 1000, random=random.Random(1))


def syncs_of(disk: RecordingDisk) -> list[str]:
    """The names of the synced files and directories, in order, since the last call."""
    found = [each.path.rpartition("/")[2] for each in disk.operations if each.name in ("sync", "sync_dir")]
    disk.operations.clear()
    return found


def offsets(log: Log) -> list[int]:
    return [record.offset for record in log.read()]


@pytest.mark.parametrize("directories", [[], ["/data"], [DIRECTORY], [f"{DIRECTORY}/lost+found"]])
def test_a_log_that_must_be_there(directories: list[str]) -> None:
    """A wrong path, or a disk that is not mounted: nothing is made, and the log is opened where it is."""
    disk = RecordingDisk(MemoryDisk(directories=directories))
    with pytest.raises(LogGone, match=f"{DIRECTORY} has no log, and create=False"):
        Log.open(DIRECTORY, disk=disk, create=False)
    assert disk.operations == []
    Log.open(DIRECTORY, disk=disk).close()
    with Log.open(DIRECTORY, disk=disk, create=False) as log:
        assert log.log_end_offset == 0


def test_what_it_keeps_beside_the_segments() -> None:
    disk = new_disk()
    with opened(disk) as log:
        log.append([b"a", b"b", b"c"])
        advance_log_start_offset(log.partition, 1)
    files = {name: disk.files()[f"{DIRECTORY}/{name}"] for name in names(disk)}
    mark = b'{"version":0,"brokerEpoch":-1,"writer":"logstore","firstBaseOffset":0,"logEndOffset":3,"crc32":{'
    assert files[MARK].startswith(mark)
    assert files["recovery-point-offset-checkpoint"] == b"0\n1\norders 0 3\n"
    assert files["log-start-offset-checkpoint"] == b"0\n1\norders 0 1\n"
    assert files["leader-epoch-checkpoint"] == b"0\n1\n0 1\n"
    assert files[".lock"] == b""


def test_the_mark_goes_before_anything_is_written() -> None:
    """A crash from then on is an unclean stop."""
    disk = new_disk()
    with opened(disk) as log:
        log.append(b"a")
    recording = RecordingDisk(disk)
    log = opened(recording)
    calls = [(each.name, each.path) for each in recording.operations]
    gone = calls.index(("remove", f"{DIRECTORY}/{MARK}"))
    assert calls[gone + 1] == ("sync_dir", DIRECTORY)
    changing = [each.name for each in recording.operations[:gone]]
    assert set(changing) <= {"make_dir", "sync_dir", "lock"}
    log.close()


def test_the_mark_comes_after_everything() -> None:
    disk = RecordingDisk(new_disk())
    log = opened(disk)
    log.append(b"a")
    disk.operations.clear()
    log.close()
    calls = [(each.name, each.path.rsplit("/", 1)[1]) for each in disk.operations]
    assert calls[-1] == ("sync_dir", "orders-0")
    assert calls.index(("create", MARK)) > max(
        number for number, call in enumerate(calls) if call[1].endswith((".log", "index", "checkpoint.tmp"))
    )


@pytest.mark.parametrize("content", [b"", b"junk", b'{"version":0,"brokerEpoch":4}', b'{"logEndOffset":99}'])
def test_a_mark_of_somebody_else_is_not_believed(content: bytes) -> None:
    """It must say where this log ended; otherwise somebody else wrote here, and all is judged again."""
    disk = new_disk()
    with opened(disk) as log:
        log.append([b"a", b"b"])
    put(disk, MARK, content)
    file = disk.open(f"{DIRECTORY}/{'0' * 20}.log", write=True)
    file.pwrite(b"tail", file.size())
    log = opened(disk)
    assert offsets(log) == [0, 1]
    assert log.partition.report.scanned_bytes


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
@pytest.mark.parametrize(
    "content", [None, b"", b"0\n7\n", b"junk", b"0\n2\nother 0 9\nthird 0 9\n", b"1\n0\n"]
)
def test_a_checkpoint_that_is_missing_or_torn(name: str, content: bytes | None) -> None:
    """Costs a longer recovery, or serves again what was below the start; never an error, never a record."""
    disk = new_disk()
    log = opened(disk, segment_bytes=200)
    for number in range(6):
        log.append(b"%d" % number, sync=True)
    flush_sealed(log.partition)
    image = disk.copy()
    if content is None:
        if name in names(image):
            image.remove(f"{DIRECTORY}/{name}")
    else:
        put(image, name, content)
    again = opened(image, segment_bytes=200)
    assert offsets(again) == list(range(6))
    assert again.append(b"on", sync=True).first_offset == 6


def test_a_directory_that_was_renamed() -> None:
    """Its checkpoints have the former name: deleted records stay deleted, and synced ones are not cut."""
    disk = new_disk()
    with opened(disk) as log:
        for number in range(5):
            log.append(b"%d" % number)
        log.delete_records(2)
    renamed = "/data/kept-7"
    disk.rename(DIRECTORY, renamed)
    assert [record.offset for record in LogReader(renamed, disk=disk).records()] == [2, 3, 4]
    for _ in range(2):
        with Log.open(renamed, disk=disk) as log:
            assert offsets(log) == [2, 3, 4]
    disk.remove(f"{renamed}/{MARK}")
    file = disk.open(f"{renamed}/{0:020d}.log", write=True)
    file.pwrite(b"?", file.size() - 1)
    with pytest.raises(DamagedLog):
        Log.open(renamed, disk=disk)


def test_the_recovery_point_is_noted_at_every_roll() -> None:
    """So that an unclean start reads the active segment only, and damage below it is known as damage."""
    disk = new_disk()
    log = opened(disk, segment_bytes=200)
    for number in range(7):
        log.append(b"%d" % number)
    active = log.partition.segments[-1].base_offset
    again = opened(disk.copy(), segment_bytes=200)
    assert again.partition.recovery_point == active
    assert again.partition.report.scanned_bytes == log.partition.segments[-1].size


def test_a_log_shorter_than_its_recovery_point() -> None:
    """The checkpoint is lowered before anything is written: new records at those offsets are not synced."""
    disk = new_disk()
    with opened(disk) as log:
        for _ in range(5):
            log.append(b"a")
    image = disk.copy()
    size = image.files()[f"{DIRECTORY}/{'0' * 20}.log"]
    image.open(f"{DIRECTORY}/{'0' * 20}.log", write=True).truncate(2 * len(size) // 5)
    with pytest.raises(DamagedLog) as caught:
        opened(image)
    assert [(each.kind, each.offset) for each in caught.value.damages] == [(DamageKind.END_LOST, 2)]
    again = Log.open(DIRECTORY, disk=image, accept_loss=True)
    assert [each.kind for each in again.partition.report.damages] == [DamageKind.END_LOST]
    assert (again.log_end_offset, again.partition.recovery_point) == (2, 2)
    assert (
        image.durable_image().files()[f"{DIRECTORY}/recovery-point-offset-checkpoint"]
        == b"0\n1\norders 0 2\n"
    )


def test_directories_above_it_are_durable() -> None:
    """Else everything synced inside is lost with the name of a directory above."""
    disk = MemoryDisk()
    log = Log.open("/new/deep/orders-0", disk=disk, clock=lambda: 1)
    log.append(b"a", sync=True)
    image = disk.durable_image()
    assert offsets(Log.open("/new/deep/orders-0", disk=image, clock=lambda: 1)) == [0]


@pytest.mark.parametrize("number", range(1, 9))
def test_a_close_that_fails_lets_go_of_the_directory(number: int) -> None:
    """Unclean, and open to the next owner."""
    disk = new_disk()
    faulty = FaultyDisk(disk)
    log = opened(faulty)
    log.append(b"a", sync=True)
    faulty.inject(Fault(at=number))
    with pytest.raises((LogDirOffline, DiskFull)):
        log.close()
    log.close()
    again = opened(disk)
    assert offsets(again) == [0]


def test_no_room_to_open() -> None:
    """Recovery has to write; what it says is what is missing, and it works once that is there."""
    disk = new_disk()
    log = opened(disk, segment_bytes=200, index_interval_bytes=0)
    log.append([b"%d" % number for number in range(5)])
    log.append(b"last", sync=True)
    image = disk.durable_image()
    refused = 0
    for at in range(1, 60):
        faulty = FaultyDisk(image.copy())
        faulty.inject(Fault(operation="pwrite", at=at, errno=errno.ENOSPC))
        try:
            opened(faulty)
        except DiskFull as error:
            refused += "Free some space, then" in str(error)
    assert refused >= 2


class TestChangingHands:
    def test_a_broker_that_owns_the_directory_above_is_respected(self) -> None:
        disk = new_disk()
        manager = managed(disk)
        with pytest.raises(DirectoryLocked):
            opened(disk)
        manager.close()
        opened(disk).close()

    def test_a_log_that_is_open_is_not_taken_over(self) -> None:
        disk = new_disk()
        log = opened(disk)
        with pytest.raises(DirectoryLocked):
            managed(disk)
        log.append(b"still mine")
        log.close()

    def test_under_a_manager_and_back(self) -> None:
        """Both read what the other wrote, and neither believes the other's marks."""
        disk = new_disk()
        with opened(disk, segment_bytes=200) as log:
            for number in range(5):
                log.append(b"%d" % number)
        for turn in range(2):
            manager = managed(disk)
            theirs = manager.get(ORDERS)
            assert theirs is not None
            assert offsets(theirs) == list(range(5 + 2 * turn))
            for name in (MARK, "recovery-point-offset-checkpoint", "log-start-offset-checkpoint", ".lock"):
                assert name not in names(disk)
            theirs.append(b"theirs")
            manager.close()
            with opened(disk, segment_bytes=200) as log:
                assert log.partition.report.scanned_bytes, "what a broker left is judged again"
                assert offsets(log) == list(range(6 + 2 * turn))
                log.append(b"ours")

    def test_side_by_side_in_one_directory(self, tmp_path: Path) -> None:
        """No manager, no lock above: each log has its own."""
        with Log.open(tmp_path / "a-0", disk=OsDisk()) as first, Log.open(tmp_path / "b-0") as second:
            first.append(b"a")
            second.append(b"b")
        with Log.open(tmp_path / "a-0") as first:
            assert offsets(first) == [0]


def test_an_abandoned_log_gives_its_directory_back(tmp_path: Path) -> None:
    """Not at the end of the process: at once."""
    log = Log.open(tmp_path / "orders-0")
    log.append(b"kept", sync=True)
    log.partition.abandon()
    with Log.open(tmp_path / "orders-0") as again:
        assert [record.value for record in again.read()] == [b"kept"]


# --- the start of a program ---------------------------------------------------------------------------


def test_the_syncs_of_a_new_log() -> None:
    """Each is a wait for the disk: nothing is synced twice for one step, or unchanged."""
    disk = RecordingDisk(new_disk())
    log = opened(disk)
    checkpoint = "recovery-point-offset-checkpoint.tmp"
    assert syncs_of(disk) == ["", "data", checkpoint, "orders-0"]
    log.append(b"a", sync=True)
    epochs = "leader-epoch-checkpoint.tmp"
    assert syncs_of(disk) == [epochs, "orders-0", "00000000000000000000.log"]
    log.close()
    assert "00000000000000000000.log" not in syncs_of(disk), "it was synced already"


def test_a_start_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """Half of the start of a program that appends one record went into these."""
    heavy = ["numpy", "crc32c", "email", "csv", "hashlib", "difflib", "logstore.compact", "logstore.columnar"]
    program = (
        "import sys; from logstore import Log; log = Log.open(sys.argv[1]); "
        "log.append(b'x', sync=True); log.append(b'y', key=b'k'); log.append([b'z', b'z']); log.close(); "
        f"sys.exit(', '.join(each for each in {heavy} if each in sys.modules) or 0)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "orders-0")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_an_opening_does_not_list_what_lies_beside_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of a thousand topics opens two thousand logs in one directory."""
    disk, listed = new_disk(), list[str]()
    opened(disk).close()
    scan = MemoryDisk.scan

    def noted(self: MemoryDisk, directory: str) -> list[DirectoryEntry]:
        listed.append(directory)
        return scan(self, directory)

    monkeypatch.setattr(MemoryDisk, "scan", noted)
    with opened(disk):
        pass
    disk.rename(DIRECTORY, "/data/copy-0")
    disk.remove("/data/copy-0/.lock")
    assert list(LogReader("/data/copy-0", disk=disk).batches()) == []
    assert "/data/copy-0" in listed
    assert "/data" not in listed


@pytest.mark.filterwarnings("ignore:unclosed owner")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("disk", [OsDisk(), new_disk()])
def test_a_log_that_was_dropped_is_opened_again_at_once(tmp_path: Path, disk: Disk) -> None:
    """It is a cycle of objects: its lock stayed until Python looked for such."""
    directory = tmp_path / "orders-0" if isinstance(disk, OsDisk) else DIRECTORY
    gc.disable()
    try:
        Log.open(directory, disk=disk).append(b"placed")
        Log.open(directory, disk=disk).close()
    finally:
        gc.enable()
