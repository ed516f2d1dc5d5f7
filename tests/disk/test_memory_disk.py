"""What a power cut may leave of a `MemoryDisk`, and that it does leave it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import closing
from random import Random
from typing import Any

import pytest

from logstore.disk.files import Disk, publish, read_small_file
from logstore.testing.disks import MemoryDisk, Profile, RecordingDisk
from tests.disk.legality import Witness

BOTH = pytest.mark.parametrize("profile", Profile)


def put(disk: Disk, path: str, content: bytes, *, sync: bool = False) -> None:
    file = disk.open(path, create=True, write=True)
    file.truncate(0)
    file.pwrite(content, 0)
    if sync:
        file.sync()
    file.close()


def images(disk: MemoryDisk, profile: Profile, count: int = 400) -> Iterable[MemoryDisk]:
    return (disk.image(Random(seed), profile) for seed in range(count))


def names(disk: Disk, directory: str = "/d") -> str:
    return " ".join(entry.name for entry in disk.scan(directory))


# --- against the witness ------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("seed", range(60))
def test_every_image_is_legal(profile: Profile, seed: int) -> None:
    """Nothing synced is missing and nothing is there that never was."""
    random = Random(seed)
    disk = MemoryDisk()
    witness = Witness(disk, "/data", random)
    for _ in range(4):
        witness.run(15)
        for _ in range(8):
            wrongs = witness.wrongs(disk.image(random, profile), garbage=profile is Profile.POSIX)
            assert wrongs == []
    before = disk.files()
    after = disk.power_cut(random, profile)
    assert witness.wrongs(after, garbage=profile is Profile.POSIX) == [], before


@pytest.mark.parametrize("seed", range(100))
def test_durable_image_contains_only_synced_data(seed: int) -> None:
    disk = MemoryDisk()
    witness = Witness(disk, "/data", Random(seed))
    for _ in range(5):
        witness.run(12)
        assert disk.durable_image().files() == witness.durable()


@pytest.mark.parametrize("seed", range(20))
def test_taking_images_does_not_change_the_disk(seed: int) -> None:
    """Crash scripts take thousands of images of one run."""
    watched, alone = MemoryDisk(), MemoryDisk()
    for disk in (watched, alone):
        witness = Witness(disk, "/data", Random(seed))
        for _ in range(5):
            witness.run(10)
            if disk is watched:
                for profile in Profile:
                    disk.image(Random(1), profile)
                disk.copy()
    assert watched.files() == alone.files()
    assert watched.durable_image().files() == alone.durable_image().files()


def test_a_seed_is_no_random() -> None:
    disk = MemoryDisk()
    with pytest.raises(TypeError, match=r"such as Random\(7\), not 7"):
        disk.power_cut(7)  # type: ignore[arg-type]
    assert disk.scan("/") == [], "the power is still on"


def test_the_same_seed_gives_the_same_image() -> None:
    found: list[list[dict[str, bytes]]] = []
    for _ in range(2):
        disk = MemoryDisk()
        Witness(disk, "/data", Random(7)).run(80)
        found.append([disk.image(Random(seed)).files() for seed in range(20)])
    assert found[0] == found[1]


# --- that it is a hard adversary ----------------------------------------------------------------

OLD, NEW = b"o" * 1500, b"n" * 1500


def appended(disk: MemoryDisk) -> None:
    file = disk.open("/d/file", write=True)
    file.pwrite(NEW, 1500)


def overwritten(disk: MemoryDisk) -> None:
    file = disk.open("/d/file", write=True)
    file.pwrite(NEW, 0)


def cut_and_appended(disk: MemoryDisk) -> None:
    file = disk.open("/d/file", write=True)
    file.truncate(500)
    file.pwrite(NEW[:600], 500)


CONTENTS: list[tuple[str, Callable[[MemoryDisk], None], Callable[[bytes], bool]]] = [
    ("all lost", appended, lambda c: c == OLD),
    ("all kept", appended, lambda c: c == OLD + NEW),
    ("torn at a byte", appended, lambda c: c.rstrip(b"n") == OLD and len(c) % 512 != 0 and len(c) < 3000),
    ("torn at a sector", appended, lambda c: c.rstrip(b"n") == OLD and len(c) in (2048, 2560)),
    ("zero tail", appended, lambda c: c == OLD + bytes(1500)),
    ("part, then a zero tail", appended, lambda c: c.startswith(OLD + b"n") and c.endswith(b"\0")),
    ("hole before data", appended, lambda c: c.startswith(OLD + b"\0") and c.endswith(b"n")),
    ("overwrite in part", overwritten, lambda c: c.startswith(b"n") and c.endswith(b"o") and len(c) == 1500),
    ("a later sector first", overwritten, lambda c: c.startswith(b"o") and c.endswith(b"n")),
    ("cut kept, data lost", cut_and_appended, lambda c: c == OLD[:500]),
    (
        "stale tail: cut lost under later data",
        cut_and_appended,
        lambda c: c == OLD[:500] + NEW[:600] + OLD[1100:],
    ),
    ("cut and data kept", cut_and_appended, lambda c: c == OLD[:500] + NEW[:600]),
]


@BOTH
@pytest.mark.parametrize(("name", "change", "is_it"), CONTENTS, ids=[name for name, _, _ in CONTENTS])
def test_each_kind_of_damage_to_a_file_occurs(
    name: str, change: Callable[[MemoryDisk], None], is_it: Callable[[bytes], bool], profile: Profile
) -> None:
    disk = MemoryDisk({"/d/file": OLD})
    change(disk)
    assert any(is_it(image.files()["/d/file"]) for image in images(disk, profile, 1000)), name


def test_garbage_tails_are_left_by_the_posix_profile_only() -> None:
    """A length that came without bytes may show old blocks; ext4 and XFS see to it that it does not."""
    disk = MemoryDisk({"/d/file": OLD})
    appended(disk)
    strange = {
        profile: sum(bool(image.files()["/d/file"].strip(b"on\0")) for image in images(disk, profile))
        for profile in Profile
    }
    assert strange[Profile.JOURNALED] == 0
    assert strange[Profile.POSIX] > 0


def test_unsynced_names_survive_in_order_or_in_any_order() -> None:
    disk = MemoryDisk(directories=["/d"])
    for name in "abc":
        put(disk, f"/d/{name}", b"", sync=True)
    assert {names(image) for image in images(disk, Profile.JOURNALED)} == {"", "a", "a b", "a b c"}
    assert {names(image) for image in images(disk, Profile.POSIX)} == {
        "", "a", "b", "c", "a b", "a c", "b c", "a b c",
    }  # fmt: skip


@BOTH
def test_a_rename_without_a_sync_may_leave_an_empty_file_under_the_final_name(profile: Profile) -> None:
    """Why `publish` syncs first."""
    disk = MemoryDisk({"/d/small": b"old"})
    put(disk, "/d/small.tmp", b"new")
    disk.rename("/d/small.tmp", "/d/small")
    found = {image.files().get("/d/small") for image in images(disk, profile)}
    assert {b"old", b"new", b""} <= found
    assert None not in found, "a rename over a file never leaves the name without one"


@BOTH
def test_publish_leaves_the_old_or_the_new_file(profile: Profile) -> None:
    """At every point of it, in every image."""
    memory = MemoryDisk({"/d/small": b"old"})
    found: list[bytes] = []

    def look(operation: object) -> None:
        found.extend(image.files()["/d/small"] for image in images(memory, profile, 50))

    publish(RecordingDisk(memory, before=look), "/d", "small", b"new")
    assert set(found) == {b"old", b"new"}
    assert {image.files()["/d/small"] for image in images(memory, profile)} == {b"new"}


@BOTH
def test_a_removed_file_may_come_back(profile: Profile) -> None:
    disk = MemoryDisk({"/d/file": b"content"})
    disk.remove("/d/file")
    found = {image.files().get("/d/file") for image in images(disk, profile)}
    assert found == {None, b"content"}
    disk.sync_dir("/d")
    assert {image.files().get("/d/file") for image in images(disk, profile)} == {None}


def test_unsynced_directory_may_vanish_with_its_content() -> None:
    """Syncing what is in it is not enough, unless the file system's journal keeps the order."""
    disk = MemoryDisk(directories=["/d"])
    disk.make_dir("/d/topic-0")
    put(disk, "/d/topic-0/file", b"content", sync=True)
    disk.sync_dir("/d/topic-0")
    assert {names(image) for image in images(disk, Profile.JOURNALED)} == {"topic-0"}
    assert {names(image) for image in images(disk, Profile.POSIX)} == {"", "topic-0"}
    disk.sync_dir("/d")
    assert disk.durable_image().files() == {"/d/topic-0/file": b"content"}


