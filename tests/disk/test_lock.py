"""The directory lock against real other processes.

A JVM broker holds an `fcntl` lock (`FileChannel.lock`), other tools `flock`; ours must be refused by
either, must refuse them, and must end with its owner, however that ends.
"""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logstore.disk.errors import DirectoryLocked
from logstore.disk.files import LOCK_FILE, OsDisk

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX locks")


@contextmanager
def other_process(source: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A second Python that has run `source` up to its `ready()`, and waits there for a line."""
    prelude = "import sys\ndef ready():\n    print('ready', flush=True)\n    sys.stdin.readline()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(source), *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


FOREIGN_HOLDERS = {
    "fcntl": """
        import fcntl
        file = open(sys.argv[1], "w")
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ready()
        """,
    "flock": """
        import fcntl
        file = open(sys.argv[1], "w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ready()
        """,
    "ours": """
        import os.path
        from logstore.disk.files import OsDisk
        lock = OsDisk().lock(os.path.dirname(sys.argv[1]))
        ready()
        """,
}


@pytest.mark.parametrize("holder", FOREIGN_HOLDERS)
def test_lock_is_held_until_its_process_dies(holder: str, tmp_path: Path) -> None:
    with other_process(FOREIGN_HOLDERS[holder], f"{tmp_path}/{LOCK_FILE}") as process:
        for _ in range(2):  # the failed attempt must not leave us thinking that we hold it
            with pytest.raises(DirectoryLocked, match=f"{tmp_path} is in use by another process") as refused:
                OsDisk().lock(str(tmp_path))
            if sys.platform == "linux" and holder != "flock":
                assert f"another process (id {process.pid}), which holds" in str(refused.value)
        process.kill()
        process.wait()
        OsDisk().lock(str(tmp_path)).release()


ATTEMPTS = """
    import fcntl
    for attempt in (fcntl.lockf, fcntl.flock):
        with open(sys.argv[1], "r+") as file:
            try:
                attempt(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                print("refused")
            else:
                print("granted")
    """


def attempts(path: Path) -> list[str]:
    """What a JVM's and a BSD locker in another process are told."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys\n" + textwrap.dedent(ATTEMPTS), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.split()


def test_lock_excludes_both_lock_types_until_release(tmp_path: Path) -> None:
    lock = OsDisk().lock(str(tmp_path))
    assert attempts(tmp_path / LOCK_FILE) == ["refused", "refused"]
    lock.release()
    assert attempts(tmp_path / LOCK_FILE) == ["granted", "granted"]


def test_nothing_is_collected_for_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection takes 0.2 s in a program with a million objects, and cannot make that process let go."""
    collections: list[object] = []
    monkeypatch.setattr(gc, "collect", lambda: collections.append(None))
    with open(tmp_path / LOCK_FILE, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as another process's: through another description
        with pytest.raises(DirectoryLocked, match="in use by another process"):
            OsDisk().lock(str(tmp_path))
    assert not collections
    lock = OsDisk().lock(str(tmp_path))
    with pytest.raises(DirectoryLocked, match="already open in this process"):
        OsDisk().lock(str(tmp_path))
    assert collections
    lock.release()


def test_a_second_owner_in_this_process_is_refused_once(tmp_path: Path) -> None:
    """The refusal before the collection was the context of that behind it, and the traceback told both."""
    lock = OsDisk().lock(str(tmp_path))
    with pytest.raises(DirectoryLocked) as refused:
        OsDisk().lock(str(tmp_path))
    assert refused.value.__context__ is None
    lock.release()


def test_refused_second_lock_keeps_the_first(tmp_path: Path) -> None:
    """POSIX drops a process's lock when it closes *any* descriptor of the file: attempts must not open it."""
    lock = OsDisk().lock(str(tmp_path))
    with pytest.raises(DirectoryLocked, match="already open in this process"):
        OsDisk().lock(str(tmp_path))
    with pytest.raises(OSError):
        OsDisk().open(f"{tmp_path}/{LOCK_FILE}")
    assert attempts(tmp_path / LOCK_FILE) == ["refused", "refused"]
    lock.release()


def test_directory_with_two_paths_has_one_owner(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    lock = OsDisk().lock(f"{tmp_path}/data")
    with pytest.raises(DirectoryLocked):
        OsDisk().lock(f"{tmp_path}/link")
    lock.release()


def test_unlinked_lock_file_admits_no_second_owner_in_this_process(tmp_path: Path) -> None:
    """A clean-up that removes the file: the registry knows the directory, not the file."""
    lock = OsDisk().lock(str(tmp_path))
    (tmp_path / LOCK_FILE).unlink()
    with pytest.raises(DirectoryLocked):
        OsDisk().lock(str(tmp_path))
    lock.release()


def test_lock_on_an_unlinked_file_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM broker removes its lock file on exit, perhaps between our opening it and our locking it.

    Then our lock is on a file without a name, and the next opener would lock a new one beside us.
    """
    flock, removals = fcntl.flock, 2

    def flock_of_a_removed_file(descriptor: int, operation: int) -> None:
        nonlocal removals
        if removals:
            removals -= 1
            (tmp_path / LOCK_FILE).unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_of_a_removed_file)
    lock = OsDisk().lock(str(tmp_path))
    assert removals == 0
    assert attempts(tmp_path / LOCK_FILE) == ["refused", "refused"]
    lock.release()


@pytest.mark.parametrize("releases", ["releases", "does not"])
def test_forked_child_neither_owns_nor_releases_the_lock(releases: str, tmp_path: Path) -> None:
    """`flock` belongs to all processes that share the descriptor: a worker that outlives its broker
    would keep the directory, and one that cleans up would give it away."""
    source = """
        import os
        from logstore.disk.files import OsDisk
        from logstore.disk.errors import DirectoryLocked
        lock = OsDisk().lock(sys.argv[1])
        told, tell = os.pipe()
        if os.fork() == 0:
            if sys.argv[2] == "releases":
                lock.release()
            try:
                OsDisk().lock(sys.argv[1])
            except DirectoryLocked as error:
                os.write(tell, b"locked" if "another process" in str(error) else b"wrong reason")
            else:
                os.write(tell, b"taken")
            os.close(1)
            os.read(0, 1)  # nothing comes: until the test closes its end
            os._exit(0)
        print(os.read(told, 100).decode(), flush=True)
        ready()
        """
    prelude = "import sys\ndef ready():\n    print('ready', flush=True)\n    sys.stdin.readline()\n"
    process = subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(source), str(tmp_path), releases],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n", "the child is told that its parent has it"
        assert process.stdout.readline() == "ready\n"
        assert attempts(tmp_path / LOCK_FILE) == ["refused", "refused"], "the child released nothing"
        process.kill()
        process.wait()
        # The child still lives, since its standard input is still open, but without the lock.
        OsDisk().lock(str(tmp_path)).release()


def test_forked_child_can_lock_despite_other_threads(tmp_path: Path) -> None:
    """A guard that some thread held at the fork would stay held in the child: nobody there releases it."""
    source = """
        import os, sys, threading
        from logstore.disk.files import OsDisk
        disk, (busy, free) = OsDisk(), sys.argv[1:]
        stop = threading.Event()
        def lock_and_release():
            while not stop.is_set():
                disk.lock(busy).release()
        thread = threading.Thread(target=lock_and_release)
        thread.start()
        for _ in range(100):
            child = os.fork()
            if child == 0:
                disk.lock(free).release()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        stop.set()
        thread.join()
        """
    (tmp_path / "busy").mkdir()
    (tmp_path / "free").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), f"{tmp_path}/busy", f"{tmp_path}/free"],
        cwd=REPOSITORY,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0


def test_directory_errors_are_reported_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is a file, is missing or cannot be written is not "locked by somebody"."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        OsDisk().lock(f"{tmp_path}/file")
    with pytest.raises(FileNotFoundError):
        OsDisk().lock(f"{tmp_path}/absent")

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with pytest.raises(OSError, match="No locks available"):
        OsDisk().lock(str(tmp_path))


def test_a_read_only_directory_is_a_permission_error(tmp_path: Path) -> None:
    """Tried as an ordinary user, since the superuser may write anywhere."""
    (tmp_path / "data").mkdir(mode=0o555)
    source = """
        import os, sys
        from logstore.disk.files import OsDisk
        os.chdir(sys.argv[1])
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            OsDisk().lock(".")
        except OSError as error:
            print(type(error).__name__)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(tmp_path / "data")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "PermissionError\n", done.stderr
