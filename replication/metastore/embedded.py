"""The metadata store on disk, inside this process: the tree, a journal and a snapshot.

    <directory>/.lock                          one owner
    <directory>/snapshot                       replaced whole (temp file, sync, rename, sync)
    <directory>/journal-<first transaction>    appended, one frame a sync (`journal.py` draws it)
    <directory>/journal-….torn                 the torn tail that an opening cut off, kept as evidence

An answer is given only after the frame that holds its operation is synced. Operations that arrive together
share a frame, hence a sync (`call_many`). When the journal exceeds its limit, the store publishes a snapshot,
begins a new journal and then removes the old one. A crash in between leaves a snapshot and one or two
journals; reading skips the transactions that the snapshot holds already.

Opening replays, and ends every session unless they are to go on: their clients were cut off. Ephemeral nodes
go with new transaction ids, so nothing restarts at an older one. It publishes a fresh snapshot before the
first answer. A torn last frame was never answered, so it is cut. A bad frame before a sound one, a gap, or a
bad snapshot is damage: `CorruptMetadata`, and nothing is changed.

A failed write or sync is final, and so is an unexpected exception: the store answers `MetadataStoreFailed`
until it is opened again, which reads what the disk really kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from logstore.disk.closing import Closing
from logstore.disk.files import Disk, File, make_durable_dir, publish, read_small_file, remove_if_exists
from logstore.replication.effects import WatchFired
from logstore.replication.metastore import journal
from logstore.replication.metastore.errors import CorruptMetadata, MetadataStoreFailed
from logstore.replication.metastore.memory import MemoryStore
from logstore.replication.metastore.operations import Create, Delete, Multi, Operation, Outcome, Set
from logstore.replication.metastore.tree import Tree

DEFAULT_JOURNAL_LIMIT = 4 << 20


class EmbeddedStore(Closing):
    """A `MetadataStore` whose answers survive power loss. One owner, one thread at a time."""

    def __init__(
        self,
        directory: str,
        *,
        disk: Disk,
        journal_limit: int = DEFAULT_JOURNAL_LIMIT,
        sessions_from_ms: int | None = None,
    ) -> None:
        """Open or create the store; `journal_limit` (bytes) is when a snapshot replaces the journal.

        With `sessions_from_ms` sessions go on, each with its whole timeout from that time. Their owners must
        set their watches again, and see every node as changed.

        Raises `DirectoryLocked`, `CorruptMetadata`, or the disk's `OSError`.
        """
        self._directory, self._disk, self._journal_limit = directory, disk, journal_limit
        self._snapshot_bytes = 0
        self._failure: Exception | None = None
        self._closed = False
        self._unsynced: list[journal.Transaction] = []
        make_durable_dir(disk, directory)
        self._lock = disk.lock(directory)
        try:
            tree, torn = _recover(disk, directory)
            self._store = MemoryStore(tree)
            for name, tail in torn.items():
                publish(disk, directory, name + journal.TORN_SUFFIX, tail)
            for session_id in list(tree.sessions):
                if sessions_from_ms is None:
                    tree.close_session(session_id)
                else:
                    self._store.heartbeat(session_id, sessions_from_ms)
            if sessions_from_ms is not None:
                tree.mark_all_changed()
            self._journal = self._new_journal()
            self._journal_size = 0
        except BaseException:
            self._lock.release()
            raise

    # --- MetadataStore ------------------------------------------------------------------------

    def open_session(self, timeout_ms: int, now_ms: int) -> int:
        self._check_usable()
        session_id = self._store.open_session(timeout_ms, now_ms)
        self._unsynced.append(journal.SessionOpened(timeout_ms))
        self._commit()
        return session_id

    def heartbeat(self, session_id: int, now_ms: int) -> bool:
        return self._store.heartbeat(session_id, now_ms)

    def close_session(self, session_id: int) -> list[WatchFired]:
        return self._close_sessions([session_id])

    def tick(self, now_ms: int) -> tuple[list[int], list[WatchFired]]:
        expired = self._store.overdue(now_ms)
        return expired, self._store.to_the_living(self._close_sessions(expired)) if expired else []

    @property
    def deadline_ms(self) -> int | None:
        return self._store.deadline_ms

    def call(self, session_id: int, operation: Operation, now_ms: int) -> tuple[Outcome, list[WatchFired]]:
        return self.call_many([(session_id, operation)], now_ms)[0]

    # --- beyond the protocol ------------------------------------------------------------------

    @property
    def tree(self) -> Tree:
        """The stored nodes and sessions; read-only."""
        return self._store.tree

    def call_many(
        self,
        calls: Sequence[tuple[int, Operation]],
        now_ms: int,
        *,
        after_each: Callable[[Operation, Outcome], None] = lambda operation, outcome: None,
    ) -> list[tuple[Outcome, list[WatchFired]]]:
        """Carry out operations in order with one sync for all of them.

        `after_each` may read the tree as each of them left it; nothing is on disk yet then.
        """
        self._check_usable()
        answers = []
        try:
            for session_id, operation in calls:
                before = self.tree.last_txid
                answers.append(self._store.call(session_id, operation, now_ms))
                after_each(operation, answers[-1][0])
                if self.tree.last_txid != before:
                    assert isinstance(operation, Create | Set | Delete | Multi)
                    self._unsynced.append(journal.Written(session_id, operation))
            self._commit()
        except MetadataStoreFailed:
            raise
        except Exception as error:
            # An operation may be half done in memory: no snapshot of that tree may reach the disk.
            self._failure = error
            raise MetadataStoreFailed(
                f"unexpected error in the metadata store in {self._directory}: {error!r}"
            ) from error
        return answers

    def close(self) -> None:
        """Write a snapshot and release the directory. Sessions end with it.

        Raises `MetadataStoreFailed` if the snapshot cannot be written; nothing is lost with it.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._failure is None:
                self._rotate()
        except OSError as error:
            raise MetadataStoreFailed(
                f"the metadata store in {self._directory} ends without a snapshot: {error}. Nothing is lost: "
                "its journal has every change"
            ) from error
        finally:
            self._journal.close()
            self._lock.release()

    # --- the disk -----------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise MetadataStoreFailed(
                f"the metadata store in {self._directory} failed earlier ({self._failure}); reopen the store"
            ) from self._failure
        if self._closed:
            raise MetadataStoreFailed(f"the metadata store in {self._directory} is closed")

    def _close_sessions(self, session_ids: Sequence[int]) -> list[WatchFired]:
        self._check_usable()
        fired: list[WatchFired] = []
        for session_id in session_ids:
            if session_id in self.tree.sessions:
                fired += self._store.close_session(session_id)
                self._unsynced.append(journal.SessionClosed(session_id))
        self._commit()
        return fired

    def _commit(self) -> None:
        """Write and sync everything applied so far; only then may it be answered."""
        if not self._unsynced:
            return
        first_txid = self.tree.last_txid - len(self._unsynced) + 1
        frame = journal.encode_frame(first_txid, journal.join(self._unsynced))
        try:
            self._journal.pwrite(frame, self._journal_size)
            self._journal.sync(data_only=True)
            self._journal_size += len(frame)
            self._unsynced.clear()
            # A snapshot is as large as the tree: one for each such amount of journal, not for each megabyte.
            if self._journal_size >= max(self._journal_limit, self._snapshot_bytes):
                self._rotate()
        except OSError as error:
            # The tree is ahead of the disk by an unknown amount, and a repeated fsync proves nothing: only
            # a new read of all files shows their content.
            self._failure = error
            raise MetadataStoreFailed(f"the metadata store in {self._directory} failed: {error}") from error

    def _rotate(self) -> None:
        former, self._journal = self._journal, self._new_journal()
        self._journal_size = 0
        former.close()

    def _new_journal(self) -> File:
        """Publish a snapshot, begin the journal that follows it, remove the older ones."""
        snapshot = journal.encode_snapshot(self.tree)
        self._snapshot_bytes = len(snapshot)
        publish(self._disk, self._directory, journal.SNAPSHOT_FILE, snapshot)
        name = journal.journal_name(self.tree.last_txid + 1)
        # If it exists, an opening crashed here: it can only hold a torn frame.
        file = self._disk.open(f"{self._directory}/{name}", create=True, write=True)
        file.truncate(0)
        file.sync()
        self._disk.sync_dir(self._directory)
        for old in _journals(self._disk, self._directory):
            if old != name:
                remove_if_exists(self._disk, f"{self._directory}/{old}")
        return file


