"""One suite over every metadata store: what a node sees must not depend on which one is underneath."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint.disk import OsDisk
from checkpoint.disks.memory import MemoryDisk
from replication.effects import WatchFired
from replication.metastore.embedded import EmbeddedStore
from replication.metastore.memory import MemoryStore, MetadataStore
from replication.metastore.operations import (
    Check,
    Children,
    Create,
    Delete,
    Get,
    Multi,
    Set,
    StoreError,
    WatchKind,
)


@pytest.fixture(params=["memory", "embedded, operating system", "embedded, memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    on_disk = "operating" in request.param
    directory = str(tmp_path / "meta") if on_disk else "/meta"
    disk = OsDisk() if on_disk else MemoryDisk()
    # A limit that small makes the journal rotate under the tests.
    with EmbeddedStore(directory, disk=disk, journal_limit=300) as embedded:
        yield embedded


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


def test_session_lives_by_heartbeats_and_dies_of_silence(store: MetadataStore) -> None:
    quiet, lively = store.open_session(1000, 0), store.open_session(1000, 0)
    store.call(quiet, Create("/ids/1", ephemeral=True, make_parents=True), 0)
    store.call(lively, Children("/ids", watch=True), 0)
    assert store.deadline_ms == 1000
    assert store.tick(999) == ([], [])
    assert store.heartbeat(lively, 999)
    assert store.tick(1000) == ([quiet], [WatchFired(lively, "/ids", WatchKind.CHILDREN)])
    assert not store.heartbeat(quiet, 1000)
    assert store.call(quiet, Get("/ids"), 1000)[0].error is StoreError.SESSION_EXPIRED
    assert store.call(lively, Children("/ids"), 1500)[0].children == ()
    assert store.deadline_ms == 2500, "an operation is a sign of life"
    assert store.open_session(1000, 1500) > lively


def test_sessions_that_die_together_hear_nothing_of_each_other(store: MetadataStore) -> None:
    """A watch for a session that is over has nobody to go to."""
    one, two = store.open_session(1000, 0), store.open_session(1000, 0)
    store.call(one, Create("/e", ephemeral=True), 0)
    store.call(two, Get("/e", watch=True), 0)
    assert store.tick(1000) == ([one, two], [])
    assert store.close_session(one) == []


def test_many_writes_stay_readable(store: MetadataStore) -> None:
    """Enough to rotate the embedded store's journal several times under one session."""
    session = store.open_session(1000, 0)
    for number in range(40):
        assert store.call(session, Create(f"/n{number}", b"x" * number), 0)[0].error is None
        if number % 2:
            assert store.call(session, Delete(f"/n{number - 1}", 0), 0)[0].error is None
    assert len(store.call(session, Children("/"), 0)[0].children) == 20
