"""The power fails before every call of the embedded metadata store: what was answered is there, nothing else.

Its own recovery ends every session and writes a new snapshot, so it is a writer too: crashes in it are
explored by the same scripts at depth 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from logstore.disk.files import Disk
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.replication.metastore.operations import Create, Delete, Multi, Operation, Set
from logstore.testing.crash import CrashLab, CrashReport, CrashRun
from logstore.testing.disks import MemoryDisk
from tests.crash.script import ForgetfulDisk

DIRECTORY = "/meta"
Nodes = tuple[tuple[str, bytes, int], ...]


@dataclass(frozen=True)
class Either:
    """The nodes that must be found: those before or those after what is under way."""

    before: Nodes = (("/", b"", 0),)
    after: Nodes = (("/", b"", 0),)


class StoreScript:
    """Runs operations on a store; each is promised once it was answered."""

    def __init__(self, lab: CrashRun[Either], journal_limit: int) -> None:
        self.lab = lab
        self._limit = journal_limit
        self._random = Random(0)
        self._start()

    def _start(self) -> None:
        self.store = EmbeddedStore(DIRECTORY, disk=self.lab.disk, journal_limit=self._limit)
        self.session = self.store.open_session(10_000, 0)

    def _expect(self, *operations: Operation) -> None:
        before = persistent(self.store)
        model = EmbeddedStore("/m", disk=MemoryDisk())
        session = model.open_session(10_000, 0)
        for path, data, version in before:
            if path != "/":
                model.call(session, Create(path, b"" if version else data), 0)
            for number in range(version):
                model.call(session, Set(path, data, number), 0)
        for operation in operations:
            model.call(session, operation, 0)
        self.lab.promise(Either(before, persistent(model)))

    def do(self, *operations: Operation) -> None:
        """Carry them out together, with one sync for all of them."""
        self._expect(*operations)
        self.store.call_many([(self.session, operation) for operation in operations], 0)
        self._settle()

    def _settle(self) -> None:
        now = persistent(self.store)
        self.lab.promise(Either(now, now))

    def new_session(self) -> None:
        """The session ends, its ephemeral nodes go, and another one begins: two more transactions."""
        self.store.close_session(self.session)
        self.session = self.store.open_session(10_000, 0)
        self._settle()

    def restart(self) -> None:
        self.store.close()
        self._start()
        self._settle()

    def crash(self) -> None:
        self.lab.power_cut(self._random)
        self._start()
        self._settle()


def persistent(store: EmbeddedStore) -> Nodes:
    """Every node that outlives its session: path, data and version."""
    return tuple(
        (path, node.data, node.version) for path, node in store.tree.nodes() if not node.ephemeral_owner
    )


def recover(disk: Disk) -> Nodes:
    store = EmbeddedStore(DIRECTORY, disk=disk)
    nodes = persistent(store)
    assert not store.tree.sessions
    assert len(nodes) == len(list(store.tree.nodes())), "an ephemeral node outlived its session"
    return nodes


def judge(found: Nodes, promise: Either) -> None:
    assert found in (promise.before, promise.after), f"found {found}, promised one of {promise}"


def goes_on(disk: MemoryDisk) -> None:
    store = EmbeddedStore(DIRECTORY, disk=disk)
    session = store.open_session(10_000, 0)
    store.call(session, Create("/on", b"on"), 0)
    assert ("/on", b"on", 0) in recover(disk.durable_image())


def store_appends(run: StoreScript) -> None:
    run.do(Create("/a", b"1"))
    run.do(Set("/a", b"2", 0))
    run.do(Create("/a/b", b"x" * 600))
    run.do(Delete("/a/b", 0))
    run.do(Create("/e", b"", ephemeral=True))


def store_group(run: StoreScript) -> None:
    """Several answers behind one sync, a multi that must be whole."""
    run.do(Create("/a", b"1"))
    run.do(Multi((Create("/b", b""), Create("/c", b"2"), Delete("/a", 0))))
    run.do(Multi((Set("/b", b"3", 0), Set("/c", b"4", 0))))


def store_snapshots(run: StoreScript) -> None:
    """A journal so short that every second answer replaces it by a snapshot."""
    run.do(Create("/n", b""))
    for number in range(7):
        run.do(Set("/n", b"%d" % number, number))


def store_sessions(run: StoreScript) -> None:
    """Ephemeral nodes come and go beside those that stay, across snapshots too."""
    run.do(Create("/ids/1", b"", ephemeral=True, make_parents=True), Create("/a", b"1"))
    run.new_session()
    run.do(Multi((Create("/ids/1", b"x" * 100, ephemeral=True), Set("/a", b"2", 0))))
    run.new_session()
    run.do(Create("/b/c/d", b"3", make_parents=True))
    run.restart()


def store_restarts(run: StoreScript) -> None:
    run.do(Create("/a", b"1"))
    run.restart()
    run.do(Set("/a", b"2", 0))
    run.restart()
    run.restart()


def store_crashes(run: StoreScript) -> None:
    run.do(Create("/a", b"1"))
    run.crash()
    run.do(Create("/b", b"2"))
    run.do(Set("/a", b"3", 0))
    run.crash()
    run.crash()
    run.do(Set("/b", b"4", 0))


SCRIPTS: list[Callable[[StoreScript], None]] = [
    store_appends,
    store_group,
    store_snapshots,
    store_sessions,
    store_restarts,
    store_crashes,
]


def explored(script: Callable[[StoreScript], None], **options: Any) -> CrashReport:
    limit = 150 if script in (store_snapshots, store_sessions) else 4 << 20

    def workload(run: CrashRun[Either]) -> None:
        script(StoreScript(run, limit))

    disk = options.pop("disk", MemoryDisk)
    lab = CrashLab(recover, judge, goes_on=goes_on, **options)
    return lab.explore(workload, Either(), name=script.__name__, disk=disk)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_every_point(script: Callable[[StoreScript], None]) -> None:
    report = explored(script, images=6, second_images=2, depth=2)
    assert report.second > 100
    assert report.is_good, str(report)


@pytest.mark.parametrize("what", ["journal-", "snapshot", "sync_dir"])
def test_the_checker_notices_a_sync_that_is_missing(what: str) -> None:
    def forgets(call: str, path: str) -> bool:
        return call == "sync_dir" if what == "sync_dir" else call == "sync" and what in path

    def disk() -> MemoryDisk:
        return ForgetfulDisk(forgets, [])

    reports = [explored(script, images=16, kills=False, stop_after=1, disk=disk) for script in SCRIPTS]
    assert not all(report.is_good for report in reports)
