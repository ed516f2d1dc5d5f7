"""What was decided is published, once and whole, whenever the power fails or the process dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from logstore.disk.errors import DirectoryLocked
from logstore.disk.files import Disk, make_durable_dir, remove_if_exists
from logstore.spark.errors import CorruptLedger
from logstore.spark.ledger import (
    Intent,
    Json,
    Ledger,
    publish_once,
    read_ledger,
    staging_directory,
)
from logstore.testing.crash import CrashLab, CrashReport, CrashRun
from logstore.testing.disks import MemoryDisk
from tests.crash.script import ForgetfulDisk

LEDGER = "/sink/query"
OUT = "/out/rows"
PUBLICATIONS = 2


def read(disk: Disk, path: str) -> bytes:
    file = disk.open(path, create=True, write=True)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write(disk: Disk, path: str, data: bytes, at: int = 0) -> None:
    file = disk.open(path, create=True, write=True)
    try:
        file.pwrite(data, at)
        file.truncate(at + len(data))
        file.sync()
    finally:
        file.close()


class Sink:
    """Publishes to the end of one file: as little as a sink can be, with every step that it needs."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        make_durable_dir(disk, "/out")
        write(disk, OUT, read(disk, OUT))
        disk.sync_dir("/out")

    def stage(self, number: int, who: str) -> str:
        directory = staging_directory(LEDGER, number)
        make_durable_dir(self.disk, directory)
        path = f"{directory}/{who}"
        write(self.disk, path, "".join(f"{number} {who} {row}\n" for row in range(3)).encode())
        self.disk.sync_dir(directory)
        return path

    def plan(self, path: str) -> Json:
        return {"staged": path, "at": len(read(self.disk, OUT))}

    def carry_out(self, intent: Intent) -> Json:
        data = read(self.disk, intent.plan["staged"])
        assert data, "the staged file is gone"
        write(self.disk, OUT, data, intent.plan["at"])
        return {"rows": read(self.disk, OUT).count(b"\n")}

    def publish(self, number: int, who: str) -> bool:
        path = self.stage(number, who)
        with Ledger(self.disk, LEDGER) as ledger:
            return publish_once(ledger, number, lambda: self.plan(path), self.carry_out)


def workload(run: CrashRun[int]) -> None:
    sink = Sink(run.disk)
    for number in range(PUBLICATIONS):
        sink.publish(number, "first")
        run.promise(number + 1)


def recover(disk: Disk) -> tuple[str, ...]:
    """A restart that completes what is open, then replays all, as who does not know what was published."""
    sink = Sink(disk)
    with Ledger(disk, LEDGER) as ledger:
        if ledger.intent is not None:
            ledger.finish(sink.carry_out(ledger.intent))
    for number in range(PUBLICATIONS):
        sink.publish(number, "again")
    with Ledger(disk, LEDGER) as ledger:
        assert ledger.state == {"rows": 3 * PUBLICATIONS}
        assert ledger.intent is None
    assert not disk.scan(f"{LEDGER}/staged"), "staged files that nobody needs"
    return tuple(read(disk, OUT).decode().splitlines())


def judge(found: tuple[str, ...], done: int) -> None:
    """Each publication once and whole, in order; those that had returned as they were then."""
    for number in range(PUBLICATIONS):
        rows = found[3 * number : 3 * number + 3]
        whos = ["first"] if number < done else ["first", "again"]
        assert rows in [tuple(f"{number} {who} {row}" for row in range(3)) for who in whos], found
    assert len(found) == 3 * PUBLICATIONS, found


def explored(
    recovering: Callable[[Disk], tuple[str, ...]] = recover,
    running: Callable[[CrashRun[int]], None] = workload,
    disk: Callable[[], MemoryDisk] = MemoryDisk,
    **options: Any,
) -> CrashReport:
    return CrashLab(recovering, judge, images=8, second_images=1, **options).explore(running, 0, disk=disk)


def test_a_crash_before_any_call() -> None:
    report = explored(depth=2)
    assert report.moments > 60
    assert report.is_good, str(report)


@pytest.mark.parametrize("what", ["ledger.tmp", "/sink/query", "staged"])
def test_the_checker_notices_a_sync_that_is_missing(what: str) -> None:
    def forgets(call: str, path: str) -> bool:
        if what == "staged":
            return what in path
        return (call == "sync" and what in path) or (call == "sync_dir" and path == what)

    assert not explored(disk=lambda: ForgetfulDisk(forgets, []), stop_after=1).is_good


def _without_intent(self: Ledger, number: int, plan: Json) -> Intent:
    intent = Intent(number, plan)
    self._entry = type(self._entry)(self.done, self.state, intent)
    return intent


def _without_sync(self: Ledger) -> None:
    pass


def _own_staged_files(
    ledger: Ledger, number: int, plan: Callable[[], Json], carry_out: Callable[[Intent], Json | None]
) -> bool:
    if number > ledger.done:
        ledger.finish(carry_out(ledger.decide(number, plan())))
    return True


