"""What our operations are in ZooKeeper's words, and what its answers are in ours. Pure.

    Get               getData; with a watch also exists, which leaves one on a node's absence
    Children          getChildren2
    Create            create2; in a multi if parents may have to be made
    Set, Delete       setData, delete
    Check, Multi      multi

A multi that failed answers for each of its writes: `rolled back` before the one at fault, its error
there, `inconsistency` behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

try:
    from kazoo.exceptions import (
        BadVersionError,
        NoChildrenForEphemeralsError,
        NodeExistsError,
        NoNodeError,
        NotEmptyError,
        RolledBackError,
        SessionExpiredError,
    )
    from kazoo.protocol.serialization import CheckVersion, Create2, SetData, Transaction
    from kazoo.protocol.serialization import Create as CreateRequest
    from kazoo.protocol.serialization import Delete as DeleteRequest
    from kazoo.security import OPEN_ACL_UNSAFE
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "the ZooKeeper store needs a library that is not installed: pip install 'pylogstore[zookeeper]'"
    ) from missing

from logstore.errors import InvalidConfig
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
from logstore.replication.metastore.tree import ROOT, parent_of

_EPHEMERAL, _SEQUENTIAL = 1, 2

_ERRORS: dict[type[Exception], StoreError] = {
    NoNodeError: StoreError.NO_NODE,
    NodeExistsError: StoreError.NODE_EXISTS,
    BadVersionError: StoreError.BAD_VERSION,
    NotEmptyError: StoreError.NOT_EMPTY,
    NoChildrenForEphemeralsError: StoreError.EPHEMERAL_PARENT,
    SessionExpiredError: StoreError.SESSION_EXPIRED,
}


# --- where the store is -----------------------------------------------------------------------


class Address(NamedTuple):
    """`zookeeper://host:port,host:port/chroot`: the servers, and the node that is our root.

    `chroot` is the empty text if our root is the servers'.
    """

    hosts: str
    chroot: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read the URL; the port may be left out (2181). Raises `InvalidConfig`."""
        # By hand: `urlsplit` takes one host, and newer Pythons refuse "one:1,[::1]:2" as an invalid IPv6 URL.
        scheme, _, rest = url.partition("://")
        hosts, slash, path = rest.partition("/")
        servers = hosts.split(",")
        if scheme.lower() != "zookeeper" or not all(servers) or "?" in rest or "#" in rest:
            raise InvalidConfig(f"{url!r} is not of the form zookeeper://host:port,host:port/chroot")
        for server in servers:
            try:
                valid = bool(urlsplit(f"//{server}").hostname) and urlsplit(f"//{server}").port != 0
            except ValueError:
                valid = False
            if not valid:
                raise InvalidConfig(f"{url!r} names a server {server!r} that is not host:port")
        chroot = (slash + path).rstrip("/")
        if any(name in ("", ".", "..") for name in chroot.split("/")[1:]):
            raise InvalidConfig(f"{url!r} has no valid path {chroot!r}")
        return cls(hosts, chroot)

    def full(self, path: str) -> str:
        """Our path as the server knows it."""
        return (self.chroot + path if path != ROOT else self.chroot) or ROOT

    def ours(self, path: str) -> str:
        """The server's path as we know it."""
        return path[len(self.chroot) :] or ROOT


# --- requests ---------------------------------------------------------------------------------


def request_of(write: Write, address: Address) -> Any:
    """One write by itself."""
    path = address.full(write.path)
    match write:
        case Create(_, data, ephemeral, sequential):
            flags = _EPHEMERAL * ephemeral | _SEQUENTIAL * sequential
            return Create2(path, bytes(data), OPEN_ACL_UNSAFE, flags)
        case Set(_, data, version):
            return SetData(path, bytes(data), version)
        case Delete(_, version):
            return DeleteRequest(path, version)
        case Check(_, version):
            return CheckVersion(path, version)


