"""Real files after a power cut: a subset of what a real one may leave, and never less than was synced."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from logstore.disk.errors import DirectoryLocked
from logstore.disk.files import Disk, OsDisk, publish, read_small_file
from logstore.testing.disks import VolatileDisk
from logstore.testing.disks.volatile import SAVED_BYTES
from tests.descriptors import open_below
from tests.disk.legality import Witness

SEEDS = range(60)


def put(disk: Disk, path: str, content: bytes, *, sync: bool = False) -> None:
    file = disk.open(path, create=True, write=True)
    file.truncate(0)
    file.pwrite(content, 0)
    if sync:
        file.sync()
    file.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_images_after_repeated_power_cuts_are_legal(seed: int, tmp_path: Path) -> None:
    """Cut, go on upon what came back, cut again: each generation takes the last one's files for durable."""
    random = Random(seed)
    disk = VolatileDisk(OsDisk())
    for generation in range(3):
        witness = Witness(disk, f"{tmp_path}/{generation}", random)
        witness.run(40)
        after = disk.power_cut(random)
        assert witness.wrongs(after, garbage=False) == []
        witness.close()
        disk = after


def outcomes(tmp_path: Path, before: dict[str, bytes], script: str) -> set[tuple[tuple[str, bytes], ...]]:
    """What is left, over many seeds, of files that `before` made durable and `script` changed."""
    found = set()
    for seed in range(100):
        root = tmp_path / f"{script}-{seed}"
        root.mkdir()
        for name, content in before.items():
            (root / name).write_bytes(content)
        disk = VolatileDisk(OsDisk())
        SCRIPTS[script](disk, str(root))
        disk.power_cut(Random(seed))
        found.add(tuple(sorted((path.name, path.read_bytes()) for path in root.iterdir() if path.is_file())))
    return found


