"""Following the directory of another process: woken by the operating system, or by looks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from logstore import Log, LogConfig, LogGone, LogReader, LogTruncated, OffsetOutOfRange
from logstore.disk import watching
from logstore.disk.copying import remove_tree
from logstore.disk.files import OsDisk
from logstore.disk.watching import Watcher, watcher
from logstore.log import reader as reader_module
from logstore.log.following import Follower
from logstore.log.truncate import truncate_fully_and_start_at
from logstore.testing.disks import MemoryDisk, Operation, RecordingDisk

ROOT = Path(__file__).parents[2]
CONFIG = LogConfig(
    segment_bytes=300, index_interval_bytes=60, segment_index_bytes=240, file_delete_delay_ms=0
)

OWNER = """
import sys
from logstore import Log, LogConfig
with Log.open(sys.argv[1], LogConfig(segment_bytes=300, segment_index_bytes=240)) as log:
    print("ready", flush=True)
    for line in sys.stdin:
        log.append(line.encode())
"""


@pytest.fixture(params=["events", "looks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How changes are found: by inotify where the system has it, and without it."""
    if request.param == "looks":
        blind = Watcher(None)
        monkeypatch.setattr(reader_module, "watcher", lambda: blind)
    return str(request.param)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(110) as pool:
        yield pool


def owner(directory: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(directory)], cwd=ROOT, stdin=pipe, stdout=pipe, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_another_process_writes(tmp_path: Path, way: str) -> None:
    """Each record is written when the one before has been seen, so each wakes a follower that sleeps."""
    with owner(tmp_path / "orders-0") as process:
        assert process.stdin is not None
        follower = LogReader(tmp_path / "orders-0").follow(timeout=30)
        for number in range(30):
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            record = next(follower)
            assert (record.offset, record.value) == (number, b"%d\n" % number)
        process.stdin.close()
    assert [record.offset for record in LogReader(tmp_path / "orders-0").follow(timeout=0)] == [*range(30)]


