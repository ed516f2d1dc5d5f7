"""Requests to ZooKeeper and the outcomes of its answers, without a server."""

from __future__ import annotations

import importlib
import sys

import pytest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)

from logstore.errors import InvalidConfig
from logstore.replication.metastore import zookeeper_requests
from logstore.replication.metastore.operations import (
    Check,
    Create,
    Delete,
    Outcome,
    Set,
    Stat,
    StoreError,
    Write,
)
from logstore.replication.metastore.zookeeper_requests import (
    Address,
    error_of,
    multi_outcome,
    parents_to_check,
    with_parents,
)


@pytest.mark.parametrize(
    ("url", "hosts", "chroot"),
    [
        ("zookeeper://one", "one", ""),
        ("zookeeper://one:2182/", "one:2182", ""),
        ("zookeeper://one:1,two:2,[::1]:3/kafka/a", "one:1,two:2,[::1]:3", "/kafka/a"),
    ],
)
def test_an_address(url: str, hosts: str, chroot: str) -> None:
    assert Address.parse(url) == Address(hosts, chroot)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "one:2181",
        "http://one:2181",
        "zookeeper://",
        "zookeeper://one:2181,,two",
        "zookeeper://one:port",
        "zookeeper://one:0",
        "zookeeper://one:70000",
        "zookeeper://one/a//b",
        "zookeeper://one/../b",
        "zookeeper://one/a?b=c",
    ],
)
def test_no_address(url: str) -> None:
    with pytest.raises(InvalidConfig):
        Address.parse(url)


def test_paths_below_the_chroot() -> None:
    plain, below = Address.parse("zookeeper://one"), Address.parse("zookeeper://one/kafka")
    for path in ("/", "/controller", "/kafka"):
        for address in (plain, below):
            assert address.ours(address.full(path)) == path
    assert (plain.full("/"), below.full("/"), below.full("/a")) == ("/", "/kafka", "/kafka/a")


def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "kazoo", None)
        without.setitem(sys.modules, "kazoo.exceptions", None)
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'pylogstore\[zookeeper\]'"):
            importlib.reload(zookeeper_requests)


CHECK = Check("/epoch", 1)
STATE = Create("/topics/t/0/state", make_parents=True)
NEXT_STATE = Create("/topics/t/1/state", make_parents=True)


@pytest.mark.parametrize(
    ("writes", "existing", "made"),
    [
        ([CHECK, STATE], ["/topics"], ["/topics/t", "/topics/t/0"]),
        ([CHECK, STATE], ["/topics", "/topics/t", "/topics/t/0"], []),
        ([Create("/topics/t/0/state")], [], []),
        ([Create("/topics"), STATE], [], ["/topics/t", "/topics/t/0"]),
        ([STATE, NEXT_STATE], ["/topics", "/topics/t"], ["/topics/t/0", "/topics/t/1"]),
        ([Delete("/topics/t/0"), STATE], ["/topics", "/topics/t", "/topics/t/0"], ["/topics/t/0"]),
    ],
)  # fmt: skip
def test_missing_parents_go_before_what_needs_them(
    writes: list[Write], existing: list[str], made: list[str]
) -> None:
    """What earlier writes of the same transaction make or delete counts; the caller's keep their order."""
    all_writes, positions = with_parents(writes, existing)
    assert [all_writes[at] for at in positions] == writes
    assert [write.path for at, write in enumerate(all_writes) if at not in positions] == made


def test_parents_are_looked_for_from_the_top_once() -> None:
    writes = [STATE, NEXT_STATE, Create("/a/b")]
    assert parents_to_check(writes) == ["/topics", "/topics/t", "/topics/t/0", "/topics/t/1"]
    assert parents_to_check([Create("/top", make_parents=True)]) == []


def ended(writes: list[Write], existing: list[str], results: list[object]) -> Outcome | None:
    _, positions = with_parents(writes, existing)
    address = Address("one", "/c")
    return multi_outcome(writes, positions, results, (70, 5), address)


def test_a_multi_that_succeeded_answers_for_the_callers_writes_only() -> None:
    outcome = ended([CHECK, STATE], ["/topics", "/topics/t"], [True, "/c/topics/t/0", "/c/topics/t/0/state"])
    assert outcome == Outcome(results=(Outcome(), Outcome(stat=Stat(0, 70), path="/topics/t/0/state")))


FOUR: list[Write] = [CHECK, STATE, Set("/x", b"", 0)]
ROLLED_BACK, UNTRIED = RolledBackError(), RuntimeInconsistency()


@pytest.mark.parametrize(
    ("results", "error", "failed_index"),
    [
        ([BadVersionError(), UNTRIED, UNTRIED, UNTRIED], StoreError.BAD_VERSION, 0),
        ([ROLLED_BACK, NoChildrenForEphemeralsError(), UNTRIED, UNTRIED], StoreError.EPHEMERAL_PARENT, 1),
        ([ROLLED_BACK, ROLLED_BACK, NodeExistsError(), UNTRIED], StoreError.NODE_EXISTS, 1),
        ([ROLLED_BACK, ROLLED_BACK, ROLLED_BACK, NoNodeError()], StoreError.NO_NODE, 2),
    ],
)
def test_a_multi_that_failed_names_the_callers_write(
    results: list[object], error: StoreError, failed_index: int
) -> None:
    """check · (parent made here) · state · set: the parent has no number of its own."""
    assert ended(FOUR, ["/topics", "/topics/t"], results) == Outcome(error, failed_index=failed_index)


@pytest.mark.parametrize(
    "results",
    [
        [ROLLED_BACK, NodeExistsError(), UNTRIED, UNTRIED],
        [ROLLED_BACK, NoNodeError(), UNTRIED, UNTRIED],
        [ROLLED_BACK, ROLLED_BACK, NoNodeError(), UNTRIED],
    ],
)
def test_parents_that_came_or_went_are_looked_for_again(results: list[object]) -> None:
    assert ended(FOUR, ["/topics", "/topics/t"], results) is None


def test_what_is_not_known_to_have_failed_may_have_been_applied() -> None:
    assert error_of(ConnectionLoss()) is StoreError.CONNECTION_LOSS
    assert error_of(NoAuthError()) is StoreError.CONNECTION_LOSS
    assert error_of(BadVersionError()) is StoreError.BAD_VERSION
