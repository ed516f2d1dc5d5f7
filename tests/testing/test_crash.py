"""The crash lab finds what it must, calls good what is good, and tells a reader which image it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logstore.disk.files import Disk, publish
from logstore.testing.crash import CrashLab, CrashReport, CrashRun, ImageId
from logstore.testing.disks import MemoryDisk, Profile

PAGE = Path(__file__).parent.parent.parent / "docs" / "crash-lab.md"
EXAMPLE, *_, REPLAY = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
NUMBERED = re.findall(r"# \((\d)\)", EXAMPLE)


def example(without: str = "") -> dict[str, object]:
    """What the page's program leaves in its namespace, a marked line of it taken away."""
    lines = EXAMPLE.splitlines()
    marked = [number for number, line in enumerate(lines) if without and f"# ({without})" in line]
    for number in marked:
        indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
        lines[number] = f"{indent}pass"
    assert len(marked) == bool(without)
    names: dict[str, object] = {}
    exec(compile("\n".join(lines), str(PAGE), "exec", dont_inherit=True), names)
    return names


def report_of(names: dict[str, object]) -> CrashReport:
    report = names["report"]
    assert isinstance(report, CrashReport)
    return report


# --- the page's example -----------------------------------------------------------------------------


def test_the_example_of_the_page_is_sound(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(example())
    assert report.is_good, str(report)
    assert (report.images, report.second) > (100, 100)
    assert report.simplest is None
    assert "0 violations" in capsys.readouterr().out


@pytest.mark.parametrize("line", NUMBERED)
def test_each_marked_line_of_the_example_is_needed(line: str) -> None:
    """The program of the page with one mistake: the lab names an image that shows it."""
    assert len(NUMBERED) == 5
    report = report_of(example(without=line))
    assert not report.is_good


def test_the_page_shows_what_the_lab_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The text of the page is the text of the program, and its id is the id of that image."""
    names = example(without="5")
    printed = capsys.readouterr().out.splitlines()
    told = re.search(r"^Without the line marked \(5\).*?^```text\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    assert told is not None
    shown = told[1].splitlines()
    assert shown[-1].strip() == "…"
    assert printed[: len(shown) - 1] == shown[:-1]
    exec(compile(REPLAY, str(PAGE), "exec", dont_inherit=True), names)
    assert capsys.readouterr().out.startswith("() ")


# --- small programs -----------------------------------------------------------------------------------


def read(disk: Disk, path: str = "/d/f") -> bytes | None:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    return file.pread(file.size(), 0)


Contents = tuple[bytes | None, ...]


def one_of(found: bytes | None, promise: Contents) -> None:
    assert found in promise, f"{found!r} is none of {promise}"


def reader(**options: Any) -> CrashLab[bytes | None, Contents]:
    """A lab for one small file, whose reader may show what is not synced yet."""
    return CrashLab(read, one_of, kills=False, **options)


def anything(found: object, promise: None) -> None:
    """A judge who is content."""


def replacing(replace: Callable[[Disk, bytes], None]) -> Callable[[CrashRun[Contents]], None]:
    """A small file is replaced twice; under way either content will do."""

    def workload(run: CrashRun[Contents]) -> None:
        before: bytes | None = None
        run.disk.make_dir("/d")
        run.disk.sync_dir("/")
        for content in (b"the old one", b"the new, longer one"):
            run.note(f"replace by {content!r}")
            run.promise((before, content))
            replace(run.disk, content)
            run.promise((content,))
            before = content

    return workload


def well(disk: Disk, content: bytes) -> None:
    publish(disk, "/d", "f", content)


def in_place(disk: Disk, content: bytes) -> None:
    file = disk.open("/d/f", create=True, write=True)
    file.pwrite(content, 0)
    file.sync()
    disk.sync_dir("/d")


def without_sync(disk: Disk, content: bytes) -> None:
    disk.open("/d/f.tmp", create=True, write=True).pwrite(content, 0)
    disk.rename("/d/f.tmp", "/d/f")
    disk.sync_dir("/d")


def without_sync_dir(disk: Disk, content: bytes) -> None:
    file = disk.open("/d/f.tmp", create=True, write=True)
    file.pwrite(content, 0)
    file.sync()
    disk.rename("/d/f.tmp", "/d/f")


@pytest.mark.parametrize("profile", Profile)
@pytest.mark.parametrize("replace", [well, in_place, without_sync, without_sync_dir])
def test_replacing_a_file(replace: Callable[[Disk, bytes], None], profile: Profile) -> None:
    """The right order passes, each wrong one is found, on both kinds of file system."""
    lab = reader(profiles=[profile])
    report = lab.explore(replacing(replace), (None,), name="replace")
    assert report.is_good == (replace is well), str(report)


def test_a_violation_says_where_it_was() -> None:
    report = reader().explore(replacing(without_sync), (None,), name="replace")
    worst = report.simplest
    assert worst is not None
    assert worst.lost == 1, "one write that was not synced is all it takes"
    assert worst.left == ("/d/f: none of 1 operations",)
    assert worst.notes == ("replace by b'the old one'",)
    assert "rename /d/f.tmp to /d/f" in worst.operations
    assert worst.id in str(report)


def test_an_image_is_found_again_by_its_id() -> None:
    """Every violation's image still breaks the promise that comes with it."""
    lab = reader()
    workload = replacing(in_place)
    report = lab.explore(workload, (None,))
    assert report.violations
    fresh = reader(images=1, seed=9)  # neither the bounds nor the seed are part of an id
    for violation in report.violations:
        disk, promise = fresh.replay(workload, (None,), violation.id)
        with pytest.raises(AssertionError, match="is none of"):
            one_of(read(disk), promise)


@pytest.mark.parametrize("text", ["", "12", "j0-1", "3x0-", "3j0-1+", "3j0", "3k1"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the id"):
        reader().replay(replacing(well), (None,), text)


def test_an_id_of_another_workload_is_refused() -> None:
    with pytest.raises(ValueError, match="moments, not number 999"):
        reader().replay(replacing(well), (None,), "999j0-")


@pytest.mark.parametrize("text", ["47p1f-0.2.1", "0j0-", "3j0-1", "12k"])
def test_ids_are_written_as_they_are_read(text: str) -> None:
    assert str(ImageId.parse(text)) == text


# --- recovery -------------------------------------------------------------------------------------------


def write_pair(run: CrashRun[None]) -> None:
    """Two files that a recovery has to bring to the same number."""
    for name in ("/a", "/b"):
        file = run.disk.open(name, create=True, write=True)
        file.pwrite(b"0", 0)
        file.sync()
    run.disk.sync_dir("/")
    for name in ("/a", "/b"):
        file = run.disk.open(name, write=True)
        file.pwrite(b"1", 0)
        file.sync()


def settle_unsafely(disk: Disk) -> bytes:
    """Makes equal what differs, but not durably, and by way of a content that means nothing."""
    first, second = read(disk, "/a"), read(disk, "/b")
    if first is None or second is None or not first or not second:
        return b"0"
    if b"-" in (first, second):
        raise ValueError("a half-done recovery that the next one cannot finish")
    if first != second:
        file = disk.open("/b", write=True)
        file.pwrite(b"-", 0)
        file.sync()
        file.pwrite(first, 0)
        file.sync()
    return first


def found_or_not(found: bytes, promise: None) -> None:
    assert found in (b"0", b"1")


def test_a_crash_in_the_recovery_needs_depth() -> None:
    """A recovery that is wrong only if it is cut short passes at depth 1, and no deeper."""
    assert CrashLab(settle_unsafely, found_or_not, kills=False).explore(write_pair, None).is_good
    lab = CrashLab(settle_unsafely, found_or_not, depth=2, kills=False)
    report = lab.explore(write_pair, None)
    worst = report.simplest
    assert worst is not None
    assert report.second > 10
    assert "+" in worst.id
    disk, _ = lab.replay(write_pair, None, worst.id)
    with pytest.raises(ValueError, match="half-done"):
        settle_unsafely(disk)


def test_what_was_found_must_be_found_again() -> None:
    """Who serves what is not synced shows what the next power cut takes away."""

    def count(disk: Disk) -> int:
        """Says how often it was started, without a sync."""
        times = len(read(disk, "/starts") or b"")
        disk.open("/starts", create=True, write=True).pwrite(b"x", times)
        return times

    report = CrashLab(count, anything).explore(write_pair, None)
    assert report.simplest is not None
    assert "after the next crash" in report.simplest.error


def test_a_killed_process_leaves_what_was_not_synced() -> None:
    """The next start sees it; if it shows it unsynced, a power cut takes back what was shown."""

    def write(run: CrashRun[None]) -> None:
        file = run.disk.open("/a", create=True, write=True)
        run.disk.sync_dir("/")
        file.pwrite(b"x", 0)

    def serve(disk: Disk) -> bytes:
        return read(disk, "/a") or b""

    def sync_and_serve(disk: Disk) -> bytes:
        disk.open("/a", create=True, write=True).sync()
        disk.sync_dir("/")
        return serve(disk)

    report = CrashLab(serve, anything).explore(write, None)
    worst = report.simplest
    assert worst is not None
    assert worst.id.startswith("3k"), "the write is the last call but one"
    assert worst.error == "found b'x', but b'' after the next crash"
    assert CrashLab(sync_and_serve, anything).explore(write, None).is_good


def test_going_on_is_asked_of_every_end() -> None:
    def refuse(disk: MemoryDisk) -> None:
        assert not disk.scan("/"), "something is left"

    report = CrashLab(lambda disk: None, anything, kills=False, goes_on=refuse).explore(write_pair, None)
    assert report.simplest is not None
    assert "continuing after it: something is left" in report.simplest.error


# --- counting and bounds -----------------------------------------------------------------------------------


def test_equal_disks_are_judged_once_for_each_promise() -> None:
    judged: list[tuple[bytes | None, object]] = []
    recovered: list[int] = []

    def recover(disk: Disk) -> bytes | None:
        recovered.append(1)
        return read(disk)

    def judge(found: bytes | None, promise: Contents) -> None:
        judged.append((found, promise))

    lab = CrashLab(recover, judge, kills=False)
    report = lab.explore(replacing(well), (None,))
    assert report.images > report.distinct >= report.states
    assert len(judged) == report.distinct
    assert len(recovered) == report.states
    again = lab.explore(replacing(well), (None,))
    assert (again.images, again.distinct, again.states) == (report.images, report.distinct, 0)


def test_promises_need_not_be_hashable() -> None:
    def workload(run: CrashRun[list[bytes]]) -> None:
        promise = [b""]
        run.promise(promise)
        file = run.disk.open("/a", create=True, write=True)
        run.promise([b"", b"x"])
        file.pwrite(b"x", 0)

    def judge(found: bytes | None, promise: list[bytes]) -> None:
        assert (found or b"") in promise

    assert CrashLab(lambda disk: read(disk, "/a"), judge).explore(workload, []).images > 5


def test_no_more_images_than_asked_for() -> None:
    """And with any bound the two ends, all and nothing, are among them."""
    lab = reader(images=4)
    report = lab.explore(replacing(in_place), (None,))
    assert report.images <= 8 * report.moments
    assert not report.is_good


def test_a_workload_may_leave_moments_out() -> None:
    """Others show them; ids count all calls, so that they stay what they are."""

    def watched(is_watched: bool) -> CrashReport:
        def workload(run: CrashRun[Contents]) -> None:
            run.is_watched = is_watched
            run.disk.make_dir("/d")
            run.disk.sync_dir("/")
            run.is_watched = True
            run.promise((b"x",))
            run.disk.open("/d/f", create=True, write=True).pwrite(b"x", 0)

        return reader().explore(workload, (None,))

    all_of_it, rest = watched(True), watched(False)
    assert (all_of_it.moments, rest.moments) == (5, 3)
    assert all_of_it.violations == rest.violations != []


@pytest.mark.parametrize("verdict", [True, False])
def test_a_verdict_that_is_returned_is_refused(verdict: bool) -> None:
    """`return found == promise` instead of `assert`: such a judge called everything good."""

    def workload(run: CrashRun[bytes]) -> None:
        publish(run.disk, "/", "state", b"one")

    with pytest.raises(TypeError, match=f"judge returned {verdict}.*as assert does"):
        CrashLab(lambda disk: b"", lambda found, promise: verdict).explore(workload, b"")  # type: ignore[arg-type]
    lab: CrashLab[bytes, bytes] = CrashLab(
        lambda disk: b"",
        lambda found, promise: None,
        goes_on=lambda disk: verdict,  # type: ignore[arg-type]
    )
    with pytest.raises(TypeError, match=f"goes_on returned {verdict}"):
        lab.explore(workload, b"")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"depth": 0}, "depth is 0"),
        ({"depth": "2"}, "depth is an int"),
        ({"images": -1}, "images is -1"),
        ({"stop_after": 0}, "stop_after is 0"),
        ({"goes_on": True}, "goes_on is a function, not bool"),
    ],
)
def test_a_lab_that_cannot_be_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        CrashLab(lambda disk: None, lambda found, promise: None, **settings)


def test_it_stops_after_enough() -> None:
    report = reader(stop_after=1).explore(replacing(in_place), (None,))
    assert len(report.violations) == 1


def test_a_workload_may_lose_power_itself() -> None:
    """It goes on with the disk that came back; later moments are those of that disk."""

    def workload(run: CrashRun[Contents]) -> None:
        run.disk.make_dir("/d")
        run.disk.sync_dir("/")
        disk = run.power_cut(Random(1))
        assert disk is run.disk
        assert [entry.name for entry in disk.scan("/")] == ["d"]
        run.promise((None, b"x"))
        well(disk, b"x")
        run.promise((b"x",))

    report = reader().explore(workload, (None,))
    assert report.is_good, str(report)
    assert report.moments == 9


def test_what_the_workload_raises_comes_out() -> None:
    def workload(run: CrashRun[None]) -> None:
        raise RuntimeError("its own fault")

    with pytest.raises(RuntimeError, match="its own fault"):
        CrashLab(read, anything).explore(workload, None)


def test_the_same_exploration_twice_is_the_same() -> None:
    first = reader(images=10).explore(replacing(in_place), (None,))
    second = reader(images=10).explore(replacing(in_place), (None,))
    assert str(first) == str(second)
    assert first.violations == second.violations
