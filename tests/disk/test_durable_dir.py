"""Directories that are there after a power cut, with every name above them."""

from __future__ import annotations

import errno

import pytest

from logstore.disk.files import make_durable_dir
from logstore.testing.disks import MemoryDisk


def test_all_that_was_missing_is_made() -> None:
    disk = MemoryDisk()
    make_durable_dir(disk, "/srv/data/orders-0")
    assert [each.name for each in disk.durable_image().scan("/srv/data")] == ["orders-0"]


def test_names_that_a_killed_process_made_survive_with_what_is_made_below_them() -> None:
    """It made the directories and was killed before it synced them; they look like old ones to the next."""
    disk = MemoryDisk()
    disk.make_dir("/srv/data/orders-0")
    make_durable_dir(disk, "/srv/data/orders-0")
    left = disk.durable_image()
    assert [each.name for each in left.scan("/srv/data")] == ["orders-0"]


def test_names_above_that_nobody_can_sync_are_not_ours() -> None:
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
