"""`OsDisk` where it meets the operating system: short writes, odd files, descriptors, forks.

What every disk has in common is in `tests/contracts/test_disk.py`.
"""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import logstore.disk.files
from logstore.disk.files import LOCK_FILE, File, OsDisk, publish, read_small_file
from logstore.testing.disks import Fault, FaultyDisk, RecordingDisk
from tests.descriptors import open_below

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX processes and files")


def run_python(source: str, *arguments: str) -> list[str]:
    """Run `source` in a fresh interpreter; the lines it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source), *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# --- writing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("pwrite", lambda file: file.pwrite(b"data", 0)),
        ("pread", lambda file: file.pread(4, 0)),
        ("ftruncate", lambda file: file.truncate(0)),
        ("fsync", lambda file: file.sync()),
    ],
)
def test_the_error_of_a_call_by_descriptor_names_the_file(
    number: int,
    function: str,
    call: Callable[[File], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = f"{tmp_path}/file"

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with closing(OsDisk().open(path, create=True)) as file:
        monkeypatch.setattr(os, function, fail)
        monkeypatch.setattr(logstore.disk.files, "_sync", fail)
        with pytest.raises(OSError, match=f"{os.strerror(number)}: '{path}'") as caught:
            call(file)
        monkeypatch.undo()
    assert (caught.value.errno, caught.value.filename) == (number, path)


def test_a_device_that_accepts_no_more_bytes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(OsDisk().open(f"{tmp_path}/file", create=True)) as file:
        monkeypatch.setattr(os, "pwrite", lambda *_: 0)
        with pytest.raises(OSError, match=f"no more bytes: '{tmp_path}/file'"):
            file.pwrite(b"data", 0)


def test_short_write_at_size_limit_completes_or_raises(tmp_path: Path) -> None:
    """The kernel writes what fits below the limit and says so in the count, not by an error.

    Only a writer that goes on meets the EFBIG behind it.
    """
    lines = run_python(
        """
        import os, resource, signal, sys
        from logstore.disk.files import OsDisk
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        file = OsDisk().open(sys.argv[1], create=True, write=True)
        for data in (b"x" * 20_000, memoryview(b"y" * 20_000), bytearray(b"z" * 20_000)):
            try:
                file.pwrite(data, 0)
            except OSError as error:
                print(error.errno, file.size(), file.pread(2, 4998))
        file.close()
        """,
        str(tmp_path / "file"),
    )
    assert lines == [f"{errno.EFBIG} 5000 {data!r}" for data in (b"xx", b"yy", b"zz")]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_short_reads_and_writes_continue(
    kind: type[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals and full devices make the kernel write less than it was asked to."""
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr(
        os, "pwrite", lambda file, data, at: pwrite(file, memoryview(data).cast("B")[:700], at)
    )
    monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, min(size, 300), at))
    content = os.urandom(5000)
    file = OsDisk().open(f"{tmp_path}/file", create=True, write=True)
    file.pwrite(kind(content), 10)
    assert file.pread(5000, 10) == content
    assert file.pread(9000, 10) == content, "short at the end, and only there"
    assert file.size() == 5010
    file.close()


def test_short_count_is_in_bytes_not_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 items of 8 bytes, 100 bytes written: `len` of the view would call that done."""
    pwrite = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda file, data, at: pwrite(file, memoryview(data).cast("B")[:100], at)
    )
    items = memoryview(bytes(range(200)) * 4).cast("q")
    assert len(items) == 100
    file = OsDisk().open(f"{tmp_path}/file", create=True, write=True)
    file.pwrite(items, 0)
    assert file.pread(1000, 0) == items.tobytes()
    file.close()


def test_write_of_zero_bytes_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: 0)
    file = OsDisk().open(f"{tmp_path}/file", create=True, write=True)
    with pytest.raises(OSError, match="no more bytes"):
        file.pwrite(b"data", 0)
    file.close()


# --- what is not a regular file -----------------------------------------------------------------


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    """A link planted in a log dir must not lead our writes to another file."""
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "dangling").symlink_to("absent")
    for create in (False, True):
        for name in ("link", "dangling"):
            with pytest.raises(OSError) as raised:
                OsDisk().open(f"{tmp_path}/{name}", create=create)
            assert raised.value.errno == errno.ELOOP
    (tmp_path / LOCK_FILE).symlink_to("target")
    with pytest.raises(OSError) as raised:
        OsDisk().lock(str(tmp_path))
    assert raised.value.errno == errno.ELOOP
    assert not (tmp_path / "absent").exists()
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.parametrize("write", [False, True])
def test_pipe_is_refused_without_blocking(tmp_path: Path, write: bool) -> None:
    """An ordinary open of a pipe blocks until somebody opens the other end: for ever, here."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError) as raised:
        OsDisk().open(f"{tmp_path}/pipe", write=write)
    assert raised.value.errno == errno.EINVAL
    assert open_below(tmp_path) == 0


def test_a_device_is_refused() -> None:
    with pytest.raises(OSError, match="not a regular file"):
        OsDisk().open("/dev/null")


