"""One contract for every `Disk`: what passes on a stand-in must pass on the operating system, and back.

The stand-ins are only worth something while they behave as `OsDisk` does; so each test here runs on all
of them, and none knows which one it has.
"""

from __future__ import annotations

import errno
import gc
import os
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logstore.disk.errors import DirectoryLocked
from logstore.disk.files import (
    LOCK_FILE,
    DirectoryEntry,
    Disk,
    File,
    OsDisk,
    publish,
    read_small_file,
    remove_if_exists,
)
from logstore.testing.disks import FaultyDisk, MemoryDisk, RecordingDisk, VolatileDisk

DISKS: dict[str, Callable[[], Disk]] = {
    "os": OsDisk,
    "memory": MemoryDisk,
    "recording-memory": lambda: RecordingDisk(MemoryDisk()),
    "recording-reads-os": lambda: RecordingDisk(OsDisk(), reads=True),
    "faulty-os": lambda: FaultyDisk(OsDisk()),
    "faulty-memory": lambda: FaultyDisk(MemoryDisk()),
    "volatile-os": lambda: VolatileDisk(OsDisk()),
    "volatile-memory": lambda: VolatileDisk(MemoryDisk()),
}


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest) -> Disk:
    return DISKS[request.param]()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    path = f"{tmp_path}/data"
    disk.make_dir(path)
    return path


@pytest.fixture
def file(disk: Disk, root: str) -> Iterator[File]:
    opened = disk.open(f"{root}/file", create=True, write=True)
    yield opened
    opened.close()


def put(disk: Disk, path: str, content: bytes = b"content") -> None:
    file = disk.open(path, create=True, write=True)
    file.truncate(0)
    file.pwrite(content, 0)
    file.close()


def names(disk: Disk, directory: str) -> list[str]:
    return [entry.name for entry in disk.scan(directory)]


# --- files --------------------------------------------------------------------------------------


def test_reads_are_short_only_at_the_end(file: File) -> None:
    file.pwrite(b"0123456789", 0)
    assert file.pread(4, 0) == b"0123"
    assert file.pread(4, 8) == b"89"
    assert file.pread(4, 10) == b""
    assert file.pread(4, 1000) == b""
    assert file.pread(0, 3) == b""
    assert file.size() == 10


def test_a_write_past_the_end_leaves_zeros_between(file: File) -> None:
    file.pwrite(b"end", 5)
    assert file.pread(100, 0) == b"\0\0\0\0\0end"


def test_an_empty_write_changes_nothing(file: File) -> None:
    file.pwrite(b"", 100)
    assert file.size() == 0


def test_a_write_over_the_end_replaces_and_extends(file: File) -> None:
    file.pwrite(b"abcdef", 0)
    file.pwrite(b"XYZW", 4)
    assert file.pread(100, 0) == b"abcdXYZW"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_written_whole(file: File, kind: type[bytes]) -> None:
    file.pwrite(kind(b"payload"), 0)
    assert file.pread(100, 0) == b"payload"


def test_a_view_of_wide_items_counts_in_bytes(file: File) -> None:
    """`len` of such a view is its items: a writer that compares with it would stop too early."""
    numbers = array("q", range(100))
    file.pwrite(memoryview(numbers), 0)
    assert file.size() == 800
    assert file.pread(800, 0) == numbers.tobytes()


def test_what_was_written_does_not_follow_the_callers_buffer(file: File) -> None:
    """Buffers are reused for the next batch as soon as `pwrite` returns."""
    buffer = bytearray(b"first")
    file.pwrite(buffer, 0)
    buffer[:] = b"other"
    assert file.pread(5, 0) == b"first"


def test_nobody_has_to_wait_for_what_was_just_read(file: File) -> None:
    """Or nobody can tell; asking changes nothing, at the end and past it neither."""
    file.pwrite(bytes(200_000), 0)
    file.pread(200_000, 0)
    answers = {file.is_cached(size, at) for size, at in ((200_000, 0), (1, 199_999), (10, 300_000))}
    assert len(answers) == 1
    assert file.size() == 200_000


def test_truncate_cuts_and_extends_with_zeros(file: File) -> None:
    file.pwrite(b"0123456789", 0)
    file.truncate(4)
    assert file.pread(100, 0) == b"0123"
    file.truncate(6)
    assert file.pread(100, 0) == b"0123\0\0", "what was cut off must not come back"
    file.truncate(0)
    assert file.size() == 0