def holds_store(disk: Disk, directory: str) -> bool:
    """Return whether a metadata store, sound or not, is in `directory`. Raises `OSError`."""
    try:
        names = [entry.name for entry in disk.scan(directory)]
    except FileNotFoundError:
        return False
    return any(name.startswith((journal.SNAPSHOT_FILE, journal.JOURNAL_PREFIX)) for name in names)


def _journals(disk: Disk, directory: str) -> list[str]:
    names = (entry.name for entry in disk.scan(directory) if not entry.is_directory)
    return [name for name in names if re.fullmatch(rf"{journal.JOURNAL_PREFIX}\d+", name)]


def _recover(disk: Disk, directory: str) -> tuple[Tree, dict[str, bytes]]:
    """Return the tree in the files, and each journal's torn tail. Reads only."""
    snapshot = read_small_file(disk, f"{directory}/{journal.SNAPSHOT_FILE}", limit=1 << 30)
    names = _journals(disk, directory)
    if snapshot is None and names:
        raise CorruptMetadata(
            f"{directory} has journals of the metadata store but no {journal.SNAPSHOT_FILE}; "
            "restore the directory from a copy"
        )
    tree = journal.decode_snapshot(snapshot) if snapshot is not None else Tree()
    torn: dict[str, bytes] = {}
    for name in names:
        data = read_small_file(disk, f"{directory}/{name}", limit=1 << 30) or b""
        frames, end = journal.read_journal(data, name)
        if end < len(data):
            torn[name] = data[end:]
        for frame in frames:
            _replay(tree, frame, name)
    return tree, torn


def _replay(tree: Tree, frame: journal.Frame, name: str) -> None:
    for txid, transaction in enumerate(journal.decode_transactions(frame.payload), frame.first_txid):
        if txid <= tree.last_txid:
            continue
        if txid != tree.last_txid + 1:
            raise CorruptMetadata(f"{name} continues at transaction {txid}, not at {tree.last_txid + 1}")
        match transaction:
            case journal.SessionOpened(timeout_ms):
                tree.open_session(timeout_ms)
            case journal.SessionClosed(session_id):
                tree.close_session(session_id)
            case journal.Written(session_id, operation):
                tree.apply(session_id, operation)
        if tree.last_txid != txid:
            raise CorruptMetadata(f"transaction {txid} in {name} does not fit the transactions before it")