def test_scan_skips_links_and_special_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "link-to-directory").symlink_to("directory")
    (tmp_path / "dangling").symlink_to("absent")
    os.mkfifo(tmp_path / "pipe")
    os.utime(tmp_path / "file", ns=(0, 1_234_567_890_123_456_789))
    found = OsDisk().scan(str(tmp_path))
    assert [(entry.name, entry.is_directory, entry.size) for entry in found] == [
        ("directory", True, 0),
        ("file", False, 5),
    ]
    assert found[1].modified_ms == 1_234_567_890_123


def test_log_dir_may_be_a_symbolic_link(tmp_path: Path) -> None:
    """Operators link /data to the disk of the day; only what is inside must not be links."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to("disk")
    disk = OsDisk()
    lock = disk.lock(f"{tmp_path}/data")
    publish(disk, f"{tmp_path}/data", "small", b"content")
    disk.make_dir(f"{tmp_path}/data")
    disk.sync_dir(f"{tmp_path}/data")
    assert read_small_file(disk, f"{tmp_path}/disk/small") == b"content"
    lock.release()


# --- descriptors --------------------------------------------------------------------------------


def test_unclosed_file_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    """Segments are let go of, never closed under a reader; the last one out closes the descriptor."""
    file = OsDisk().open(f"{tmp_path}/file", create=True)
    reader, descriptor = file, file._descriptor
    del file
    os.fstat(descriptor)
    del reader
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_closed_file_is_collected_without_a_warning(tmp_path: Path) -> None:
    OsDisk().open(f"{tmp_path}/file", create=True).close()
    gc.collect()


def test_descriptors_are_not_inherited_by_other_programs(tmp_path: Path) -> None:
    file = OsDisk().open(f"{tmp_path}/file", create=True)
    assert not os.get_inheritable(file._descriptor)
    file.close()


def test_a_map_keeps_the_file_alive_not_the_file_object(tmp_path: Path) -> None:
    file = OsDisk().open(f"{tmp_path}/file", create=True)
    file.pwrite(b"content", 0)
    view = file.map(7)
    file.close()
    del file
    assert bytes(view) == b"content"
    mapping = weakref.ref(view.obj)
    view.release()
    assert mapping() is None, "the pages go with their last user"


def test_a_full_sync_and_a_data_sync_both_reach_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(logstore.disk.files, "_sync", lambda descriptor: called.append("full"))
    monkeypatch.setattr(logstore.disk.files, "_data_sync", lambda descriptor: called.append("data"))
    file = OsDisk().open(f"{tmp_path}/file", create=True)
    file.sync()
    file.sync(data_only=True)
    file.close()
    OsDisk().sync_dir(str(tmp_path))
    assert called == ["full", "data", "full"]


def test_a_forked_child_reads_but_does_not_write(tmp_path: Path) -> None:
    """Parent and child would write at the same positions, each sure of being alone."""
    lines = run_python(
        """
        import os, sys
        from logstore.disk.files import OsDisk
        disk = OsDisk()
        file = disk.open(sys.argv[1], create=True, write=True)
        file.pwrite(b"parent", 0)
        child = os.fork()
        if child == 0:
            refused = 0
            for write in (lambda: file.pwrite(b"child!", 0), lambda: file.truncate(0)):
                try:
                    write()
                except OSError:
                    refused += 1
            own = disk.open(sys.argv[1] + "-own", create=True, write=True)
            own.pwrite(b"mine", 0)
            own.close()
            os._exit(refused if file.pread(10, 0) == b"parent" else 99)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        file.pwrite(b" goes on", 6)
        print(file.pread(100, 0).decode())
        file.close()
        """,
        str(tmp_path / "file"),
    )
    assert lines == ["2", "parent goes on"]
    assert (tmp_path / "file-own").read_bytes() == b"mine"


# --- publish ------------------------------------------------------------------------------------


def test_publish_syncs_in_order(tmp_path: Path) -> None:
    """Content before the name, the name before the return: any other order loses the file whole."""
    disk = RecordingDisk(OsDisk())
    publish(disk, str(tmp_path), "small", b"content")
    assert [operation.name for operation in disk.operations] == [
        "create",
        "truncate",
        "pwrite",
        "sync",
        "rename",
        "sync_dir",
    ]


def test_failed_publish_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    """Every call fails once; the small file is never half of anything and later publishes work."""
    counting = FaultyDisk(OsDisk())
    publish(counting, str(tmp_path), "small", b"old")
    for k in range(1, counting.calls + 1):
        publish(OsDisk(), str(tmp_path), "small", b"old")
        disk = FaultyDisk(OsDisk(), [Fault(at=k, errno=errno.ENOSPC, short=1)])
        with pytest.raises(OSError):
            publish(disk, str(tmp_path), "small", b"new")
        last_step = k == counting.calls
        assert (tmp_path / "small").read_bytes() == (b"new" if last_step else b"old")
        publish(disk, str(tmp_path), "small", b"newer")
        assert (tmp_path / "small").read_bytes() == b"newer"


def test_open_file_has_no_instance_dictionary(tmp_path: Path) -> None:
    """A broker holds several for each of thousands of segments."""
    file = OsDisk().open(f"{tmp_path}/file", create=True)
    assert not hasattr(file, "__dict__")
    file.close()
