"""The tree's rules, one by one: the controller relies on them when two controllers race."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.replication.effects import WatchFired
from logstore.replication.metastore.operations import (
    ANY_VERSION,
    Check,
    Children,
    Create,
    Delete,
    Get,
    Multi,
    Operation,
    Outcome,
    Set,
    StoreError,
    WatchKind,
)
from logstore.replication.metastore.tree import Node, Tree


def tree_with(*paths: str) -> tuple[Tree, int]:
    tree = Tree()
    session = tree.open_session(1000)
    for path in paths:
        assert tree.apply(session, Create(path, b"0"))[0].error is None
    return tree, session


def contents(tree: Tree) -> dict[str, tuple[bytes, int, int, int, int, tuple[str, ...]]]:
    return {
        path: (
            node.data,
            node.version,
            node.created_txid,
            node.ephemeral_owner,
            node.next_sequence,
            tuple(sorted(node.children)),
        )
        for path, node in tree.nodes()
    }


def test_versions_count_writes_and_guard_them() -> None:
    """The partition epoch is this version: a write on top of a stale one must not happen."""
    tree, session = tree_with("/a")
    first = tree.apply(session, Set("/a", b"1", 0))[0]
    assert first.stat is not None
    assert first.stat.version == 1
    assert tree.apply(session, Set("/a", b"2", 0))[0].error is StoreError.BAD_VERSION
    assert tree.apply(session, Get("/a"))[0].data == b"1"
    assert tree.apply(session, Set("/a", b"3", ANY_VERSION))[0].error is None
    assert tree.apply(session, Set("/b", b"", ANY_VERSION))[0].error is StoreError.NO_NODE
    assert tree.apply(session, Check("/a", 1))[0].error is StoreError.BAD_VERSION
    assert tree.apply(session, Check("/a", 2))[0].error is None


def test_recreated_node_starts_at_version_zero_with_a_later_txid() -> None:
    """The txid is the broker epoch: a restarted broker must look newer than its former self."""
    tree, session = tree_with("/a")
    before = tree.apply(session, Get("/a"))[0].stat
    tree.apply(session, Set("/a", b"1", 0))
    tree.apply(session, Delete("/a", 1))
    after = tree.apply(session, Create("/a"))[0].stat
    assert before is not None
    assert after is not None
    assert after.version == 0
    assert after.created_txid > before.created_txid


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Create("/a"), StoreError.NODE_EXISTS),
        (Create("/x/y"), StoreError.NO_NODE),
        (Delete("/a"), StoreError.NOT_EMPTY),
        (Delete("/x"), StoreError.NO_NODE),
        (Delete("/a/b", 7), StoreError.BAD_VERSION),
        (Create("/e/child"), StoreError.EPHEMERAL_PARENT),
        (Children("/x"), StoreError.NO_NODE),
    ],
)
def test_refusals(operation: Operation, error: StoreError) -> None:
    tree, session = tree_with("/a", "/a/b")
    tree.apply(session, Create("/e", ephemeral=True))
    before, txid = contents(tree), tree.last_txid
    assert tree.apply(session, operation) == (Outcome(error), [])
    assert (contents(tree), tree.last_txid) == (before, txid)


def test_sequential_numbers_never_repeat() -> None:
    """A deleted notification's number must not come back as another notification."""
    tree, session = tree_with("/q")
    first = tree.apply(session, Create("/q/n_", sequential=True))[0].path
    assert first == "/q/n_0000000000"
    tree.apply(session, Delete(first))
    assert tree.apply(session, Create("/q/n_", sequential=True))[0].path == "/q/n_0000000001"
    deep = Create("/new/q/n_", sequential=True, make_parents=True)
    assert tree.apply(session, deep)[0].path == "/new/q/n_0000000000"
    assert tree.apply(session, deep)[0].path == "/new/q/n_0000000001"


def test_multi_is_all_or_nothing() -> None:
    """The claim of `/controller` with its epoch: half of it would be a controller without a fence."""
    tree, session = tree_with("/epoch", "/q")
    tree.apply(session, Get("/c", watch=True))
    before = contents(tree)
    outcome, fired = tree.apply(
        session,
        Multi(
            (
                Create("/c", ephemeral=True),
                Create("/d/e/f", make_parents=True),
                Create("/q/n_", sequential=True),
                Delete("/d/e/f"),
                Set("/epoch", b"9", 5),
            )
        ),
    )
    assert (outcome.error, outcome.failed_index, fired) == (StoreError.BAD_VERSION, 4, [])
    assert contents(tree) == before
    outcome, fired = tree.apply(session, Multi((Create("/c"), Set("/epoch", b"1", 0))))
    assert outcome.error is None
    assert [result.stat.version for result in outcome.results if result.stat] == [0, 1]
    assert fired == [WatchFired(session, "/c", WatchKind.CREATED)]


def test_watches_go_off_once_and_for_every_reader() -> None:
    tree, session = tree_with("/a")
    other = tree.open_session(1000)
    for reader in (session, other, session):
        tree.apply(reader, Get("/a", watch=True))
    _, fired = tree.apply(other, Set("/a", b"1", 0))
    assert fired == [
        WatchFired(session, "/a", WatchKind.CHANGED),
        WatchFired(other, "/a", WatchKind.CHANGED),
    ]
    assert tree.apply(other, Set("/a", b"2", 1))[1] == []


