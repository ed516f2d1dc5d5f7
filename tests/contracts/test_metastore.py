"""One suite over every metadata store: what a node sees must not depend on which one is underneath."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Protocol

import pytest

from logstore.disk.files import OsDisk
from logstore.disk.memory import MemoryDisk
from logstore.replication.effects import WatchFired
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.replication.metastore.memory import MemoryStore, MetadataStore
from logstore.replication.metastore.operations import (
    Check,
    Children,
    Create,
    Delete,
    Get,
    Multi,
    Operation,
    Outcome,
    Set,
    Stat,
    StoreError,
    WatchKind,
)
from logstore.replication.metastore.zookeeper import BlockingZooKeeperStore
from tests.zookeeper import Proxy, eventually

TIMEOUT_MS = 1000


class Subject(Protocol):
    """A store, and how its sessions run out."""

    store: MetadataStore

    def run_out(self, *quiet: int) -> tuple[list[int], list[WatchFired]]:
        """These sessions fall silent for longer than their timeout, all others do not; what `tick` says."""

    def check_sign_of_life(self, session_id: int) -> None:
        """An operation prolongs its session."""


class OnAClock:
    """A store that is told the time. Sessions were opened at 0."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    def run_out(self, *quiet: int) -> tuple[list[int], list[WatchFired]]:
        assert self.store.deadline_ms == TIMEOUT_MS
        assert self.store.tick(TIMEOUT_MS - 1) == ([], [])
        for lively in range(1, 10):
            if lively not in quiet:
                self.store.heartbeat(lively, TIMEOUT_MS - 1)
        return self.store.tick(TIMEOUT_MS)

    def check_sign_of_life(self, session_id: int) -> None:
        self.store.call(session_id, Get("/"), 1500)
        assert self.store.deadline_ms == 1500 + TIMEOUT_MS, "an operation is a sign of life"


class OnAServer:
    """A store whose server has a clock of its own: it is made to give a session up."""

    def __init__(self, store: MetadataStore, proxy: Proxy) -> None:
        self.store, self._proxy = store, proxy

    def run_out(self, *quiet: int) -> tuple[list[int], list[WatchFired]]:
        assert self.store.tick(0) == ([], [])
        for session_id in quiet:
            self._proxy.end_session(session_id)
        for session_id in quiet:
            eventually(lambda session=session_id: not self.store.heartbeat(session, 0), "the end")  # type: ignore[misc]
        expired, fired = self.store.tick(0)
        return sorted(expired), fired

    def check_sign_of_life(self, session_id: int) -> None:
        assert self.store.deadline_ms is None, "the server keeps the time"


