"""The shadow disk behaves like the disk below it, which never changes."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.cli.shadow import ShadowDisk
from logstore.disk.files import Disk
from logstore.testing.disks import MemoryDisk

NAMES = st.sampled_from(["a", "b", "c"])
SIZES = st.integers(0, 40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES),
        st.tuples(st.just("create exclusively"), NAMES),
        st.tuples(st.just("write"), NAMES, SIZES, st.binary(max_size=20)),
        st.tuples(st.just("truncate"), NAMES, SIZES),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("read"), NAMES, SIZES, SIZES),
        st.tuples(st.just("map"), NAMES),
        st.tuples(st.just("scan")),
    ),
    max_size=20,
)


def play(disk: Disk, step: tuple[object, ...]) -> object:
    """Carry out one step; its outcome is what a caller sees, an error's kind included."""

    def on_file(name: str, action: Callable[..., object], *, write: bool) -> object:
        file = disk.open(f"d/{name}", write=write)
        try:
            return action(file)
        finally:
            file.close()

    try:
        match step:
            case ("create", str(name)):
                disk.open(f"d/{name}", create=True).close()
            case ("create exclusively", str(name)):
                disk.open(f"d/{name}", create=True, exclusive=True, write=True).close()
            case ("write", str(name), int(at), bytes(data)):
                return on_file(name, lambda file: file.pwrite(data, at), write=True)
            case ("truncate", str(name), int(size)):
                return on_file(name, lambda file: file.truncate(size), write=True)
            case ("rename", str(source), str(target)):
                disk.rename(f"d/{source}", f"d/{target}")
            case ("remove", str(name)):
                disk.remove(f"d/{name}")
            case ("read", str(name), int(size), int(at)):
                return on_file(name, lambda file: (file.pread(size, at), file.size()), write=False)
            case ("map", str(name)):
                return on_file(name, lambda file: bytes(file.map(file.size())), write=False)
            case ("scan",):
                return [(entry.name, entry.is_directory, entry.size) for entry in disk.scan("d")]
    except OSError as error:
        return type(error)
    return None


def filled() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_dir("d")
    for name, content in {"a": b"alpha", "b": bytes(range(30))}.items():
        file = disk.open(f"d/{name}", create=True, write=True)
        file.pwrite(content, 0)
        file.close()
    return disk


def contents(disk: Disk) -> list[object]:
    return [play(disk, ("scan",)), *(play(disk, ("read", name, 100, 0)) for name in "abc")]


@given(steps=STEPS)
@settings(derandomize=True, max_examples=300)
def test_it_behaves_like_the_disk_below_and_leaves_it_alone(steps: list[tuple[object, ...]]) -> None:
    """A plan is worth what this equality is worth."""
    below, model = filled(), filled()
    untouched = contents(below)
    shadow = ShadowDisk(below)
    for step in steps:
        assert play(shadow, step) == play(model, step), step
    assert contents(shadow) == contents(model)
    assert contents(below) == untouched