@BOTH
def test_renamed_file_survives_under_exactly_one_name(profile: Profile) -> None:
    """Renames in a chain and across directories, each kept or lost alone: still one file."""
    disk = MemoryDisk({"/d/a": b"content"}, directories=["/e"])
    disk.rename("/d/a", "/d/b")
    disk.rename("/d/b", "/e/c")
    disk.rename("/e/c", "/d/x")
    for image in images(disk, profile):
        assert list(image.files().values()) == [b"content"]


@BOTH
def test_synced_move_out_of_an_unsynced_directory_survives(profile: Profile) -> None:
    """The creation under the old name is not synced; it may not bring that name back, nor lose the file."""
    disk = MemoryDisk(directories=["/d", "/e"])
    put(disk, "/d/a", b"content", sync=True)
    disk.rename("/d/a", "/e/b")
    disk.sync_dir("/e")
    for image in (disk.durable_image(), *images(disk, profile)):
        assert image.files() == {"/e/b": b"content"}


def test_directory_sync_commits_earlier_operations_of_a_journal() -> None:
    """A journal is one: a later operation in it does not survive without the earlier ones."""
    disk = MemoryDisk(directories=["/d", "/e"])
    put(disk, "/d/earlier", b"", sync=True)
    put(disk, "/e/later", b"", sync=True)
    disk.sync_dir("/e")
    assert {names(image, "/d") for image in images(disk, Profile.JOURNALED)} == {"earlier"}
    assert {names(image, "/d") for image in images(disk, Profile.POSIX)} == {"", "earlier"}
    assert {names(image, "/e") for image in images(disk, Profile.POSIX)} == {"later"}