@pytest.fixture(params=["memory", "embedded, operating system", "embedded, memory", "served", "zookeeper"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "memory":
        yield OnAClock(MemoryStore())
    elif request.param in ("zookeeper", "served"):
        name = "zookeeper_port" if request.param == "zookeeper" else "served_store_port"
        port: int = request.getfixturevalue(name)
        number = next(request.getfixturevalue("chroots"))
        url = f"zookeeper://127.0.0.1:{port}/test-{number}"
        with Proxy(port) as proxy, BlockingZooKeeperStore(url.replace(str(port), str(proxy.port))) as store:
            yield OnAServer(store, proxy)
    else:
        on_disk = "operating" in request.param
        directory = str(tmp_path / "meta") if on_disk else "/meta"
        disk = OsDisk() if on_disk else MemoryDisk()
        # A limit that small makes the journal rotate under the tests.
        with EmbeddedStore(directory, disk=disk, journal_limit=300) as embedded:
            yield OnAClock(embedded)


@pytest.fixture
def store(subject: Subject) -> MetadataStore:
    return subject.store


def test_conditional_write(store: MetadataStore) -> None:
    session = store.open_session(1000, 0)
    assert store.call(session, Create("/a", b"0"), 0)[0].error is None
    assert store.call(session, Set("/a", b"1", 0), 0)[0].error is None
    assert store.call(session, Set("/a", b"2", 0), 0)[0].error is StoreError.BAD_VERSION
    outcome, _ = store.call(session, Get("/a"), 0)
    assert outcome.stat is not None
    assert (outcome.data, outcome.stat.version) == (b"1", 1)


def test_claim_race_has_one_winner(store: MetadataStore) -> None:
    """Two controllers: one Multi succeeds, the loser's watch tells it when to try again."""
    one, two = store.open_session(1000, 0), store.open_session(1000, 0)
    store.call(one, Create("/controller_epoch", b"0"), 0)
    claim = Multi((Create("/controller", ephemeral=True), Set("/controller_epoch", b"1", 0)))
    assert store.call(two, Get("/controller", watch=True), 0)[0].error is StoreError.NO_NODE
    outcome, fired = store.call(one, claim, 0)
    assert outcome.error is None
    assert fired == [WatchFired(two, "/controller", WatchKind.CREATED)]
    outcome, _ = store.call(two, claim, 0)
    assert (outcome.error, outcome.failed_index) == (StoreError.NODE_EXISTS, 0)
    store.call(two, Get("/controller", watch=True), 0)
    assert store.close_session(one) == [WatchFired(two, "/controller", WatchKind.DELETED)]
    assert store.call(two, Check("/controller_epoch", 1), 0)[0].error is None


def test_session_expires_without_heartbeats(subject: Subject, store: MetadataStore) -> None:
    quiet, lively = store.open_session(TIMEOUT_MS, 0), store.open_session(TIMEOUT_MS, 0)
    store.call(quiet, Create("/ids/1", ephemeral=True, make_parents=True), 0)
    store.call(lively, Children("/ids", watch=True), 0)
    assert subject.run_out(quiet) == ([quiet], [WatchFired(lively, "/ids", WatchKind.CHILDREN)])
    assert not store.heartbeat(quiet, TIMEOUT_MS)
    assert store.heartbeat(lively, TIMEOUT_MS)
    assert store.call(quiet, Get("/ids"), TIMEOUT_MS)[0].error is StoreError.SESSION_EXPIRED
    assert store.call(lively, Children("/ids"), TIMEOUT_MS)[0].children == ()
    subject.check_sign_of_life(lively)
    assert store.open_session(TIMEOUT_MS, 1500) > lively


def test_sessions_that_expire_together_get_no_events(subject: Subject) -> None:
    """A watch for a session that is over has nobody to go to."""
    store = subject.store
    one, two = store.open_session(TIMEOUT_MS, 0), store.open_session(TIMEOUT_MS, 0)
    store.call(one, Create("/e", ephemeral=True), 0)
    store.call(two, Get("/e", watch=True), 0)
    assert subject.run_out(one, two) == ([one, two], [])
    assert store.close_session(one) == []


def test_many_writes_stay_readable(store: MetadataStore) -> None:
    """Enough to rotate the embedded store's journal several times under one session."""
    session = store.open_session(1000, 0)
    for number in range(40):
        assert store.call(session, Create(f"/n{number}", b"x" * number), 0)[0].error is None
        if number % 2:
            assert store.call(session, Delete(f"/n{number - 1}", 0), 0)[0].error is None
    assert len(store.call(session, Children("/"), 0)[0].children) == 20


def test_absent_node_accepts_a_data_watch_only(store: MetadataStore) -> None:
    one, two = store.open_session(TIMEOUT_MS, 0), store.open_session(TIMEOUT_MS, 0)
    assert store.call(one, Get("/a", watch=True), 0) == (Outcome(StoreError.NO_NODE), [])
    assert store.call(one, Children("/a", watch=True), 0) == (Outcome(StoreError.NO_NODE), [])
    assert store.call(two, Create("/a"), 0)[1] == [WatchFired(one, "/a", WatchKind.CREATED)]
    assert store.call(two, Set("/a", b"1", 0), 0)[1] == [], "once"
    assert store.call(two, Create("/a/b"), 0)[1] == []


def test_deletion_is_notified_once(store: MetadataStore) -> None:
    """Whoever watches both a node and its children hears one word; and it comes to the deleter, too."""
    one = store.open_session(TIMEOUT_MS, 0)
    store.call(one, Create("/a"), 0)
    store.call(one, Get("/a", watch=True), 0)
    store.call(one, Children("/a", watch=True), 0)
    store.call(one, Children("/", watch=True), 0)
    outcome, fired = store.call(one, Delete("/a", 0), 0)
    assert outcome.error is None
    assert sorted(fired, key=lambda watch: watch.path) == [
        WatchFired(one, "/", WatchKind.CHILDREN),
        WatchFired(one, "/a", WatchKind.DELETED),
    ]


def test_fenced_write_creates_no_parents(store: MetadataStore) -> None:
    """Parents are made in the same transaction as what is below them, or not at all."""
    session = store.open_session(TIMEOUT_MS, 0)
    store.call(session, Create("/epoch", b"1"), 0)
    state = Create("/topics/t/0/state", b"s", make_parents=True)
    outcome, _ = store.call(session, Multi((Check("/epoch", 7), state)), 0)
    assert (outcome.error, outcome.failed_index) == (StoreError.BAD_VERSION, 0)
    assert store.call(session, Get("/topics"), 0)[0].error is StoreError.NO_NODE
    outcome, _ = store.call(session, Multi((Check("/epoch", 0), state)), 0)
    assert outcome.error is None
    assert outcome.results[1] == Outcome(
        stat=store.call(session, Get("/topics/t/0/state"), 0)[0].stat, path="/topics/t/0/state"
    )
    outcome, _ = store.call(session, Multi((Check("/epoch", 0), Create("/x"), state)), 0)
    assert (outcome.error, outcome.failed_index) == (StoreError.NODE_EXISTS, 2)
    assert store.call(session, Get("/x"), 0)[0].error is StoreError.NO_NODE


def test_sequential_nodes_are_numbered_in_order(store: MetadataStore) -> None:
    session = store.open_session(TIMEOUT_MS, 0)
    change = Create("/changes/change_", b"x", sequential=True, make_parents=True)
    paths = [store.call(session, change, 0)[0].path for _ in range(3)]
    assert paths == [f"/changes/change_{number:010d}" for number in range(3)]
    store.call(session, Delete(paths[2]), 0)
    assert store.call(session, change, 0)[0].path > paths[2], "a number is not given twice"


def test_an_ephemeral_node_names_its_owner_and_has_no_children(store: MetadataStore) -> None:
    session = store.open_session(TIMEOUT_MS, 0)
    made = store.call(session, Create("/ids/1", b"me", ephemeral=True, make_parents=True), 0)[0]
    read = store.call(session, Get("/ids/1"), 0)[0]
    assert read.stat is not None
    assert made.stat == read.stat, "the broker epoch is the creation's transaction id"
    assert read.stat.ephemeral_owner == session
    for below in (Create("/ids/1/x"), Create("/ids/1/x/y", make_parents=True)):
        assert store.call(session, below, 0)[0].error is StoreError.EPHEMERAL_PARENT
    again = store.call(session, Create("/ids/2", ephemeral=True), 0)[0]
    assert again.stat is not None
    assert again.stat.created_txid > read.stat.created_txid


@pytest.mark.parametrize("seed", range(3))
def test_same_operations_same_answers(store: MetadataStore, seed: int) -> None:
    """The tree in memory is what all others are compared with; transaction ids differ, nothing else may."""
    model = MemoryStore()
    random = Random(seed)
    theirs = [store.open_session(60_000, 0) for _ in range(2)]
    ours = [model.open_session(60_000, 0) for _ in range(2)]
    owners = dict(zip(theirs, ours, strict=True)) | {0: 0}
    themselves = {session: session for session in owners.values()}

    def plain(outcome: Outcome, names: Mapping[int, int]) -> Outcome:
        stat = outcome.stat and Stat(outcome.stat.version, 0, names[outcome.stat.ephemeral_owner])
        results = tuple(plain(each, names) for each in outcome.results)
        return replace(outcome, stat=stat, results=results)

    for step in range(100):
        who = random.randrange(2)
        operation = _any_operation(random)
        found, fired = store.call(theirs[who], operation, 0)
        wanted, expected = model.call(ours[who], operation, 0)
        assert plain(found, owners) == plain(wanted, themselves), f"{step}: {operation}"
        told = Counter(watch._replace(session_id=owners[watch.session_id]) for watch in fired)
        assert told == Counter(expected), f"{step}: {operation}"


_PATHS = ["/a", "/a/b", "/a/b/c", "/d", "/d/e", "/d/b/c"]


def _any_write(random: Random) -> Create | Set | Delete | Check:
    path, version = random.choice(_PATHS), random.choice([-1, 0, 1])
    data = b"%d" % random.randrange(100)
    writes: list[Create | Set | Delete | Check] = [
        Create(path, data, ephemeral=random.random() < 0.2, make_parents=random.random() < 0.5),
        Set(path, data, version),
        Delete(path, version),
        Check(path, version),
    ]
    return random.choice(writes)


def _any_operation(random: Random) -> Operation:
    path = random.choice(_PATHS)
    return random.choice(
        [
            Get(path, watch=random.random() < 0.7),
            Children(path, watch=random.random() < 0.7),
            _any_write(random),
            Multi(tuple(_any_write(random) for _ in range(random.randrange(1, 4)))),
        ]
    )
