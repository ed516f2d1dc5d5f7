"""Directories that are there after a power cut, with every name above them."""

from __future__ import annotations

import errno

import pytest

from logstore.disk.files import make_durable_dir
from logstore.testing.disks import MemoryDisk


def test_missing_directories_are_created_and_synced() -> None:
    disk = MemoryDisk()
    make_durable_dir(disk, "/srv/data/orders-0")
    assert [each.name for each in disk.durable_image().scan("/srv/data")] == ["orders-0"]


def test_directories_created_by_a_killed_process_are_synced() -> None:
    """It made the directories and was killed before it synced them; they look like old ones to the next."""
    disk = MemoryDisk()
    disk.make_dir("/srv/data/orders-0")
    make_durable_dir(disk, "/srv/data/orders-0")
    left = disk.durable_image()
    assert [each.name for each in left.scan("/srv/data")] == ["orders-0"]


def test_existing_parents_on_a_read_only_file_system_are_not_synced() -> None:
    """A log dir on a read-only image's mount point opens; a directory that was made here must be durable."""

    class Image(MemoryDisk):
        def sync_dir(self, directory: str) -> None:
            if directory == "/":
                raise OSError(errno.EROFS, "read-only file system", directory)
            super().sync_dir(directory)

    disk = Image()
    with pytest.raises(OSError, match="read-only"):
        make_durable_dir(disk, "/mnt/data")
    make_durable_dir(disk, "/mnt/data/orders-0")