# --- failed syncs, death, room ------------------------------------------------------------------


def test_pages_of_a_failed_sync_are_lost_although_the_next_sync_succeeds() -> None:
    """Linux reports a lost write once and calls the page clean: retrying fsync proves nothing."""
    disk = MemoryDisk({"/d/file": b"old."})
    file = disk.open("/d/file", write=True)
    file.pwrite(b"lost", 4)
    file.drop_unsynced()
    assert file.pread(100, 0) == b"old.lost", "still in the page cache"
    file.pwrite(b"kept", 8)
    file.sync()
    assert {image.files()["/d/file"] for image in images(disk, Profile.POSIX)} == {b"old.\0\0\0\0kept"}
    file.pwrite(b"LOST", 4)
    file.sync()
    assert disk.durable_image().files()["/d/file"] == b"old.LOSTkept", "written again, it is dirty again"


@BOTH
def test_disk_and_files_are_unusable_after_a_power_cut(profile: Profile) -> None:
    """An engine that goes on after the cut must not reach the disk that came back."""
    disk = MemoryDisk({"/d/file": b"content"})
    file = disk.open("/d/file", write=True)
    lock = disk.lock("/d")
    after = disk.power_cut(Random(1), profile)
    for call in (
        lambda: file.pwrite(b"x", 0),
        lambda: file.pread(1, 0),
        lambda: file.sync(),
        lambda: file.size(),
        lambda: file.truncate(0),
        lambda: file.map(1),
        lambda: disk.open("/d/file"),
        lambda: disk.make_dir("/new"),
        lambda: disk.rename("/d/file", "/d/x"),
        lambda: disk.remove("/d/file"),
        lambda: disk.remove_dir("/d"),
        lambda: disk.scan("/d"),
        lambda: disk.sync_dir("/d"),
        lambda: disk.lock("/d"),
        lambda: disk.room("/d").free,
        lambda: disk.power_cut(Random(2)),
    ):
        with pytest.raises(OSError, match="power was cut"):
            call()
    file.close()
    lock.release()
    assert after.files()["/d/file"] == b"content"
    after.lock("/d").release()


def test_full_disk_writes_what_fits_and_raises() -> None:
    disk = MemoryDisk({"/d/file": b"1234"}, capacity=10)
    file = disk.open("/d/file", write=True)
    assert disk.room("/d").free == 6
    with pytest.raises(OSError) as raised:
        file.pwrite(b"abcdefgh", 4)
    assert raised.value.errno == errno.ENOSPC
    assert file.pread(100, 0) == b"1234abcdef", "a part was written, as the real one does"
    file.pwrite(b"ABCD", 0)  # no more room is needed for what is there
    with pytest.raises(OSError):
        file.pwrite(b"x", 10)
    file.truncate(8)
    file.pwrite(b"yz", 8)
    assert file.pread(100, 0) == b"ABCDabcdyz"
    disk.capacity = 12
    file.pwrite(b"!", 10)
    assert disk.room("/d").free == 1


