"""What is enumerated is what may be drawn: no image that a power cut could not leave, none left out."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from logstore.testing.disks import MemoryDisk, Profile
from logstore.testing.disks.leftovers import Leftovers, Pictures

Files = dict[str, bytes]


def small_write(disk: MemoryDisk) -> None:
    disk.open("/d/f", write=True).pwrite(b"abc", 0)


def overwrite(disk: MemoryDisk) -> None:
    file = disk.open("/d/f", write=True)
    file.pwrite(b"old", 0)
    file.sync()
    file.pwrite(b"ne", 1)


def cut_and_write(disk: MemoryDisk) -> None:
    """The cut may be lost under the write that followed it."""
    file = disk.open("/d/f", write=True)
    file.pwrite(b"abcd", 0)
    file.sync()
    file.truncate(1)
    file.pwrite(b"x", 1)


def two_files(disk: MemoryDisk) -> None:
    disk.open("/d/f", write=True).pwrite(b"1", 0)
    disk.open("/d/g", create=True, write=True).pwrite(b"2", 0)


def replace(disk: MemoryDisk) -> None:
    disk.open("/d/g", create=True, write=True).pwrite(b"n", 0)
    disk.rename("/d/g", "/d/f")


def move_and_remove(disk: MemoryDisk) -> None:
    disk.make_dir("/e")
    disk.rename("/d/f", "/e/f")
    disk.remove("/e/f")


SCRIPTS = [small_write, overwrite, cut_and_write, two_files, replace, move_and_remove]


def disk_after(script: Callable[[MemoryDisk], None]) -> MemoryDisk:
    disk = MemoryDisk({"/d/f": b""})
    script(disk)
    return disk


def shown(disk: MemoryDisk) -> tuple[tuple[str, bytes], ...]:
    directories = tuple((f"{entry.name}/", b"") for entry in disk.scan("/") if entry.is_directory)
    return (*directories, *disk.files().items())


def enumerated(disk: MemoryDisk, profile: Profile, limit: int = 10_000) -> set[tuple[tuple[str, bytes], ...]]:
    pictures = Pictures()
    leftovers = Leftovers(disk, profile, pictures)
    return {shown(pictures.disk(leftovers.picture(choice))) for choice in leftovers.choices(limit, Random(1))}


def is_garbage(image: tuple[tuple[str, bytes], ...]) -> bool:
    """Whether it holds a byte that nobody wrote: what garbage is drawn is a matter of luck."""
    return any(set(content) - set(b"abcdnewoldx12\0") for _, content in image)


@pytest.mark.parametrize("profile", Profile)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_enumerated_images_can_be_drawn(script: Callable[[MemoryDisk], None], profile: Profile) -> None:
    """Two descriptions of one model, by luck and in order: no image here that the other calls illegal."""
    disk, random = disk_after(script), Random(3)
    drawn = {shown(disk.image(random, profile)) for _ in range(2_000)}
    found = enumerated(disk, profile)
    assert {image for image in found if not is_garbage(image)} <= drawn


@pytest.mark.parametrize(
    ("script", "profile"),
    [
        (two_files, Profile.JOURNALED),
        (replace, Profile.JOURNALED),
        (move_and_remove, Profile.JOURNALED),
        (move_and_remove, Profile.POSIX),
    ],
)
def test_drawn_images_are_enumerated(script: Callable[[MemoryDisk], None], profile: Profile) -> None:
    """Where single bytes are written and nothing is garbage, the telling images are all there are."""
    disk, random = disk_after(script), Random(3)
    assert {shown(disk.image(random, profile)) for _ in range(1_500)} <= enumerated(disk, profile)


def all_of_it(disk: MemoryDisk) -> None:
    small_write(disk)
    two_files(disk)
    replace(disk)


@pytest.mark.parametrize("profile", Profile)
def test_limited_enumeration_keeps_both_extremes(profile: Profile) -> None:
    disk = disk_after(all_of_it)
    few, many = enumerated(disk, profile, 4), enumerated(disk, profile)
    assert few <= many
    assert len(few) <= 4 < len(many)
    assert {shown(disk.copy()), shown(disk.durable_image())} <= few


def test_long_write_is_torn_at_critical_bytes() -> None:
    disk = MemoryDisk({"/f": b""})
    content = bytes(range(1, 251)) * 4
    disk.open("/f", write=True).pwrite(content, 0)
    lengths = {len(files[0][1].rstrip(b"\0")) for files in enumerated(disk, Profile.JOURNALED)}
    assert {0, 1, 17, 61, 500, 512, 999, 1000} <= lengths


def test_equal_disks_have_equal_pictures() -> None:
    """Whatever way led there; and a picture makes the disk it was taken of."""
    pictures = Pictures()
    one, other = MemoryDisk({"/d/f": b"xy"}), disk_after(lambda disk: None)
    file = other.open("/d/f", write=True)
    file.pwrite(b"xyz\0", 0)
    file.truncate(2)
    file.sync()
    first, second = (Leftovers(disk, Profile.POSIX, pictures) for disk in (one, other))
    assert first.picture(first.least) == second.picture(second.least)
    assert pictures.disk(first.picture(first.least)).files() == {"/d/f": b"xy"}


def test_choice_lists_what_is_lost() -> None:
    disk = disk_after(replace)
    leftovers = Leftovers(disk, Profile.POSIX, Pictures())
    assert leftovers.lost(leftovers.least) == 2
    assert leftovers.describe(leftovers.least) == ["lost: create /d/g", "lost: rename /d/g to /d/f"]


def test_killed_process_leaves_unsynced_data_visible_and_unsynced() -> None:
    """`survivor` shares nothing with the disk it was taken of, and the power can still be cut on it."""
    disk = disk_after(replace)
    survivor = disk.survivor()
    assert survivor.files() == disk.files() == {"/d/f": b"n"}
    assert survivor.durable_image().files() == {"/d/f": b""}
    assert {shown(survivor.image(Random(seed))) for seed in range(200)} == {
        shown(disk.image(Random(seed))) for seed in range(200)
    }
    survivor.open("/d/f", write=True).pwrite(b"other", 0)
    survivor.sync_dir("/d")
    assert disk.files() == {"/d/f": b"n"}
    assert disk.durable_image().files() == {"/d/f": b""}


def test_killed_process_releases_locks_and_unlinked_files() -> None:
    disk = MemoryDisk({"/d/f": b"xyz"}, capacity=10)
    lock, file = disk.lock("/d"), disk.open("/d/f")
    disk.remove("/d/f")
    assert disk.room("/").free == 7
    survivor = disk.survivor()
    survivor.lock("/d").release()
    assert survivor.room("/").free == 10
    assert file.pread(3, 0) == b"xyz"
    lock.release()
