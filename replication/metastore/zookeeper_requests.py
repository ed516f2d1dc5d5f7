"""Translates operations into ZooKeeper's requests, and its answers into outcomes. Pure.

    Get               getData; with a watch also exists, which leaves one on a node's absence
    Children          getChildren2
    Create            create2; in a multi if parents may be missing
    Set, Delete       setData, delete
    Check, Multi      multi

A failed multi has an answer for each of its writes: `rolled back` before the failed one, its error there,
`inconsistency` after it.

New nodes have the access lists of Kafka's brokers:

    zookeeper.set.acl=false    all for everyone
    zookeeper.set.acl=true     all for the creator, who logged in by certificate or SASL; everyone reads,
                               but not what begins with one of `SENSITIVE_PATHS`
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple
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
    from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "the ZooKeeper store needs a library that is not installed: pip install 'pylogstore[zookeeper]'"
    ) from missing

from logstore.errors import InvalidConfig
from logstore.replication.metastore.layout import LOGIN_SECRET_PATH, USERS_PATH
from logstore.replication.metastore.operations import (
    Check,
    Create,
    Delete,
    Multi,
    Operation,
    Outcome,
    Set,
    Stat,
    StoreError,
    Write,
)
from logstore.replication.metastore.tree import ROOT, ancestors_of

SENSITIVE_PATHS: Final = (USERS_PATH, "/config/brokers", "/delegation_token/tokens", LOGIN_SECRET_PATH)
_OF_OLD_CONSUMERS: Final = "/consumers"
"""They write there, whoever they are."""
_EPHEMERAL, _SEQUENTIAL = 1, 2

_ERRORS: dict[type[Exception], StoreError] = {
    NoNodeError: StoreError.NO_NODE,
    NodeExistsError: StoreError.NODE_EXISTS,
    BadVersionError: StoreError.BAD_VERSION,
    NotEmptyError: StoreError.NOT_EMPTY,
    NoChildrenForEphemeralsError: StoreError.EPHEMERAL_PARENT,
    SessionExpiredError: StoreError.SESSION_EXPIRED,
}


# --- addresses --------------------------------------------------------------------------------


class Address(NamedTuple):
    """`zookeeper://host:port,host:port/chroot`: the servers, and our root node (empty: the servers' root).

    With `has_acls`, new nodes belong to their creator.
    """

    hosts: str
    chroot: str
    has_acls: bool = False

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse the URL; the default port is 2181. Raises `InvalidConfig`."""
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
        """Return the server's path, with the chroot, for a path."""
        return (self.chroot + path if path != ROOT else self.chroot) or ROOT

    def ours(self, path: str) -> str:
        """Return the path without the chroot for a server's path."""
        return path[len(self.chroot) :] or ROOT


# --- requests ---------------------------------------------------------------------------------


def request_of(write: Write, address: Address) -> Any:
    """Return the request of a single write."""
    path = address.full(write.path)
    match write:
        case Create(_, data, ephemeral, sequential):
            flags = _EPHEMERAL * ephemeral | _SEQUENTIAL * sequential
            acl = acl_of(write.path, has_acls=address.has_acls)
            return Create2(path, bytes(data), acl, flags)
        case Set(_, data, version):
            return SetData(path, bytes(data), version)
        case Delete(_, version):
            return DeleteRequest(path, version)
        case Check(_, version):
            return CheckVersion(path, version)


def acl_of(path: str, *, has_acls: bool) -> list[Any]:
    """Return the access list of a new node. `path` has no chroot."""
    if not has_acls or path == _OF_OLD_CONSUMERS:
        return list(OPEN_ACL_UNSAFE)
    if path.startswith(SENSITIVE_PATHS):
        return list(CREATOR_ALL_ACL)
    return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


def multi_request_of(writes: Sequence[Write], address: Address) -> Any:
    """Return the request of all these writes in one transaction."""
    requests = [request_of(write, address) for write in writes]
    # The server treats a `create2` in a multi as a `create`: its answer has no stat.
    return Transaction([CreateRequest(*each) if isinstance(each, Create2) else each for each in requests])


# --- parents ----------------------------------------------------------------------------------


def parents_to_check(writes: Sequence[Write]) -> list[str]:
    """Return the parents of the writes with `make_parents`; highest first, each once."""
    found: dict[str, None] = {}
    for write in writes:
        if isinstance(write, Create) and write.make_parents:
            found |= dict.fromkeys(reversed(ancestors_of(write.path)))
    return list(found)


def with_parents(writes: Sequence[Write], existing: Collection[str]) -> tuple[list[Write], list[int]]:
    """Return `writes` with the creations of missing parents, and the position of each write in them.

    `existing` are those of `parents_to_check` that exist; earlier writes that create or delete nodes count.
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
    """Return the store error; an unknown one is CONNECTION_LOSS: the write may have been applied."""
    return next(
        (error for kind, error in _ERRORS.items() if isinstance(exception, kind)), StoreError.CONNECTION_LOSS
    )


def outcome_of(write: Write, result: Any, address: Address) -> Outcome:
    """Return the outcome of a single write."""
    match write:
        case Create():
            path, stat = result
            return Outcome(stat=stat_of(stat), path=address.ours(path))
        case Set():
            return Outcome(stat=stat_of(result))
    return Outcome()


def _outcome_in_multi(write: Write, result: Any, transaction: tuple[int, int], address: Address) -> Outcome:
    if not isinstance(write, Create):
        return outcome_of(write, result, address)
    txid, session_id = transaction
    return Outcome(stat=Stat(0, txid, session_id if write.ephemeral else 0), path=address.ours(result))


def named(operation: Operation) -> str:
    """Return an operation for the log, without its data: it may be a credential."""
    if isinstance(operation, Multi):
        return ", ".join(map(named, operation.writes))
    return f"{type(operation).__name__} {operation.path}"


def failure_in(results: Sequence[Any]) -> int:
    """Return the position of the write that failed a multi; -1 if it succeeded."""
    failures = (isinstance(each, Exception) and not isinstance(each, RolledBackError) for each in results)
    return next((index for index, failed in enumerate(failures) if failed), -1)


def multi_outcome(
    writes: Sequence[Write],
    positions: Sequence[int],
    results: Sequence[Any],
    transaction: tuple[int, int],
    address: Address,
) -> Outcome | None:
    """Return the outcome of a multi of `with_parents`; None if its parents changed and it must be repeated.

    `transaction` is its id, from the reply's header, and the session's.
    """
    failed = failure_in(results)
    if failed < 0:
        return Outcome(
            results=tuple(
                _outcome_in_multi(write, results[at], transaction, address)
                for write, at in zip(writes, positions, strict=True)
            )
        )
    error = error_of(results[failed])
    # The first of the caller's writes that was not applied: it failed, or its parent did.
    index = next(index for index, at in enumerate(positions) if at >= failed)
    write = writes[index]
    if positions[index] != failed:
        was_other = error in (StoreError.NODE_EXISTS, StoreError.NO_NODE)
    else:
        was_other = error is StoreError.NO_NODE and isinstance(write, Create) and write.make_parents
    return None if was_other else Outcome(error, failed_index=index)