def multi_request_of(writes: Sequence[Write], address: Address) -> Any:
    """All of these writes in one transaction."""
    requests = [request_of(write, address) for write in writes]
    # The server takes a `create2` in a multi for a `create`, and answers as to one: no stat.
    return Transaction([CreateRequest(*each) if isinstance(each, Create2) else each for each in requests])


# --- parents ----------------------------------------------------------------------------------


def parents_to_check(writes: Sequence[Write]) -> list[str]:
    """The nodes above those that want their parents made; highest first, each once."""
    found: dict[str, None] = {}
    for write in writes:
        if isinstance(write, Create) and write.make_parents:
            above = []
            parent = parent_of(write.path)
            while parent != ROOT:
                above.append(parent)
                parent = parent_of(parent)
            found |= dict.fromkeys(reversed(above))
    return list(found)


def with_parents(writes: Sequence[Write], existing: Collection[str]) -> tuple[list[Write], list[int]]:
    """`writes` with the creation of missing parents before each that wants it, and where each one stands.

    `existing` are those of `parents_to_check` that exist; what earlier writes make or delete counts.
    """
    present = set(existing)
    all_writes: list[Write] = []
    positions: list[int] = []
    for write in writes:
        for parent in parents_to_check([write]):
            if parent not in present:
                all_writes.append(Create(parent))
                present.add(parent)
        positions.append(len(all_writes))
        all_writes.append(write)
        if isinstance(write, Create) and not write.sequential:
            present.add(write.path)
        elif isinstance(write, Delete):
            present.discard(write.path)
    return all_writes, positions


# --- answers ----------------------------------------------------------------------------------


def stat_of(stat: Any) -> Stat:
    return Stat(stat.version, stat.czxid, stat.ephemeralOwner)


def error_of(exception: Exception) -> StoreError:
    """Whatever does not say that nothing happened counts as a lost reply: it may have been applied."""
    return next(
        (error for kind, error in _ERRORS.items() if isinstance(exception, kind)), StoreError.CONNECTION_LOSS
    )


def outcome_of(write: Write, result: Any, address: Address) -> Outcome:
    """How one write ended by itself."""
    if isinstance(result, Exception):
        return Outcome(error_of(result))
    match write:
        case Create():
            path, stat = result
            return Outcome(stat=stat_of(stat), path=address.ours(path))
        case Set():
            return Outcome(stat=stat_of(result))
    return Outcome()


def _outcome_in_multi(write: Write, result: Any, txid: int, session_id: int, address: Address) -> Outcome:
    match write:
        case Create():
            stat = Stat(0, txid, session_id if write.ephemeral else 0)
            return Outcome(stat=stat, path=address.ours(result))
        case Set():
            return Outcome(stat=stat_of(result))
    return Outcome()


def failure_in(results: Sequence[Any]) -> int:
    """The position of the write that made a multi fail; -1 if it succeeded."""
    return next(
        (
            index
            for index, result in enumerate(results)
            if isinstance(result, Exception) and not isinstance(result, RolledBackError)
        ),
        -1,
    )


def multi_outcome(
    writes: Sequence[Write],
    positions: Sequence[int],
    results: Sequence[Any],
    *,
    txid: int,
    session_id: int,
    address: Address,
) -> Outcome | None:
    """How a multi of `with_parents` ended; None if only the parents were not as they had been, so: again.

    `txid` is the transaction's, as the reply's header has it.
    """
    failed = failure_in(results)
    if failed < 0:
        return Outcome(
            results=tuple(
                _outcome_in_multi(write, results[at], txid, session_id, address)
                for write, at in zip(writes, positions, strict=True)
            )
        )
    error = error_of(results[failed])
    # The first of the caller's writes that was not carried out: the one that failed, or whose parent did.
    index = next(index for index, at in enumerate(positions) if at >= failed)
    write = writes[index]
    if positions[index] != failed:
        was_other = error in (StoreError.NODE_EXISTS, StoreError.NO_NODE)
    else:
        was_other = error is StoreError.NO_NODE and isinstance(write, Create) and write.make_parents
    return None if was_other else Outcome(error, failed_index=index)
