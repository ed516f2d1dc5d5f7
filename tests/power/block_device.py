"""Block devices that remember every write and every flush: `python -m tests.power.block_device FOLDER MOUNT`.

The server shows each image of a folder as a file, through FUSE; a loop device over that file is the disk of
a file system. Each write goes into the image, then into the image's journal, before it is answered. It is a
process of its own: a page fault that waits for the disk holds the interpreter lock of its program.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.kafka.jars import Missing
from tests.power.crash_images import FLUSH, Change, Write

_HEAD: Final = struct.Struct("<QQ")
"""Offset and length of a write, before its bytes; a flush has no length."""
_PATIENCE_S: Final = 30.0


def serve(folder: Path, mount: Path) -> None:  # pragma: no cover - in another process
    """Show the images until the mount goes away."""
    import mfusepy

    class Recorder(mfusepy.Operations):  # type: ignore[misc]  # the package has no types
        use_ns = True

        def __init__(self) -> None:
            self._files: dict[int, tuple[int, int]] = {}

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
            try:
                size = (folder / path[1:]).stat().st_size
            except FileNotFoundError:
                raise mfusepy.FuseOSError(errno.ENOENT) from None
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size}

        def open(self, path: str, flags: int) -> int:
            image = os.open(folder / path[1:], os.O_RDWR)
            journal = os.open(_journal(folder / path[1:]), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._files[image] = image, journal
            return image

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            os.pwrite(fh, data, offset)
            os.write(self._files[fh][1], _HEAD.pack(offset, len(data)) + data)
            return len(data)

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            os.write(self._files[fh][1], _HEAD.pack(0, 0))
            return 0

        def release(self, path: str, fh: int) -> int:
            for descriptor in self._files.pop(fh):
                os.close(descriptor)
            return 0

    mfusepy.FUSE(Recorder(), str(mount), foreground=True, nothreads=True)


def _journal(image: Path) -> Path:
    return image.with_suffix(".journal")


class FileSystem(NamedTuple):
    """A kind of file system, by the name that `mount` and `mkfs` know."""

    name: str
    mebibytes: int
    package: str
    making: tuple[str, ...] = ("-q",)
    mounting: str = "loop"


KINDS: Final = {
    "ext4": FileSystem("ext4", 64, "e2fsprogs", ("-q", "-F", "-b", "4096")),
    "ext4-writeback": FileSystem("ext4", 64, "e2fsprogs", ("-q", "-F", "-b", "4096"), "loop,data=writeback"),
    # Images of one file system are mounted at the same time.
    "xfs": FileSystem("xfs", 300, "xfsprogs", mounting="loop,nouuid"),
    "btrfs": FileSystem("btrfs", 128, "btrfs-progs"),
}


@contextlib.contextmanager
def in_memory() -> Iterator[Path]:
    """Yield a folder for the devices of a campaign: the host's disk has nothing to do with it."""
    where = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="power-", dir=where, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class Devices:
    """The devices of a campaign, as images in one folder. Needs root. Raises `Missing`."""

    def __init__(self, folder: Path, kind: FileSystem) -> None:
        for program, package in (("fusermount3", "fuse3"), (f"mkfs.{kind.name}", kind.package)):
            if shutil.which(program) is None:
                raise Missing(f"{program} is not installed: apt-get install {package}")
        if os.geteuid() != 0:
            raise Missing("mounting a file system needs root: sudo make power-cuts")
        self._images, self._shown = folder / "images", folder / "shown"
        self._kind, self._mounted = kind, 0
        self._folder = folder
        for each in (self._images, self._shown):
            each.mkdir(parents=True)
        self.blank = folder / "blank.image"
        """An empty file system."""
        with self.blank.open("wb") as file:
            file.truncate(kind.mebibytes << 20)
        _run(f"mkfs.{kind.name}", *kind.making, str(self.blank))
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.power.block_device", str(self._images), str(self._shown)],
            cwd=Path(__file__).parents[2],
        )
        end = time.monotonic() + _PATIENCE_S
        while not os.path.ismount(self._shown):
            if self._server.poll() is not None:
                raise Missing("the FUSE server ended: is mfusepy installed? pip install mfusepy")
            assert time.monotonic() < end, "the FUSE server does not mount"
            time.sleep(0.01)

    def end(self) -> None:
        """Unmount what a workload's error has left, and take down the server."""
        for mount in (*self._folder.glob("mount-*"), self._shown):
            if os.path.ismount(mount):
                _run("umount", "--lazy", str(mount))
        try:
            self._server.wait(_PATIENCE_S / 10)  # it ends with its mount
        except subprocess.TimeoutExpired:
            self._server.terminate()
            self._server.wait(_PATIENCE_S)

    def mount(self, base: Path, changes: list[Change], at: Path | None = None) -> Device:
        """Mount a copy of the image `base` in which these changes were made; `at` a directory, if given."""
        self._mounted += 1
        image = self._images / f"{self._mounted}.image"
        _run("cp", "--sparse=always", str(base), str(image))
        with image.open("r+b") as file:
            for change in changes:
                if isinstance(change, Write):
                    file.seek(change.offset)
                    file.write(change.data)
        directory = self._folder / f"mount-{self._mounted}" if at is None else at
        directory.mkdir(parents=True, exist_ok=True)
        shown = self._shown / image.name
        _run("mount", "-t", self._kind.name, "-o", self._kind.mounting, str(shown), str(directory))
        return Device(base, changes, image, directory)


class Device:
    """A mounted file system, and the journal of its disk."""

    def __init__(self, base: Path, before: list[Change], image: Path, directory: Path) -> None:
        self.base, self.directory = base, directory
        self._before, self._image = before, image

    @property
    def position(self) -> int:
        """The length of its journal, which grows with every write and flush."""
        try:
            return _journal(self._image).stat().st_size
        except FileNotFoundError:
            return 0

    def changes(self) -> Iterator[tuple[int, Change]]:
        """Yield every write and flush, each with the position that it led to; those of its making have 0."""
        for change in self._before:
            yield 0, change
        with contextlib.suppress(FileNotFoundError), _journal(self._image).open("rb") as journal:
            while head := journal.read(_HEAD.size):
                offset, length = _HEAD.unpack(head)
                yield journal.tell() + length, Write(offset, journal.read(length)) if length else FLUSH

    def sync(self) -> None:
        """Make the file system write all that it has cached."""
        subprocess.run(["sync", "--file-system", str(self.directory)], check=True)

    def unmount(self) -> None:
        """At once; open files keep the file system until they are closed."""
        _run("umount", "--lazy", str(self.directory))
        self.directory.rmdir()

    def forget(self) -> None:
        """Remove the files of an unmounted device."""
        self._image.unlink()
        _journal(self._image).unlink(missing_ok=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
