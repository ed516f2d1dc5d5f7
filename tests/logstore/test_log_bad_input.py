"""Everything wrong that can be handed to a log, at each of its faces: the right error, and an unchanged log.

The batches that lie are the corpus of `tests/corpus/test_bad_batches.py`; here they meet a log with something
in it, and afterwards every byte and every bound is as before.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import DirectoryLocked, EngineError, InvalidTopic
from logstore.disk.files import Disk, OsDisk
from logstore.errors import (
    CorruptBatch,
    DiskFull,
    InvalidRecord,
    InvalidTimestamp,
    LogDirOffline,
    OffsetsOutOfOrder,
    RecordBatchTooLarge,
    RecordTooLarge,
    UnexpectedAppendOffset,
)
from logstore.format.batch import encode_batch, walk
from logstore.format.compression import Codec, compress
from logstore.format.record import Record
from logstore.log.append import append_as_leader
from logstore.log.append_fetched import append_as_follower
from logstore.log.log import AppendInfo, Log
from logstore.log.reader import LogReader
from logstore.queue.queue import Queue
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk
from tests.corpus.test_bad_batches import BAD, GOOD, kind_of
from tests.logstore.forge import T0, forge, payload, values
from tests.logstore.logs import DIRECTORY, batch

MIB = 1 << 20
# With batches behind them these are good ones; what follows is another question.
SEVERAL = {"two batches", "a byte after", "half a batch after", "zeros after", "length one less"}


def log_on(disk: Disk, **settings: Any) -> Log:
    return Log.open(DIRECTORY, LogConfig(**settings), disk=disk, clock=lambda: T0)


def filled(disk: Disk, **settings: Any) -> Log:
    """A log with two records in it, of leader epoch 3."""
    log = log_on(disk, **settings)
    append_as_follower(log.partition, batch(0, (T0, T0 + 1), epoch=3), leader_epoch=3)
    return log


def state(log: Log, disk: MemoryDisk) -> tuple[object, ...]:
    """Everything that a refused call must leave alone."""
    return (
        disk.files(),
        log.log_start_offset,
        log.log_end_offset,
        log.partition.high_watermark,
        log.partition.recovery_point,
        log.partition.epochs,
        log.partition.is_offline,
        log.partition.producer_state.encode_snapshot(),
        [(segment.base_offset, segment.size) for segment in log.partition.segments],
    )


Face = Callable[[Log, bytes], AppendInfo]
LEADER_FACES: dict[str, Face] = {
    "append_as_leader": lambda log, data: append_as_leader(log.partition, data, leader_epoch=4, now_ms=T0),
    "append_batches": lambda log, data: log.append_batches(data),
    "append_batches, many": lambda log, data: log.append_batches(data * 40),
}


@pytest.mark.parametrize("face", LEADER_FACES)
@pytest.mark.parametrize("name", BAD)
def test_a_leader_is_as_it_was(name: str, face: str) -> None:
    data, error = BAD[name]
    if face != "append_as_leader" and name in SEVERAL | {"last byte missing"}:
        return  # with more behind it, its first batch is a good one
    disk = MemoryDisk(directories=["/data"])
    log = filled(disk)
    before = state(log, disk)
    with pytest.raises(EngineError) as caught:
        LEADER_FACES[face](log, data)
    if face == "append_as_leader":
        assert kind_of(caught.value) is error
    assert len(str(caught.value)) > 15
    assert state(log, disk) == before
    assert log.append(b"on").first_offset == 2


@pytest.mark.parametrize("name", BAD)
def test_an_application_that_hands_over_batches(name: str) -> None:
    """`append` takes views of batches; whoever can make one of the bytes is judged like any client."""
    data, _ = BAD[name]
    disk = MemoryDisk(directories=["/data"])
    log = filled(disk)
    before = state(log, disk)
    try:
        first = next(walk(data), None)
    except CorruptBatch:
        return
    if first is None or name in SEVERAL:
        return
    with pytest.raises(EngineError):
        log.append([first, first])
    assert state(log, disk) == before


@pytest.mark.parametrize("name", BAD)
def test_a_follower_is_as_it_was_or_has_it_whole(name: str) -> None:
    """A leader has judged what its followers get; what they cannot tell is kept byte for byte."""
    data, _ = BAD[name]
    disk = MemoryDisk(directories=["/data"])
    log = log_on(disk)
    before = state(log, disk)
    try:
        append_as_follower(log.partition, data, leader_epoch=5)
    except EngineError:
        assert state(log, disk) == before
        return
    kept = log.read_bytes(log.log_start_offset).records if log.log_end_offset else b""
    assert data.startswith(kept)
    log.flush()
    again = log_on(disk.durable_image())
    assert (again.read_bytes(0).records if log.log_end_offset else b"") == kept
    assert again.log_end_offset == log.log_end_offset


@pytest.mark.parametrize("tail", ["a byte after", "half a batch after", "zeros after"])
def test_batches_before_a_bad_one_stay(tail: str) -> None:
    """The documented other half: what stands in front of it is in the log, the rest is an error."""
    data = BAD[tail][0]
    for count in (1, 40):
        log = filled(MemoryDisk(directories=["/data"]))
        with pytest.raises(CorruptBatch):
            log.append_batches(GOOD * (count - 1) + data)
        assert log.log_end_offset == 2 + count
        assert len(list(log.read())) == 2 + count


@pytest.mark.parametrize("cut", [1, 30, 60, len(GOOD) - 1])
def test_a_torn_last_batch_is_said(cut: int) -> None:
    """Ready batches that end in the middle of one: nothing is swallowed."""
    log = filled(MemoryDisk(directories=["/data"]))
    with pytest.raises(CorruptBatch):
        log.append_batches(GOOD + GOOD[:cut])
    assert log.log_end_offset == 3


MARKER_THAT_IS_NONE = forge(
    payload(Record(0, T0, b"k", b"v")),
    base_offset=2,
    attributes=1 << 5 | 1 << 4,
    producer_id=1,
    producer_epoch=0,
    leader_epoch=3,
)
FLIPPED = batch(3, (1,), epoch=3)[:-1] + b"\x77"
FOLLOWER: dict[str, tuple[bytes, type[EngineError], str]] = {
    "below the end": (batch(1, (1,), epoch=3), UnexpectedAppendOffset, "truncate to the leader's epochs"),
    "partly below": (batch(0, (1, 2, 3), epoch=3), UnexpectedAppendOffset, "below the log end offset 2"),
    "not rising": (batch(5, (1,), epoch=3) + batch(5, (1,), epoch=3), OffsetsOutOfOrder, "do not rise"),
    "falling": (batch(5, (1,), epoch=3) + batch(3, (1,), epoch=3), OffsetsOutOfOrder, "do not rise"),
    "overlapping": (batch(5, (1, 2), epoch=3) + batch(6, (1,), epoch=3), OffsetsOutOfOrder, "do not rise"),
    "a later epoch": (batch(2, (1,), epoch=6), InvalidRecord, "epoch 6, above the leader's epoch 5"),
    "an earlier epoch": (batch(2, (1,), epoch=2), CorruptBatch, "epoch 2 after epoch 3"),
    "epochs that go back": (
        batch(2, (1,), epoch=5) + batch(3, (1,), epoch=4), CorruptBatch, "epoch 4 after epoch 5",
    ),
    "a checksum": (batch(2, (1,), epoch=3)[:-1] + b"\x77", CorruptBatch, "checksum"),
    "a later checksum": (batch(2, (1,), epoch=3) + FLIPPED, CorruptBatch, "checksum"),
    "a marker that cannot be read": (MARKER_THAT_IS_NONE, InvalidRecord, "control record"),
    "the last offset": (forge(payload(*values(1)), base_offset=(1 << 63) - 1), InvalidRecord, "offset"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLLOWER)
def test_what_only_a_follower_can_be_sent(name: str) -> None:
    data, error, message = FOLLOWER[name]
    disk = MemoryDisk(directories=["/data"])
    log = filled(disk)
    before = state(log, disk)
    with pytest.raises(error, match=message):
        append_as_follower(log.partition, data, leader_epoch=5)
    assert state(log, disk) == before


class TestAgainstTheSettings:
    def test_a_batch_above_max_message_bytes(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk, max_message_bytes=200)
        before = state(log, disk)
        calls: list[Callable[[], object]] = [
            lambda: log.append(bytes(300)),
            lambda: log.append([bytes(300)]),
            lambda: log.append_batches(encode_batch([Record(0, T0, None, bytes(300))])),
        ]
        for call in calls:
            with pytest.raises(RecordTooLarge, match=r"above max\.message\.bytes = 200: send smaller"):
                call()
            assert state(log, disk) == before

    def test_row_116_a_batch_above_segment_bytes(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk, segment_bytes=200)
        before = state(log, disk)
        with pytest.raises(RecordBatchTooLarge, match=r"above segment\.bytes = 200: send less"):
            log.append(bytes(300))
        assert state(log, disk) == before

    def test_times_outside_the_window(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk, message_timestamp_before_max_ms=10, message_timestamp_after_max_ms=10)
        before = state(log, disk)
        for time in (T0 - 11, T0 + 11):
            with pytest.raises(InvalidTimestamp, match="is outside"):
                log.append(b"x", timestamp_ms=time)
        assert state(log, disk) == before

    def test_a_time_that_is_none(self) -> None:
        log = filled(MemoryDisk(directories=["/data"]))
        with pytest.raises(ValueError, match=r"-1 \(none\)"):
            log.append(b"x", timestamp_ms=-5)
        assert log.log_end_offset == 2

    def test_a_compacted_log_wants_keys(self) -> None:
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk, cleanup_policy="compact")
        before = state(log, disk)
        with pytest.raises(InvalidRecord, match="needs a key") as caught:
            log.append([(b"k", b"v"), (None, b"v"), (b"k", None)])
        assert [error.batch_index for error in caught.value.record_errors] == [1]
        assert state(log, disk) == before

    @pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
    def test_a_decompression_bomb(self, codec: Codec) -> None:
        """A sound stream of records that is a thousand times what was sent, a gigabyte of them promised."""
        body = payload(*(Record(offset, T0, None, bytes(MIB)) for offset in range(4)))
        repeated = body if codec is Codec.SNAPPY else body * 40
        bomb = forge(compress(codec, repeated), attributes=codec, count=160, last_offset_delta=159)
        disk = MemoryDisk(directories=["/data"])
        log = filled(disk)
        before = state(log, disk)
        for face in LEADER_FACES.values():
            with pytest.raises((InvalidRecord, RecordTooLarge)):
                face(log, bomb)
        assert state(log, disk) == before


# --- directories -----------------------------------------------------------------------------------


class TestDirectories:
    def test_one_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "orders-0").write_bytes(b"mine")
        with pytest.raises(LogDirOffline, match=r"cannot be opened as a log.*must be a directory"):
            Log.open(tmp_path / "orders-0")
        assert (tmp_path / "orders-0").read_bytes() == b"mine"

    def test_an_empty_one(self) -> None:
        for open_ in (Log.open, LogReader, Queue):
            with pytest.raises(ValueError, match="the path of the directory is empty"):
                open_("")

    def test_a_relative_one_stays_where_it_was(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The process changes its directory: a roll made the next segment there."""
        for name in ("first", "other"):
            (tmp_path / name / "orders-0").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "first")
        with Log.open("orders-0", LogConfig(segment_bytes=200)) as log, Queue("jobs") as queue:
            reader = LogReader("orders-0")
            monkeypatch.chdir(tmp_path / "other")
            for number in range(4):
                log.append(b"%d" % number * 100, sync=True)
            queue.put(b"x", topic="new")
            assert len([*reader.records()]) == 4
        assert not any((tmp_path / "other" / "orders-0").iterdir())
        assert [*(tmp_path / "other").iterdir()] == [tmp_path / "other" / "orders-0"]

    @pytest.mark.parametrize("path", [Path(), ".", "./", "././", "../orders-0/.", "../orders-0/.//"])
    def test_the_current_one(self, path: Path | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has a name, although the path does not say it."""
        (tmp_path / "orders-0").mkdir()
        monkeypatch.chdir(tmp_path / "orders-0")
        with Log.open(path) as log:
            log.append(b"x")
        assert [each.value for each in LogReader(path).records()] == [b"x"]
        assert [each.name for each in tmp_path.iterdir()] == ["orders-0"]

    def test_one_below_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "data").write_bytes(b"mine")
        with pytest.raises(LogDirOffline, match="cannot be opened as a log"):
            Log.open(tmp_path / "data" / "orders-0")

    @pytest.mark.parametrize(
        "name", ["orders", "orders-", "-0", "orders-x", "or ders-0", "orders-99999999999", "…-0"]
    )
    def test_one_whose_name_says_no_partition(self, tmp_path: Path, name: str) -> None:
        """Row 189: nothing is made of it."""
        with pytest.raises(InvalidTopic):
            Log.open(tmp_path / name)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
    @pytest.mark.parametrize("operation", ["make_dir", "lock", "remove", "open", "scan"])
    def test_one_that_cannot_be_written(self, operation: str, number: int) -> None:
        """Whatever call is refused first; and nobody is locked out afterwards."""
        disk = MemoryDisk(directories=["/data"])
        filled(disk).close()
        before = disk.files()
        faulty = FaultyDisk(disk, [Fault(operation=operation, errno=number, forever=True)])
        with pytest.raises(LogDirOffline, match="orders-0 cannot be") as caught:
            log_on(faulty)
        assert os.strerror(number) in str(caught.value)
        assert {path: data for path, data in disk.files().items() if path in before} == {
            path: data for path, data in before.items() if path in disk.files()
        }
        assert log_on(disk).log_end_offset == 2

    def test_a_real_read_only_one(self) -> None:
        """Root may write anywhere, so it becomes nobody for the attempt."""
        with tempfile.TemporaryDirectory() as parent:
            os.chmod(parent, 0o755)
            path = Path(parent) / "orders-0"
            path.mkdir()
            path.chmod(0o555)
            user = os.geteuid()
            if user == 0:
                os.seteuid(65534)
            try:
                with pytest.raises(LogDirOffline, match="this process can write"):
                    Log.open(path)
            finally:
                os.seteuid(user)
            assert list(path.iterdir()) == []

    def test_a_second_opener_in_this_process(self, tmp_path: Path) -> None:
        with Log.open(tmp_path / "orders-0") as log:
            log.append(b"a", sync=True)
            before = files_in(tmp_path)
            for path in (tmp_path / "orders-0", f"{tmp_path}/orders-0/"):
                with pytest.raises(
                    DirectoryLocked, match="already open in this process; close the other owner"
                ):
                    Log.open(path)
            assert files_in(tmp_path) == before
            log.append(b"b")
        with Log.open(tmp_path / "orders-0") as log:
            assert [record.value for record in log.read()] == [b"a", b"b"]

    def test_a_second_opener_in_another_process(self, tmp_path: Path) -> None:
        opener = "import sys; from logstore import Log; Log.open(sys.argv[1])"
        with Log.open(tmp_path / "orders-0") as log:
            log.append(b"a", sync=True)
            before = files_in(tmp_path)
            found = subprocess.run(
                [sys.executable, "-c", opener, str(tmp_path / "orders-0")],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert found.returncode == 1
            assert "DirectoryLocked" in found.stderr
            assert f"{tmp_path}/orders-0 is in use by another process" in found.stderr
            assert files_in(tmp_path) == before


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


# --- a full disk -----------------------------------------------------------------------------------


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A real one with room for 256 KiB, where this process may mount one."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def append_for_ever(log: Log, value: bytes) -> None:
    while True:
        log.append(value)


def fill_and_go_on(log: Log, make_room: Callable[[], None]) -> None:
    """Append until the disk is full, in the middle of a batch; read; make room; append again."""
    value = bytes(range(256)) * 40
    told = r"disk is full.*nothing from offset (\d+) on was kept\. Free some space, then append that again"
    with pytest.raises(DiskFull, match=told) as refused:
        log.append(iter([value] * 100))
    assert re.search(told, str(refused.value))[1] == str(log.log_end_offset)  # type: ignore[index]
    with pytest.raises(DiskFull):
        append_for_ever(log, value)
    written = log.log_end_offset
    assert written > 3
    assert [record.value for record in log.read()] == [value] * written, "the log stays readable"
    for _ in range(3):
        with pytest.raises(DiskFull):
            log.append(value)
        assert log.log_end_offset == written
    make_room()
    assert log.append(value, sync=True).first_offset == written
    assert len(list(log.read())) == written + 1


def test_a_disk_that_is_really_full(small_file_system: Path) -> None:
    """The kernel writes the part for which there is room, and only then says so."""
    ballast = small_file_system / "ballast"
    ballast.write_bytes(bytes(100_000))
    log = Log.open(small_file_system / "orders-0")
    fill_and_go_on(log, ballast.unlink)
    log.close()
    with Log.open(small_file_system / "orders-0") as again:
        assert not again.partition.report.cuts
        assert again.log_end_offset == len(list(again.read()))


@pytest.mark.parametrize("room", range(60_000, 60_400, 37))
def test_a_disk_in_memory_that_is_full(room: int) -> None:
    """At another byte each time; after a crash in this state everything synced is there."""
    disk = MemoryDisk(directories=["/data"], capacity=room)
    log = log_on(disk)

    def make_room() -> None:
        disk.capacity = None

    fill_and_go_on(log, make_room)
    assert len(list(log_on(disk.durable_image()).read())) == log.log_end_offset


def test_a_roll_that_finds_no_room() -> None:
    """Refused again and again, whatever step of the roll fails, and then done."""
    for step in range(1, 12):
        disk = FaultyDisk(MemoryDisk(directories=["/data"]))
        log = log_on(disk, segment_bytes=200)
        log.append(bytes(100))
        disk.inject(
            Fault(
                at=step,
                errno=errno.ENOSPC,
                path=lambda path: not path.endswith("00000.log"),
                operation="open",
            ),
            Fault(at=step, errno=errno.ENOSPC, operation="pwrite"),
        )
        for _ in range(3):
            try:
                log.append(bytes(100), sync=True)
            except DiskFull:
                continue
        disk.heal()
        log.append(b"last", sync=True)
        assert not log.partition.is_offline
        values_ = [record.value for record in log.read()]
        assert values_[-1] == b"last"
        assert len(values_) == log.log_end_offset
        assert isinstance(disk.inner, MemoryDisk)
        again = log_on(disk.inner.durable_image(), segment_bytes=200)
        assert [record.value for record in again.read()] == values_


def test_the_operating_system_is_the_default(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0", disk=OsDisk()) as log:
        log.append(b"x", sync=True)
    with Log.open(str(tmp_path / "orders-0")) as log:
        assert [record.value for record in log.read()] == [b"x"]