def test_two_handles_see_one_file(disk: Disk, root: str) -> None:
    """Unbuffered: a reader sees what `pwrite` returned from, at once."""
    writer = disk.open(f"{root}/file", create=True, write=True)
    reader = disk.open(f"{root}/file")
    writer.pwrite(b"seen", 0)
    assert reader.pread(10, 0) == b"seen"
    assert reader.size() == 4
    writer.close()
    assert reader.pread(10, 0) == b"seen", "each handle has its own life"
    reader.close()


def test_negative_positions_and_sizes_are_refused(file: File) -> None:
    """A slice would quietly count from the end."""
    file.pwrite(b"0123456789", 0)
    for call in (
        lambda: file.pread(1, -1),
        lambda: file.pread(-1, 0),
        lambda: file.pwrite(b"x", -1),
        lambda: file.truncate(-1),
        lambda: file.map(-1),
    ):
        with pytest.raises(OSError) as raised:
            call()
        assert raised.value.errno == errno.EINVAL
    assert file.pread(100, 0) == b"0123456789"


def test_a_file_opened_to_read_cannot_be_changed(disk: Disk, root: str) -> None:
    put(disk, f"{root}/file")
    reader = disk.open(f"{root}/file")
    with pytest.raises(OSError):
        reader.pwrite(b"x", 0)
    with pytest.raises(OSError):
        reader.truncate(0)
    assert reader.pread(100, 0) == b"content"
    reader.close()