def test_many_followers_share_one_thread(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    with owner(tmp_path / "orders-0") as process:
        assert process.stdin is not None
        before = set(threading.enumerate())
        followers = [LogReader(tmp_path / "orders-0").follow(timeout=30) for _ in range(100)]
        found = [threads.submit(next, follower) for follower in followers]
        while len(watcher()._watches) < 100:
            pass
        made = [each for each in set(threading.enumerate()) - before if not each.name.startswith("Thread")]
        assert len(made) <= 1
        process.stdin.write("x\n")
        process.stdin.close()
        assert {each.result().value for each in found} == {b"x\n"}


def test_the_log_comes_after_its_follower(tmp_path: Path, way: str, threads: ThreadPoolExecutor) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    found = threads.submit(next, LogReader(directory).follow(timeout=30))
    with Log.open(directory) as log:
        log.append(b"first")
        assert found.result().value == b"first"


def waiting(
    action: Callable[[], object], directory: Path, threads: ThreadPoolExecutor, offset: int
) -> object:
    """What a follower at `offset`, which waits, does when `action` changes the directory."""
    found = threads.submit(next, LogReader(directory).follow(offset, timeout=30))
    while not vars(reader_module)["watcher"]()._watches:
        pass
    action()
    return found.result()


def test_a_deleted_directory_is_gone(tmp_path: Path, way: str, threads: ThreadPoolExecutor) -> None:
    directory = tmp_path / "orders-0"
    Log.open(directory).close()
    with pytest.raises(LogGone, match="it was deleted, moved, or never created"):
        waiting(lambda: remove_tree(OsDisk(), str(directory)), directory, threads, 0)


def test_a_cut_is_told(tmp_path: Path, way: str, threads: ThreadPoolExecutor) -> None:
    """Also when the owner has written past the follower's place before it looks: by the loss ledger."""
    directory = tmp_path / "orders-0"
    with Log.open(directory, CONFIG) as log:
        for number in range(8):
            log.append(b"%d" % number)

        def cut() -> None:
            log.truncate_to(5)
            log.append([b"new"] * 20)

        with pytest.raises(LogTruncated, match="truncated at offset 5"):
            waiting(cut, directory, threads, 8)


def take_all(follower: Follower, view: dict[int, bytes | None]) -> None:
    """Keep a view of the log as docs/embed-a-log.md says: undo what was cut, and go on."""
    while True:
        try:
            view.update((record.offset, record.value) for record in follower)
            return
        except LogTruncated as error:
            for offset in [each for each in view if each >= error.log_end_offset]:
                del view[offset]
            follower.seek(error.next_offset)
        except OffsetOutOfRange as error:  # a restart has moved the start first
            follower.seek(max(error.log_start_offset, follower.offset + 1))


def cut_in_two(log: Log) -> None:
    log.truncate_to(3)


def cut_of_segments(log: Log) -> None:
    log.truncate_to(1)


def cut_inside_a_batch(log: Log) -> None:
    log.truncate_to(13)


def restart(log: Log) -> None:
    truncate_fully_and_start_at(log.partition, 9)


@pytest.mark.parametrize("cut", [cut_in_two, cut_of_segments, cut_inside_a_batch, restart])
@pytest.mark.parametrize("taken", [0, 2, 20], ids="{} before".format)
def test_a_cut_at_any_moment_of_a_reader(
    monkeypatch: pytest.MonkeyPatch, cut: Callable[[Log], None], taken: int
) -> None:
    """The reader takes what is there before one of the owner's disk calls, and again when all is done."""
    blind = Watcher(None)  # the disk is in memory
    monkeypatch.setattr(reader_module, "watcher", lambda: blind)
    at = 0
    while True:
        inner, calls = MemoryDisk(directories=["/data"]), iter(range(10_000))
        view: dict[int, bytes | None] = {}
        follower: Follower | None = None

        def before(_: Operation) -> None:
            if follower is not None and next(calls) == at:  # noqa: B023
                take_all(follower, view)  # noqa: B023

        with Log.open("/data/orders-0", CONFIG, disk=RecordingDisk(inner, before=before)) as log:
            for number in range(12):
                log.append(b"%d" % number)
            log.append([b"12", b"13", b"14"])
            follower = LogReader("/data/orders-0", disk=inner).follow(timeout=0)
            view |= {record.offset: record.value for record in islice(follower, taken)}
            cut(log)
            for number in range(20):
                log.append(b"new %d" % number)
            last_call = next(calls)
            take_all(follower, view)
            follower = None
            assert view == {record.offset: record.value for record in log.read()}, f"before call {at}"
        if at > last_call:
            break
        at += 1
    assert at > 20


def test_a_cut_of_what_was_read_ahead_is_read_again(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    with Log.open(directory, CONFIG) as log:
        for number in range(8):
            log.append(b"%d" % number)
        follower = LogReader(directory).follow(timeout=0)
        assert next(follower).value == b"0"
        log.truncate_to(4)
        log.append([b"new"] * 2)
        seen = [next(follower).value for _ in range(7)]
        # What it had read before the cut it may return; the cut is told before anything newer is.
        assert seen == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
        with pytest.raises(LogTruncated) as caught:
            next(follower)
        follower.seek(caught.value.log_end_offset)
        assert [record.value for record in follower] == [b"new", b"new"]


def test_a_follower_that_lags_reads_each_byte_once_however_often_it_is_woken(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    disk = RecordingDisk(OsDisk(), reads=True)
    with Log.open(directory) as log:
        for number in range(100):
            log.append(b"%d" % number)
        follower = LogReader(directory, disk=disk).follow(timeout=0)
        next(follower)
        follower.wake()  # an append came
        before = len(disk.operations)
        assert [record.offset for record in islice(follower, 99)] == [*range(1, 100)]
        opened = [each.path for each in disk.operations[before:] if each.name == "open"]
        assert len(opened) < 10


def test_retention_that_passes_it_is_out_of_range(
    tmp_path: Path, way: str, threads: ThreadPoolExecutor
) -> None:
    directory = tmp_path / "orders-0"
    with Log.open(directory, CONFIG) as log:
        for number in range(20):
            log.append(b"%d" % number * 30)
        follower = LogReader(directory).follow(2, timeout=0)
        log.delete_records(15)
        log.maintain()
        with pytest.raises(OffsetOutOfRange) as caught:
            next(follower)
        follower.seek(caught.value.log_start_offset)
        assert [record.offset for record in follower] == [15, 16, 17, 18, 19]


def test_compaction_does_not_disturb_it(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    config = LogConfig(
        cleanup_policy="compact", segment_bytes=300, segment_index_bytes=240, file_delete_delay_ms=0
    )
    with Log.open(directory, config) as log:
        for number in range(20):
            log.append(b"%d" % number * 20, key=b"k")
        follower = LogReader(directory).follow(timeout=0)
        assert next(follower).offset == 0
        log.compact()
        log.maintain()
        rest = [record.offset for record in follower]
        assert rest[-1] == 19
        assert rest == sorted(set(rest))


def test_a_torn_batch_is_not_returned(tmp_path: Path, way: str, threads: ThreadPoolExecutor) -> None:
    """A follower sees whole batches only: half of one wakes it, and it sleeps again."""
    directory = tmp_path / "orders-0"
    with Log.open(directory) as log:
        log.append(b"whole")
        log.append(b"torn")
        log.append(b"last")
    path = directory / f"{0:020}.log"
    data = path.read_bytes()
    size = len(data) // 3 + 20
    path.write_bytes(data[:size])
    follower = LogReader(directory).follow(timeout=30)
    assert next(follower).value == b"whole"

    def write_on() -> None:
        with path.open("ab", buffering=0) as file:
            for at in range(size, len(data)):
                file.write(data[at : at + 1])

    found = threads.submit(lambda: [next(follower).value, next(follower).value])
    write_on()
    assert found.result() == [b"torn", b"last"]


# --- the watcher ---------------------------------------------------------------------------------------


class DeafEvents:
    """A kernel that accepts every watch and tells of nothing, as for another host's writes."""

    def __init__(self) -> None:
        self.armed: list[str] = []

    def add_watch(self, directory: str, _mask: int) -> int:
        self.armed.append(directory)
        return len(self.armed)

    def read(self, wait_ms: int) -> list[object]:
        threading.Event().wait(wait_ms / 1000)
        return []


def test_a_directory_of_which_no_event_comes_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_S", 0.01)
    (tmp_path / "file").write_bytes(b"")
    events = DeafEvents()
    watcher = Watcher(events)
    for _ in range(2):
        woken = threading.Event()
        watcher.add(str(tmp_path), lambda: "file", woken.set)
        with (tmp_path / "file").open("ab") as file:
            file.write(b"more")
        assert woken.wait(30)
    assert events.armed == [str(tmp_path)], "once silent, the kernel is not asked again"


def test_a_watch_that_ended_wakes_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    watcher = Watcher(None)
    woken, other = threading.Event(), threading.Event()
    watch = watcher.add(str(tmp_path), lambda: "file", woken.set)
    watcher.remove(watch)
    watcher.add(str(tmp_path), lambda: "file", other.set)
    (tmp_path / "file").write_bytes(b"more")
    assert other.wait(30)
    assert not woken.is_set()


def test_its_thread_ends_when_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_S", 0.001)
    monkeypatch.setattr(watching, "SHORT_LOOK_S", 0.001)
    watcher = Watcher(None)
    watcher.remove(watcher.add(str(tmp_path), lambda: "file", lambda: None))
    thread = watcher._thread
    if thread is not None:
        thread.join(30)
    assert watcher._thread is None
    woken = threading.Event()
    watcher.add(str(tmp_path), lambda: "file", woken.set)
    (tmp_path / "file").write_bytes(b"more")
    assert woken.wait(30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_a_child_has_a_watcher_of_its_own(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    with Log.open(directory) as log:
        log.append(b"0")
        parent = watcher()
        child = os.fork()
        if child == 0:
            is_new = watcher() is not parent
            os._exit(0 if is_new and len(list(LogReader(directory).follow(timeout=0))) == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
