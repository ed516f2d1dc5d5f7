"""The contract of disks"""

from __future__ import annotations

import errno
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logstore.disk.errors import DirectoryLocked
from logstore.disk.files import (
    LOCK_FILE,
    LOST_AND_FOUND,
    DirectoryEntry,
    Disk,
    File,
    publish,
    read_small_file,
    remove_if_exists,
)
from tests.contracts.disk_contract import DISKS, put


def names(disk: Disk, directory: str) -> list[str]:
    return [entry.name for entry in disk.scan(directory)]


# --- files --------------------------------------------------------------------------------------


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


def test_exclusive_without_create_has_no_effect(disk: Disk, root: str) -> None:
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


def test_scan_leaves_out_the_directory_of_the_file_system(disk: Disk, root: str) -> None:
    disk.make_dir(f"{root}/{LOST_AND_FOUND}/a")
    disk.make_dir(f"{root}/b")
    put(disk, f"{root}/b/{LOST_AND_FOUND}", b"a file of this name is no such directory")
    assert names(disk, root) == ["b"]
    assert names(disk, f"{root}/b") == [LOST_AND_FOUND]


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


def test_a_link_is_a_second_name_of_the_same_file(disk: Disk, root: str) -> None:
    """A snapshot shares the files of sealed segments."""
    put(disk, f"{root}/file", b"content")
    disk.make_dir(f"{root}/snapshot")
    file = disk.open(f"{root}/file", write=True)
    assert file.names() == 1
    disk.link(f"{root}/file", f"{root}/snapshot/file")
    assert file.names() == 2
    file.pwrite(b"C", 0)
    assert read_small_file(disk, f"{root}/snapshot/file") == b"Content"
    disk.rename(f"{root}/file", f"{root}/snapshot/file")
    assert names(disk, root) == ["file", "snapshot"], "two names of one file: POSIX leaves both"
    put(disk, f"{root}/other", b"other")
    disk.rename(f"{root}/other", f"{root}/file")
    assert file.names() == 1
    assert read_small_file(disk, f"{root}/snapshot/file") == b"Content"
    disk.remove(f"{root}/snapshot/file")
    assert file.names() == 0
    assert file.pread(100, 0) == b"Content"
    file.close()


def test_what_cannot_be_linked(disk: Disk, root: str) -> None:
    put(disk, f"{root}/file")
    disk.make_dir(f"{root}/directory")
    with pytest.raises(FileNotFoundError):
        disk.link(f"{root}/absent", f"{root}/x")
    with pytest.raises(FileNotFoundError):
        disk.link(f"{root}/file", f"{root}/no/x")
    for target in ("file", "directory"):
        with pytest.raises(FileExistsError):
            disk.link(f"{root}/file", f"{root}/{target}")
    with pytest.raises(PermissionError):
        disk.link(f"{root}/directory", f"{root}/x")
    assert names(disk, root) == ["directory", "file"]


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


def test_equivalent_paths_name_the_same_file(disk: Disk, root: str) -> None:
    disk.make_dir(f"{root}/a")
    put(disk, f"{root}//a/../file")
    assert read_small_file(disk, f"{root}/./file") == b"content"


def test_sync_dir_needs_a_directory(disk: Disk, root: str) -> None:
    disk.sync_dir(root)
    with pytest.raises(FileNotFoundError):
        disk.sync_dir(f"{root}/absent")


def test_room_is_two_numbers_of_bytes(disk: Disk, root: str) -> None:
    free, total = disk.room(root)
    assert 0 < free <= total
    with pytest.raises(FileNotFoundError):
        disk.room(f"{root}/absent")


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


def test_lock_file_remains_after_release(disk: Disk, root: str) -> None:
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


def test_publish_overwrites_a_leftover_temporary_file(disk: Disk, root: str) -> None:
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
        match random.randrange(14):
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
            case 13:
                disk.link(one, other)
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
        trace.append((file.size(), file.names(), file.pread(10_000, 0)))
        file.close()
    return trace