def test_a_closed_file_refuses_all_but_another_close(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True, write=True)
    file.close()
    file.close()
    for call in (
        lambda: file.pread(1, 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        lambda: file.sync(),
        lambda: file.size(),
        lambda: file.map(1),
    ):
        with pytest.raises(OSError) as raised:
            call()
        assert raised.value.errno == errno.EBADF


def test_sync_keeps_the_content(file: File) -> None:
    file.pwrite(b"content", 0)
    file.sync()
    file.pwrite(b"more", 7)
    file.sync(data_only=True)
    assert file.pread(100, 0) == b"contentmore"


def test_a_file_that_is_let_go_of_is_closed(disk: Disk, root: str) -> None:
    """Segments are let go of, not closed, so that a reader in the middle of one can finish."""
    before = len(os.listdir("/dev/fd"))
    for number in range(30):
        file = disk.open(f"{root}/{number}", create=True)
        file.pwrite(b"content", 0)
        file.sync()
        del file
    gc.collect()
    assert len(os.listdir("/dev/fd")) == before


# --- maps ---------------------------------------------------------------------------------------


def test_a_map_shows_later_writes(file: File) -> None:
    """Index entries are written with `pwrite` and looked up through a map."""
    file.truncate(64)
    view = file.map(64)
    file.pwrite(b"entry", 8)
    assert bytes(view[8:13]) == b"entry"
    assert view.readonly
    assert len(view) == 64


def test_a_map_survives_growth_of_its_file(file: File) -> None:
    file.pwrite(b"a" * 100, 0)
    view = file.map(100)
    file.pwrite(b"b" * 10_000, 100)
    file.pwrite(b"c", 0)
    assert bytes(view[:2]) == b"ca", "the map and the file are still the same bytes"
    second = file.map(10_100)
    file.pwrite(b"d", 1)
    assert (view[1], second[1]) == (ord("d"), ord("d"))


def test_a_map_outlives_the_file_object_and_the_name(disk: Disk, root: str) -> None:
    put(disk, f"{root}/file", b"mapped")
    file = disk.open(f"{root}/file")
    view = file.map(6)
    file.close()
    disk.remove(f"{root}/file")
    assert bytes(view) == b"mapped"


def test_a_map_of_nothing_is_empty(file: File) -> None:
    """`mmap` itself refuses a length of 0, and means the whole file by it elsewhere."""
    assert bytes(file.map(0)) == b""
    file.pwrite(b"content", 0)
    assert bytes(file.map(0)) == b""


def test_a_map_past_the_end_is_refused(file: File) -> None:
    """Touching such a page would be a signal, not an exception."""
    file.pwrite(b"0123", 0)
    with pytest.raises(OSError) as raised:
        file.map(5)
    assert raised.value.errno == errno.EINVAL


def test_a_file_may_shrink_once_its_map_is_gone(file: File) -> None:
    file.truncate(1000)
    view = file.map(1000)
    del view
    file.truncate(10)
    kept = file.map(10)
    file.truncate(10)
    file.truncate(20)
    assert bytes(kept) == bytes(10)


# --- opening ------------------------------------------------------------------------------------


def test_open_needs_an_existing_file_unless_it_creates(disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/absent")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/absent", write=True)
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/no/directory", create=True)
    assert names(disk, root) == []


def test_create_keeps_an_existing_file_and_exclusive_refuses_it(disk: Disk, root: str) -> None:
    put(disk, f"{root}/file")
    disk.open(f"{root}/file", create=True).close()
    assert read_small_file(disk, f"{root}/file") == b"content"
    with pytest.raises(FileExistsError):
        disk.open(f"{root}/file", create=True, exclusive=True)
    disk.open(f"{root}/new", create=True, exclusive=True).close()
    assert names(disk, root) == ["file", "new"]


def test_exclusive_means_nothing_without_create(disk: Disk, root: str) -> None:
    put(disk, f"{root}/file")
    disk.open(f"{root}/file", exclusive=True).close()


def test_what_is_created_can_be_written(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    file.pwrite(b"x", 0)
    file.close()


@pytest.mark.parametrize("write", [False, True])
def test_a_directory_is_not_a_file(disk: Disk, root: str, write: bool) -> None:
    with pytest.raises(IsADirectoryError):
        disk.open(root, write=write)


def test_a_file_is_not_a_directory(disk: Disk, root: str) -> None:
    put(disk, f"{root}/file")
    for call in (
        lambda: disk.open(f"{root}/file/below", create=True),
        lambda: disk.scan(f"{root}/file"),
        lambda: disk.sync_dir(f"{root}/file"),
        lambda: disk.remove_dir(f"{root}/file"),
        lambda: disk.make_dir(f"{root}/file/below"),
        lambda: disk.lock(f"{root}/file"),
    ):
        with pytest.raises(NotADirectoryError):
            call()
    with pytest.raises(FileExistsError):
        disk.make_dir(f"{root}/file")


def test_the_lock_file_cannot_be_opened(disk: Disk, root: str) -> None:
    """Closing any descriptor of it would let go of the POSIX lock, silently."""
    lock = disk.lock(root)
    for create in (False, True):
        with pytest.raises(OSError) as raised:
            disk.open(f"{root}/{LOCK_FILE}", create=create)
        assert raised.value.errno == errno.EBUSY
    lock.release()


# --- names --------------------------------------------------------------------------------------


def test_scan_lists_by_name_with_sizes(disk: Disk, root: str) -> None:
    put(disk, f"{root}/b", b"12345")
    put(disk, f"{root}/a", b"")
    disk.make_dir(f"{root}/c")
    found = disk.scan(root)
    assert [(entry.name, entry.is_directory, entry.size) for entry in found] == [
        ("a", False, 0),
        ("b", False, 5),
        ("c", True, 0),
    ]
    assert all(isinstance(entry, DirectoryEntry) for entry in found)


def test_scan_needs_a_directory(disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.scan(f"{root}/absent")


def test_rename_replaces_a_file_and_keeps_open_handles(disk: Disk, root: str) -> None:
    """A reader of the old file reads on; a writer of the new one writes on, under the new name."""
    put(disk, f"{root}/old", b"old")
    put(disk, f"{root}/new", b"new")
    reader = disk.open(f"{root}/old")
    writer = disk.open(f"{root}/new", write=True)
    disk.rename(f"{root}/new", f"{root}/old")
    assert names(disk, root) == ["old"]
    assert reader.pread(10, 0) == b"old"
    writer.pwrite(b"!", 3)
    assert read_small_file(disk, f"{root}/old") == b"new!"
    reader.close()
    writer.close()


def test_a_removed_file_stays_open(disk: Disk, root: str) -> None:
    """Readers finish with a segment that retention has already unlinked."""
    file = disk.open(f"{root}/file", create=True, write=True)
    file.pwrite(b"before", 0)
    disk.remove(f"{root}/file")
    file.pwrite(b" after", 6)
    file.sync()
    assert file.pread(100, 0) == b"before after"
    put(disk, f"{root}/file", b"another")
    assert file.pread(100, 0) == b"before after", "the name now belongs to another file"
    file.close()


def test_a_directory_moves_with_what_is_in_it(disk: Disk, root: str) -> None:
    """Topic deletion renames the directory while files in it are open."""
    disk.make_dir(f"{root}/topic-0/deep")
    put(disk, f"{root}/topic-0/deep/file", b"content")
    file = disk.open(f"{root}/topic-0/deep/file", write=True)
    disk.rename(f"{root}/topic-0", f"{root}/topic-0-delete")
    file.pwrite(b"C", 0)
    file.close()
    assert names(disk, root) == ["topic-0-delete"]
    assert read_small_file(disk, f"{root}/topic-0-delete/deep/file") == b"Content"


def test_rename_refuses_what_it_cannot_replace(disk: Disk, root: str) -> None:
    put(disk, f"{root}/file")
    disk.make_dir(f"{root}/empty")
    disk.make_dir(f"{root}/full/below")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/absent", f"{root}/x")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/file", f"{root}/no/x")
    with pytest.raises(IsADirectoryError):
        disk.rename(f"{root}/file", f"{root}/empty")
    with pytest.raises(NotADirectoryError):
        disk.rename(f"{root}/empty", f"{root}/file")
    with pytest.raises(OSError) as raised:
        disk.rename(f"{root}/empty", f"{root}/full")
    assert raised.value.errno in (errno.ENOTEMPTY, errno.EEXIST)
    with pytest.raises(OSError) as raised:
        disk.rename(f"{root}/full", f"{root}/full/below/x")
    assert raised.value.errno == errno.EINVAL
    disk.rename(f"{root}/full", f"{root}/empty")
    disk.rename(f"{root}/file", f"{root}/file")
    assert names(disk, root) == ["empty", "file"]


def test_remove_and_remove_dir(disk: Disk, root: str) -> None:
    put(disk, f"{root}/directory", b"")
    disk.remove(f"{root}/directory")
    with pytest.raises(FileNotFoundError):
        disk.remove(f"{root}/directory")
    disk.make_dir(f"{root}/directory")
    with pytest.raises((IsADirectoryError, PermissionError)):  # macOS says the latter
        disk.remove(f"{root}/directory")
    put(disk, f"{root}/directory/file")
    with pytest.raises(OSError) as raised:
        disk.remove_dir(f"{root}/directory")
    assert raised.value.errno in (errno.ENOTEMPTY, errno.EEXIST)
    disk.remove(f"{root}/directory/file")
    disk.remove_dir(f"{root}/directory")
    with pytest.raises(FileNotFoundError):
        disk.remove_dir(f"{root}/directory")
    assert names(disk, root) == []


def test_make_dir_makes_parents_and_accepts_an_existing_one(disk: Disk, root: str) -> None:
    disk.make_dir(f"{root}/a/b/c")
    disk.make_dir(f"{root}/a/b/c")
    disk.make_dir(f"{root}/a/d")
    assert names(disk, f"{root}/a") == ["b", "d"]


def test_paths_may_be_written_in_other_ways(disk: Disk, root: str) -> None:
    disk.make_dir(f"{root}/a")
    put(disk, f"{root}//a/../file")
    assert read_small_file(disk, f"{root}/./file") == b"content"


def test_sync_dir_needs_a_directory(disk: Disk, root: str) -> None:
    disk.sync_dir(root)
    with pytest.raises(FileNotFoundError):
        disk.sync_dir(f"{root}/absent")


def test_free_is_a_number_of_bytes(disk: Disk, root: str) -> None:
    assert disk.free(root) > 0
    with pytest.raises(FileNotFoundError):
        disk.free(f"{root}/absent")


# --- locks --------------------------------------------------------------------------------------


def test_a_directory_has_one_owner(disk: Disk, root: str) -> None:
    disk.make_dir(f"{root}/a")
    disk.make_dir(f"{root}/b")
    lock = disk.lock(f"{root}/a")
    with pytest.raises(DirectoryLocked, match="/a "):
        disk.lock(f"{root}/a")
    with pytest.raises(DirectoryLocked, match="/a/"):
        disk.lock(f"{root}/b/../a/")
    disk.lock(f"{root}/b").release()
    lock.release()
    lock.release()
    again = disk.lock(f"{root}/a")
    lock.release()  # the first owner's; it no longer has a say
    with pytest.raises(DirectoryLocked):
        disk.lock(f"{root}/a")
    again.release()


def test_a_lock_file_stays_behind(disk: Disk, root: str) -> None:
    """Removing it would let a third opener lock a new file while a second waits on the old one."""
    disk.lock(root).release()
    assert names(disk, root) == [LOCK_FILE]
    disk.lock(root).release()


def test_a_lock_needs_a_directory(disk: Disk, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        disk.lock(f"{root}/absent")


# --- the helpers --------------------------------------------------------------------------------


def test_publish_replaces_whole(disk: Disk, root: str) -> None:
    publish(disk, root, "small", b"a longer first version")
    publish(disk, root, "small", b"second")
    assert read_small_file(disk, f"{root}/small") == b"second"
    assert names(disk, root) == ["small"]


def test_publish_overwrites_a_left_over_temporary_file(disk: Disk, root: str) -> None:
    put(disk, f"{root}/small.tmp", b"what an earlier crash left, longer than the new content")
    publish(disk, root, "small", b"new")
    assert read_small_file(disk, f"{root}/small") == b"new"


def test_read_small_file(disk: Disk, root: str) -> None:
    assert read_small_file(disk, f"{root}/absent") is None
    put(disk, f"{root}/file", b"12345")
    assert read_small_file(disk, f"{root}/file", limit=5) == b"12345"
    with pytest.raises(OSError) as raised:
        read_small_file(disk, f"{root}/file", limit=4)
    assert raised.value.errno == errno.EFBIG


def test_remove_if_exists(disk: Disk, root: str) -> None:
    put(disk, f"{root}/file")
    assert remove_if_exists(disk, f"{root}/file") is True
    assert remove_if_exists(disk, f"{root}/file") is False


# --- everything at once -------------------------------------------------------------------------


@settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_every_disk_does_what_the_operating_system_does(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Random scripts of calls: same answers, same errors, same content, whatever the disk."""
    traces = {}
    for name, make in DISKS.items():
        traces[name] = trace_of(make(), str(tmp_path_factory.mktemp("script")), Random(seed))
    for name, trace in traces.items():
        assert trace == traces["os"], name


def trace_of(disk: Disk, root: str, random: Random) -> list[object]:
    """What a random script sees of `disk`: answers, and error numbers instead of answers."""
    disk.make_dir(root)
    disk.make_dir(f"{root}/d")
    paths = ["a", "b", "d", "d/a", "e", "e/a"]
    files: list[File] = []
    trace: list[object] = []

    def step() -> object:
        one, other = (f"{root}/{random.choice(paths)}" for _ in range(2))
        size, at = random.randrange(3000), random.randrange(6000)
        file = random.choice(files) if files else None
        match random.randrange(13):
            case 0 | 1:
                write = random.random() < 0.8
                files.append(disk.open(one, create=write, write=write, exclusive=random.random() < 0.2))
            case 2 | 3 if file:
                file.pwrite(random.randbytes(size), at)
            case 4 if file:
                file.truncate(at)
            case 5 if file:
                return file.pread(size, at)
            case 6 if file:
                return bytes(file.map(size))
            case 7 if file:
                file.sync()
            case 8:
                disk.rename(one, other)
            case 9:
                disk.remove(one)
            case 10:
                disk.make_dir(one)
            case 11:
                disk.remove_dir(one)
            case 12:
                disk.sync_dir(one)
        return None

    for _ in range(60):
        try:
            trace.append(step())
        except OSError as error:
            trace.append(error.errno)
    for directory in (root, f"{root}/d", f"{root}/e"):
        try:
            entries = disk.scan(directory)
        except OSError as error:
            trace.append(error.errno)
            continue
        for entry in entries:
            content = None if entry.is_directory else read_small_file(disk, f"{directory}/{entry.name}")
            trace.append((entry.name, entry.is_directory, entry.size, content))
    for file in files:
        trace.append((file.size(), file.pread(10_000, 0)))
        file.close()
    return trace