def test_watch_on_an_absent_node_tells_of_its_creation() -> None:
    """A watch on an absent node: the loser of the race for the controller waits on it."""
    tree, session = tree_with()
    outcome, _ = tree.apply(session, Get("/c", watch=True))
    assert outcome.error is StoreError.NO_NODE
    _, fired = tree.apply(session, Create("/c"))
    assert fired == [WatchFired(session, "/c", WatchKind.CREATED)]


def test_child_watch_sees_names_come_and_go_but_not_their_data() -> None:
    tree, session = tree_with("/ids", "/ids/1")
    tree.apply(session, Children("/ids", watch=True))
    assert tree.apply(session, Set("/ids/1", b"1", 0))[1] == []
    assert tree.apply(session, Create("/ids/2"))[1] == [WatchFired(session, "/ids", WatchKind.CHILDREN)]
    tree.apply(session, Children("/ids", watch=True))
    assert tree.apply(session, Delete("/ids/2"))[1] == [WatchFired(session, "/ids", WatchKind.CHILDREN)]


def test_deletion_is_told_once_to_a_session_with_both_watches() -> None:
    tree, session = tree_with("/ids")
    tree.apply(session, Get("/ids", watch=True))
    tree.apply(session, Children("/ids", watch=True))
    assert tree.apply(session, Delete("/ids"))[1] == [WatchFired(session, "/ids", WatchKind.DELETED)]


def test_session_end_takes_its_nodes_and_tells_the_others() -> None:
    tree, session = tree_with("/ids")
    dying = tree.open_session(1000)
    tree.apply(dying, Create("/ids/1", ephemeral=True))
    tree.apply(dying, Create("/ids/0", ephemeral=True))
    tree.apply(session, Get("/ids/1", watch=True))
    tree.apply(dying, Get("/ids/1", watch=True))
    tree.apply(session, Children("/ids", watch=True))
    assert tree.close_session(dying) == [
        WatchFired(session, "/ids", WatchKind.CHILDREN),
        WatchFired(session, "/ids/1", WatchKind.DELETED),
    ]
    assert tree.apply(session, Children("/ids"))[0].children == ()
    assert tree.apply(dying, Get("/ids"))[0].error is StoreError.SESSION_EXPIRED
    assert tree.close_session(dying) == []
    assert tree.open_session(1000) > dying


_PATHS = st.sampled_from(["/a", "/a/b", "/a/b/c", "/d"])
_VERSIONS = st.sampled_from([ANY_VERSION, 0, 1, 2])
_WRITES = st.one_of(
    st.builds(Create, _PATHS, st.binary(max_size=2), st.booleans(), st.booleans(), st.booleans()),
    st.builds(Set, _PATHS, st.binary(max_size=2), _VERSIONS),
    st.builds(Delete, _PATHS, _VERSIONS),
    st.builds(Check, _PATHS, _VERSIONS),
)
_OPERATIONS = st.one_of(
    _WRITES,
    st.builds(Multi, st.lists(_WRITES, min_size=1, max_size=4).map(tuple)),
    st.builds(Get, _PATHS, st.booleans()),
    st.builds(Children, _PATHS, st.booleans()),
)


def test_the_end_of_a_session_looks_at_its_own_nodes() -> None:
    """Not at the 60,000 of 20,000 partitions."""

    class Nodes(dict[str, Node]):
        def items(self) -> Any:
            raise AssertionError("all nodes are looked at")

    tree = Tree()
    session = tree.open_session(1000)
    tree.apply(session, Create("/stays"))
    for _ in range(2):
        tree.apply(session, Create("/mine", ephemeral=True))
        tree.apply(session, Delete("/mine"))
    tree.apply(session, Create("/mine", ephemeral=True))
    tree._nodes = Nodes(tree._nodes)
    tree.close_session(session)
    assert (tree.node("/mine"), tree.node("/stays") is None) == (None, False)


@settings(derandomize=True, max_examples=300)
@given(operations=st.lists(_OPERATIONS, max_size=12), more=st.lists(_OPERATIONS, max_size=6))
def test_any_history_keeps_the_tree_sound(operations: list[Operation], more: list[Operation]) -> None:
    """A refusal changes nothing; children match paths; a dump taken anywhere goes on the same way."""
    tree = Tree()
    session = tree.open_session(1000)
    for operation in operations:
        before, txid = contents(tree), tree.last_txid
        outcome, fired = tree.apply(session, operation)
        if outcome.error is not None:
            assert (contents(tree), tree.last_txid, fired) == (before, txid, [])
        now = contents(tree)
        assert tree.last_txid - txid == (
            isinstance(operation, Create | Set | Delete)
            or (isinstance(operation, Multi) and any(not isinstance(w, Check) for w in operation.writes))
        ) * (outcome.error is None)
        for path, (*_, children) in now.items():
            prefix = "/" if path == "/" else path + "/"
            assert children == tuple(
                sorted(
                    p[len(prefix) :]
                    for p in now
                    if p != "/" and p.startswith(prefix) and "/" not in p[len(prefix) :]
                )
            )
    copy = Tree.restore(
        tree.last_txid,
        tree.sessions,
        {
            path: Node(node.data, node.version, node.created_txid, node.ephemeral_owner, node.next_sequence)
            for path, node in tree.nodes()
        },
    )
    for operation in more:
        assert copy.apply(session, operation)[0] == tree.apply(session, operation)[0]
        assert contents(copy) == contents(tree)
