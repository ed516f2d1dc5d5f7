"""One contract for every `Disk`: what passes on a stand-in must pass on the operating system, and back.

The stand-ins are only worth something while they behave as `OsDisk` does; so each test here runs on all
of them, and none knows which one it has.
"""

from __future__ import annotations

import errno
import gc
from array import array

import pytest

from logstore.disk.files import (
    Disk,
    File,
)
from tests.contracts.disk_contract import put
from tests.descriptors import open_below


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


def test_written_data_is_independent_of_the_buffer(file: File) -> None:
    """Buffers are reused for the next batch as soon as `pwrite` returns."""
    buffer = bytearray(b"first")
    file.pwrite(buffer, 0)
    buffer[:] = b"other"
    assert file.pread(5, 0) == b"first"


def test_asking_for_the_page_cache_changes_nothing(file: File) -> None:
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


def test_closed_file_refuses_everything_but_close(disk: Disk, root: str) -> None:
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


def test_unreferenced_file_is_closed(disk: Disk, root: str) -> None:
    """Segments are let go of, not closed, so that a reader in the middle of one can finish."""
    for number in range(30):
        file = disk.open(f"{root}/{number}", create=True)
        file.pwrite(b"content", 0)
        file.sync()
        del file
    gc.collect()
    assert open_below(root) == 0


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


def test_map_of_zero_bytes_is_empty(file: File) -> None:
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