def test_space_is_freed_with_the_last_handle() -> None:
    disk = MemoryDisk({"/d/file": b"12345678"}, capacity=10)
    file = disk.open("/d/file")
    disk.remove("/d/file")
    assert disk.room("/d").free == 2
    file.close()
    assert disk.room("/d").free == 10
    put(disk, "/d/file", b"12345678")
    file = disk.open("/d/file")
    disk.remove("/d/file")
    assert disk.room("/d").free == 2
    del file  # let go of, not closed
    assert disk.room("/d").free == 10
    put(disk, "/d/a", b"1234")
    put(disk, "/d/b", b"5678")
    disk.rename("/d/a", "/d/b")
    assert disk.room("/d").free == 6


def test_hole_takes_no_space() -> None:
    """Preallocated index files on a nearly full disk."""
    disk = MemoryDisk(directories=["/d"], capacity=100)
    file = disk.open("/d/index", create=True)
    file.truncate(10_000)
    view = file.map(10_000)
    file.pwrite(b"entry", 0)
    assert disk.room("/d").free == 95
    assert bytes(view[:5]) == b"entry"


def test_truncating_a_mapped_file_is_an_assertion_error() -> None:
    """On a real file the next look at the map would kill the process; here the culprit is named."""
    disk = MemoryDisk({"/d/file": bytes(100)})
    file = disk.open("/d/file", write=True)
    view = file.map(60)
    file.truncate(80)
    with pytest.raises(AssertionError, match="release the map"):
        file.truncate(59)
    file.truncate(60)
    assert len(view) == 60
    del view
    file.truncate(0)


def test_modification_times_come_from_the_clock() -> None:
    now = 1000
    disk = MemoryDisk({"/d/file": b""}, clock=lambda: now)
    now = 2000
    put(disk, "/d/other", b"content")
    assert [(entry.name, entry.modified_ms) for entry in disk.scan("/d")] == [("file", 1000), ("other", 2000)]
    assert disk.copy().scan("/d") == disk.scan("/d")


def test_copy_is_durable_and_independent() -> None:
    disk = MemoryDisk(directories=["/d"])
    put(disk, "/d/file", b"unsynced")
    copy = disk.copy()
    put(disk, "/d/file", b"later")
    assert copy.files() == copy.durable_image().files() == {"/d/file": b"unsynced"}
    assert read_small_file(disk, "/d/file") == b"later"


@BOTH
def test_a_link_survives_a_power_cut_or_not_and_stays_one_file(profile: Profile) -> None:
    """The old name is not lost with the new one, and both show the same content."""
    found = set()
    for seed in range(60):
        disk = MemoryDisk({"/a/file": b"old"}, directories=["/b"])
        with closing(disk.open("/a/file", write=True)) as file:
            file.pwrite(b"new", 0)
        disk.link("/a/file", "/b/link")
        after = disk.image(Random(seed), profile)
        files = after.files()
        assert "/a/file" in files
        assert len(set(files.values())) == 1, "two names, one content"
        with closing(after.open("/a/file")) as file:
            assert file.names() == len(files)
        found.add(tuple(files))
    assert found == {("/a/file",), ("/a/file", "/b/link")}


def test_a_synced_link_outlives_the_removal_and_the_rename_of_the_first_name() -> None:
    for seed in range(40):
        disk = MemoryDisk({"/a/file": b"old", "/a/other": b"other"}, directories=["/b"])
        disk.link("/a/file", "/b/link")
        disk.sync_dir("/b")
        disk.rename("/a/file", "/a/aside")
        disk.rename("/a/other", "/a/file")
        files = disk.image(Random(seed)).files()
        assert files["/b/link"] == b"old"
        assert [files.get("/a/file"), files.get("/a/aside")].count(b"old") <= 1


@pytest.mark.parametrize("files", [{"/a": "text"}, {"/a": 1}, {1: b""}])
def test_files_that_are_no_bytes(files: Any) -> None:
    with pytest.raises(TypeError, match="files are bytes by path"):
        MemoryDisk(files)