def append(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", write=True)
    file.pwrite(b"+" * 4, 4)


def overwrite(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", write=True)
    file.pwrite(b"XX", 1)


def cut(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", write=True)
    file.truncate(1)


def create(disk: Disk, root: str) -> None:
    put(disk, f"{root}/b", b"new", sync=True)


def remove(disk: Disk, root: str) -> None:
    disk.remove(f"{root}/a")


def replace(disk: Disk, root: str) -> None:
    put(disk, f"{root}/a.tmp", b"new", sync=True)
    disk.rename(f"{root}/a.tmp", f"{root}/a")


def make_directory(disk: Disk, root: str) -> None:
    disk.make_dir(f"{root}/topic-0/deep")
    put(disk, f"{root}/topic-0/deep/x", b"x", sync=True)
    disk.sync_dir(f"{root}/topic-0/deep")
    disk.rename(f"{root}/topic-0", f"{root}/topic-0-delete")


SCRIPTS = {
    script.__name__: script for script in (append, overwrite, cut, create, remove, replace, make_directory)
}

OLD = {"a": b"old."}


def test_an_unsynced_append_is_lost_kept_torn_or_zeroed(tmp_path: Path) -> None:
    found = {dict(files)["a"] for files in outcomes(tmp_path, OLD, "append")}
    assert {b"old.", b"old.++++", b"old.+", b"old.++"} <= found
    assert any(content.endswith(b"\0") for content in found)
    assert all(content.startswith(b"old.") for content in found)


def test_an_unsynced_overwrite_is_undone_or_not_or_in_part(tmp_path: Path) -> None:
    found = {dict(files)["a"] for files in outcomes(tmp_path, OLD, "overwrite")}
    assert found == {b"old.", b"oXX.", b"oXd."}


def test_an_unsynced_cut_is_undone_or_not(tmp_path: Path) -> None:
    assert {dict(files)["a"] for files in outcomes(tmp_path, OLD, "cut")} == {b"old.", b"o"}


def test_unsynced_names_may_survive_or_not(tmp_path: Path) -> None:
    """Creation, removal and replacement, each with and without."""
    a, b = ("a", b"old."), ("b", b"new")
    assert outcomes(tmp_path, OLD, "create") == {(a,), (a, b)}
    assert outcomes(tmp_path, OLD, "remove") == {(a,), ()}
    assert outcomes(tmp_path, OLD, "replace") == {
        (a,),
        (a, ("a.tmp", b"new")),
        (("a", b"new"),),
    }


def test_unsynced_directory_vanishes_with_its_synced_files(tmp_path: Path) -> None:
    outcomes(tmp_path, {}, "make_directory")
    left = {
        tuple(sorted(str(path.relative_to(root)) for path in root.rglob("*"))) for root in tmp_path.iterdir()
    }
    assert left == {
        (),
        ("topic-0",),
        ("topic-0", "topic-0/deep", "topic-0/deep/x"),
        ("topic-0-delete",),
        ("topic-0-delete", "topic-0-delete/deep", "topic-0-delete/deep/x"),
    }


def test_large_file_is_restored(tmp_path: Path) -> None:
    """Longer than the pieces in which it is copied back."""
    content = bytes(range(256)) * (SAVED_BYTES // 256) + b"the end"
    found = set()
    for seed in range(20):
        root = tmp_path / str(seed)
        root.mkdir()
        (root / "large").write_bytes(content)
        (root / "small").write_bytes(b"small")
        disk = VolatileDisk(OsDisk())
        disk.rename(f"{root}/small", f"{root}/large")
        disk.power_cut(Random(seed))
        found.add(tuple(sorted((path.name, path.read_bytes()) for path in root.iterdir())))
    assert found == {(("large", content), ("small", b"small")), (("large", b"small"),)}


def test_data_synced_after_a_removal_survives_with_the_file(tmp_path: Path) -> None:
    """The sync is of the file, not of its name."""
    found = set()
    for seed in range(20):
        path = tmp_path / str(seed)
        path.write_bytes(b"before")
        disk = VolatileDisk(OsDisk())
        file = disk.open(str(path), write=True)
        disk.remove(str(path))
        file.pwrite(b" after", 6)
        file.sync()
        disk.power_cut(Random(seed))
        found.add(path.read_bytes() if path.exists() else None)
    assert found == {None, b"before after"}


def test_no_descriptor_stays_open_for_names_that_were_synced(tmp_path: Path) -> None:
    """Removed files are held open only until their directory's next sync."""
    disk = VolatileDisk(OsDisk())
    for number in range(20):
        put(disk, f"{tmp_path}/file", b"content")
        publish(disk, str(tmp_path), "small", b"%d" % number)
        disk.remove(f"{tmp_path}/file")
    assert open_below(tmp_path) > 0
    disk.sync_dir(str(tmp_path))
    assert open_below(tmp_path) == 0
    with pytest.raises(FileNotFoundError):
        disk.remove(f"{tmp_path}/file")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{tmp_path}/absent", f"{tmp_path}/small")
    assert open_below(tmp_path) == 0


@pytest.mark.parametrize("seed", range(20))
def test_rename_between_directories_survives(seed: int, tmp_path: Path) -> None:
    disk = VolatileDisk(OsDisk())
    disk.make_dir(f"{tmp_path}/d")
    disk.make_dir(f"{tmp_path}/e")
    disk.sync_dir(str(tmp_path))
    put(disk, f"{tmp_path}/d/x", b"content", sync=True)
    disk.rename(f"{tmp_path}/d/x", f"{tmp_path}/e/x")
    disk.power_cut(Random(seed))
    assert [path.name for path in (tmp_path / "d").iterdir()] == []
    assert (tmp_path / "e" / "x").read_bytes() == b"content"


@pytest.mark.parametrize("seed", range(20))
def test_maps_of_a_file_that_is_rolled_back_stay_readable(seed: int, tmp_path: Path) -> None:
    """The dead replica's indexes are still mapped in this process: a cut under them would end it."""
    disk = VolatileDisk(OsDisk())
    file = disk.open(f"{tmp_path}/index", create=True)
    disk.sync_dir(str(tmp_path))
    file.truncate(100_000)
    view = file.map(100_000)
    file.pwrite(b"entry", 50_000)
    disk.power_cut(Random(seed))
    assert bytes(view[50_000:50_005]) == b"entry"
    assert bytes(view[99_990:]) == bytes(10)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_disk_files_and_locks_are_unusable_after_a_power_cut(tmp_path: Path) -> None:
    disk = VolatileDisk(OsDisk())
    file = disk.open(f"{tmp_path}/file", create=True)
    disk.sync_dir(str(tmp_path))
    lock = disk.lock(str(tmp_path))
    with pytest.raises(DirectoryLocked):
        OsDisk().lock(str(tmp_path))
    after = disk.power_cut(Random(1))
    for call in (
        lambda: file.pwrite(b"x", 0),
        lambda: file.pread(1, 0),
        lambda: file.sync(),
        lambda: file.size(),
        lambda: file.truncate(0),
        lambda: file.map(1),
        lambda: disk.open(f"{tmp_path}/file"),
        lambda: disk.make_dir(f"{tmp_path}/new"),
        lambda: disk.rename(f"{tmp_path}/file", f"{tmp_path}/x"),
        lambda: disk.remove(f"{tmp_path}/file"),
        lambda: disk.remove_dir(str(tmp_path)),
        lambda: disk.scan(str(tmp_path)),
        lambda: disk.sync_dir(str(tmp_path)),
        lambda: disk.lock(str(tmp_path)),
        lambda: disk.room(str(tmp_path)),
        lambda: disk.power_cut(Random(2)),
    ):
        with pytest.raises(OSError, match="power was cut"):
            call()
    again = after.lock(str(tmp_path))
    lock.release()
    file.close()
    assert read_small_file(after, f"{tmp_path}/file") == b""
    again.release()


def test_existing_files_are_durable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    disk = VolatileDisk(OsDisk())
    file = disk.open(f"{tmp_path}/file", write=True)
    file.pwrite(b"!", 7)
    file.sync(data_only=True)
    disk.power_cut(Random(3))
    assert (tmp_path / "file").read_bytes() == b"content!"


@pytest.mark.parametrize("seed", range(40))
def test_both_names_of_a_file_show_the_same_after_a_power_cut(seed: int, tmp_path: Path) -> None:
    disk = VolatileDisk(OsDisk())
    file = disk.open(f"{tmp_path}/file", create=True, write=True)
    file.pwrite(b"old", 0)
    file.sync()
    disk.make_dir(f"{tmp_path}/snapshot")
    disk.sync_dir(str(tmp_path))
    disk.link(f"{tmp_path}/file", f"{tmp_path}/snapshot/file")
    disk.sync_dir(f"{tmp_path}/snapshot")
    view = file.map(3) if seed % 2 else memoryview(b"")
    file.pwrite(b"new and longer", 0)
    after = disk.power_cut(Random(seed))
    contents = {read_small_file(after, f"{tmp_path}/{name}") for name in ("file", "snapshot/file")}
    assert len(contents) == 1
    view.release()


def test_an_unsynced_link_may_be_lost_and_the_file_stays(tmp_path: Path) -> None:
    found = set()
    for seed in range(20):
        (root := tmp_path / str(seed)).mkdir()
        (root / "file").write_bytes(b"content")
        disk = VolatileDisk(OsDisk())
        disk.link(f"{root}/file", f"{root}/link")
        disk.power_cut(Random(seed))
        found.add(tuple(sorted(path.name for path in root.iterdir())))
    assert found == {("file",), ("file", "link")}