def _swept_before_the_marker(
    ledger: Ledger, number: int, plan: Callable[[], Json], carry_out: Callable[[Intent], Json | None]
) -> bool:
    if ledger.intent is not None:
        ledger.finish(carry_out(ledger.intent))
    if number > ledger.done:
        intent = ledger.decide(number, plan())
        state = carry_out(intent)
        remove_if_exists(ledger._disk, intent.plan["staged"])
        ledger.finish(state)
    ledger.sweep()
    return True


@pytest.mark.parametrize(
    ("target", "plant"),
    [
        ("logstore.spark.ledger.Ledger.decide", _without_intent),
        ("logstore.spark.ledger.Ledger._sync", _without_sync),
        ("tests.spark.test_ledger.publish_once", _own_staged_files),
        ("tests.spark.test_ledger.publish_once", _swept_before_the_marker),
    ],
    ids=["no intent", "acts on what is not durable", "publishes the replay's files", "swept too early"],
)
def test_the_checker_notices(monkeypatch: pytest.MonkeyPatch, target: str, plant: Any) -> None:
    if target.startswith("tests."):
        monkeypatch.setitem(globals(), "publish_once", plant)
    else:
        monkeypatch.setattr(target, plant)
    assert not explored(depth=2, stop_after=1).is_good


def test_a_number_that_is_done_is_not_published_again() -> None:
    sink = Sink(MemoryDisk())
    assert sink.publish(4, "first")
    assert not sink.publish(4, "again")
    assert not sink.publish(2, "late")
    assert sink.publish(7, "first")
    assert read(sink.disk, OUT).count(b"\n") == 6


def test_what_fails_stays_open_and_is_carried_out_by_the_next() -> None:
    """With its own staged files and its own number, though the next one has another."""
    sink = Sink(MemoryDisk())

    def fails(intent: Intent) -> Json:
        sink.carry_out(intent)
        raise RuntimeError("just after the last row")

    path = sink.stage(0, "first")
    with Ledger(sink.disk, LEDGER) as ledger, pytest.raises(RuntimeError):
        publish_once(ledger, 0, lambda: sink.plan(path), fails)
    entry = read_ledger(sink.disk, LEDGER)
    assert entry.done == -1
    assert entry.intent is not None
    assert sink.publish(1, "next")
    rows = read(sink.disk, OUT).decode().splitlines()
    assert [row[:7] for row in rows] == ["0 first"] * 3 + ["1 next "] * 3


def test_a_decision_may_be_made_anew_under_its_number() -> None:
    disk = MemoryDisk()
    with Ledger(disk, LEDGER) as ledger:
        ledger.decide(3, {"part": "all"})
        ledger.decide(3, {"part": "the rest"})
        with pytest.raises(AssertionError):
            ledger.decide(4, {})
    with Ledger(disk, LEDGER) as ledger:
        assert ledger.intent == Intent(3, {"part": "the rest"})
        ledger.finish()
        assert ledger.done == 3
        with pytest.raises(AssertionError):
            ledger.decide(3, {})


def test_two_committers() -> None:
    """One that goes on alone while its successor is there already."""
    disk = MemoryDisk()
    with Ledger(disk, LEDGER), pytest.raises(DirectoryLocked):
        Ledger(disk, LEDGER)
    Ledger(disk, LEDGER).close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:-2],
        lambda data: data.replace(b'"done":1', b'"done":9'),
        lambda data: b"x" + data[1:],
    ],
)
def test_a_ledger_that_cannot_be_read_is_no_empty_one(spoil: Callable[[bytes], bytes]) -> None:
    disk = MemoryDisk()
    with Ledger(disk, LEDGER) as ledger:
        ledger.decide(1, {})
        ledger.finish()
    data = read(disk, f"{LEDGER}/ledger")
    write(disk, f"{LEDGER}/ledger", spoil(data))
    with pytest.raises(CorruptLedger, match="earlier publications are unknown"):
        Ledger(disk, LEDGER)
    write(disk, f"{LEDGER}/ledger", data)
    with Ledger(disk, LEDGER) as ledger:
        assert ledger.done == 1


def test_a_version_of_later_days() -> None:
    from logstore.format.crc import crc32c

    text = b'{"version":2,"done":1,"state":{}}\n'
    disk = MemoryDisk({f"{LEDGER}/ledger": b"%08x %s" % (crc32c(text), text)})
    with pytest.raises(CorruptLedger, match="version 2"):
        Ledger(disk, LEDGER)


def test_staged_files_of_later_publications_stay() -> None:
    sink = Sink(MemoryDisk())
    sink.stage(0, "dead attempt")
    later = sink.stage(5, "first")
    make_durable_dir(sink.disk, f"{staging_directory(LEDGER, 0)}/nested")
    assert sink.publish(1, "first")
    assert [entry.name for entry in sink.disk.scan(f"{LEDGER}/staged")] == ["5"]
    assert read(sink.disk, later)
