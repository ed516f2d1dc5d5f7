"""The metadata store on disk, inside our own process: the tree, a journal and a snapshot.

    <directory>/.lock                          one owner
    <directory>/snapshot                       replaced whole (temp file, sync, rename, sync)
    <directory>/journal-<first transaction>    appended, one frame a sync (`journal.py` draws it)
    <directory>/journal-….torn                 what an opening cut off, kept as evidence

Nothing is answered before the frame that holds it is synced; operations that arrive together share
a frame, hence a sync (`call_many`). When the journal grows past a bound: publish the snapshot, then
begin a new journal, then remove the old one. A crash anywhere between leaves a snapshot and one or
two journals, and a transaction that the snapshot already holds is skipped when they are read.

Opening replays, ends every session unless they are to go on (their clients were cut off; ephemeral
nodes go, with new transaction ids, so nothing restarts at an older one) and publishes a fresh snapshot
before the first answer. What a torn last frame held was never answered, so it is cut; a bad frame with a
sound one behind it, a gap, or a bad snapshot is damage: `CorruptMetadata`, and nothing is touched.

A write or sync that fails is final: the store answers `MetadataStoreFailed` until it is opened anew,
which reads what the disk really kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from logstore.disk.files import Disk, File, make_durable_dir, publish, read_small_file, remove_if_exists
from logstore.replication.effects import WatchFired
from logstore.replication.metastore import journal
from logstore.replication.metastore.errors import CorruptMetadata, MetadataStoreFailed
from logstore.replication.metastore.memory import SessionClocks
from logstore.replication.metastore.operations import Create, Delete, Multi, Operation, Outcome, Set
from logstore.replication.metastore.tree import Tree

DEFAULT_JOURNAL_LIMIT = 4 << 20


class EmbeddedStore:
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

        With `sessions_from_ms` sessions go on, each with its whole timeout from that time; their owners must
        set their watches anew, and see every node as changed.

        Raises `DirectoryLocked`, `CorruptMetadata`, or `OSError` as the disk does.
        """
        self._directory, self._disk, self._journal_limit = directory, disk, journal_limit
        self._clocks = SessionClocks()
        self._failure: OSError | None = None
        self._closed = False
        self._unsynced: list[journal.Transaction] = []
        make_durable_dir(disk, directory)
        self._lock = disk.lock(directory)
        try:
            self._tree, torn = _recover(disk, directory)
            for name, tail in torn.items():
                publish(disk, directory, name + journal.TORN_SUFFIX, tail)
            if sessions_from_ms is None:
                for session_id in list(self._tree.sessions):
                    self._tree.close_session(session_id)
            else:
                for session_id, timeout_ms in self._tree.sessions.items():
                    self._clocks.start(session_id, timeout_ms, sessions_from_ms)
                self._tree.mark_all_changed()
            self._journal = self._new_journal()
            self._journal_size = 0
        except BaseException:
            self._lock.release()
            raise

    # --- MetadataStore ------------------------------------------------------------------------

    def open_session(self, timeout_ms: int, now_ms: int) -> int:
        self._check_usable()
        session_id = self._tree.open_session(timeout_ms)
        self._unsynced.append(journal.SessionOpened(timeout_ms))
        self._commit()
        self._clocks.start(session_id, timeout_ms, now_ms)
        return session_id

    def heartbeat(self, session_id: int, now_ms: int) -> bool:
        return self._clocks.heard(session_id, now_ms)

    def close_session(self, session_id: int) -> list[WatchFired]:
        return self._close_sessions([session_id])

    def tick(self, now_ms: int) -> tuple[list[int], list[WatchFired]]:
        expired = self._clocks.overdue(now_ms)
        fired = self._close_sessions(expired) if expired else []
        return expired, [watch for watch in fired if watch.session_id in self._tree.sessions]

    @property
    def deadline_ms(self) -> int | None:
        return self._clocks.deadline_ms

    def call(self, session_id: int, operation: Operation, now_ms: int) -> tuple[Outcome, list[WatchFired]]:
        ((outcome, fired),) = self.call_many([(session_id, operation)], now_ms)
        return outcome, fired

    # --- beyond the protocol ------------------------------------------------------------------

    @property
    def tree(self) -> Tree:
        """What is stored, to be looked at only."""
        return self._tree

    def call_many(
        self,
        calls: Sequence[tuple[int, Operation]],
        now_ms: int,
        *,
        after_each: Callable[[Operation, Outcome], None] = lambda operation, outcome: None,
    ) -> list[tuple[Outcome, list[WatchFired]]]:
        """Carry out operations in order with one sync for all of them.

        `after_each` may look at the tree as each of them left it; nothing is on disk yet then.
        """
        self._check_usable()
        answers = []
        for session_id, operation in calls:
            self._clocks.heard(session_id, now_ms)
            before = self._tree.last_txid
            answers.append(self._tree.apply(session_id, operation))
            after_each(operation, answers[-1][0])
            if self._tree.last_txid != before:
                assert isinstance(operation, Create | Set | Delete | Multi)
                self._unsynced.append(journal.Written(session_id, operation))
        self._commit()
        return answers

    def close(self) -> None:
        """Leave a snapshot and let the directory go. Sessions do not outlive this."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._failure is None:
                self._rotate()
        finally:
            self._journal.close()
            self._lock.release()

    def __enter__(self) -> EmbeddedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the disk -----------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise MetadataStoreFailed(
                f"the disk under {self._directory} failed earlier ({self._failure}); reopen the store"
            ) from self._failure
        if self._closed:
            raise MetadataStoreFailed(f"the metadata store in {self._directory} is closed")

    def _close_sessions(self, session_ids: Sequence[int]) -> list[WatchFired]:
        self._check_usable()
        fired: list[WatchFired] = []
        for session_id in session_ids:
            self._clocks.stop(session_id)
            if session_id in self._tree.sessions:
                fired += self._tree.close_session(session_id)
                self._unsynced.append(journal.SessionClosed(session_id))
        self._commit()
        return fired

    def _commit(self) -> None:
        """Make everything applied so far survive; only then may it be answered."""
        if not self._unsynced:
            return
        first_txid = self._tree.last_txid - len(self._unsynced) + 1
        frame = journal.encode_frame(first_txid, journal.join(self._unsynced))
        try:
            self._journal.pwrite(frame, self._journal_size)
            self._journal.sync(data_only=True)
            self._journal_size += len(frame)
            self._unsynced.clear()
            if self._journal_size >= self._journal_limit:
                self._rotate()
        except OSError as error:
            # The tree is ahead of the disk by an unknown amount, and an fsync that failed proves
            # nothing when it is repeated: only reading it all again can tell what is there.
            self._failure = error
            raise MetadataStoreFailed(
                f"writing the metadata store in {self._directory} failed: {error}"
            ) from error

    def _rotate(self) -> None:
        former, self._journal = self._journal, self._new_journal()
        self._journal_size = 0
        former.close()

    def _new_journal(self) -> File:
        """Publish a snapshot, begin the journal that follows it, remove the ones before."""
        publish(self._disk, self._directory, journal.SNAPSHOT_FILE, journal.encode_snapshot(self._tree))
        name = journal.journal_name(self._tree.last_txid + 1)
        # Left over from an opening that crashed here, if it exists: it can hold nothing but a torn frame.
        file = self._disk.open(f"{self._directory}/{name}", create=True, write=True)
        file.truncate(0)
        file.sync()
        self._disk.sync_dir(self._directory)
        for old in _journals(self._disk, self._directory):
            if old != name:
                remove_if_exists(self._disk, f"{self._directory}/{old}")
        return file


def _journals(disk: Disk, directory: str) -> list[str]:
    names = [entry.name for entry in disk.scan(directory) if not entry.is_directory]
    return [
        name
        for name in names
        if name.startswith(journal.JOURNAL_PREFIX) and name[len(journal.JOURNAL_PREFIX) :].isdecimal()
    ]


def _recover(disk: Disk, directory: str) -> tuple[Tree, dict[str, bytes]]:
    """The tree that the files hold, and each journal's torn tail. Reads only."""
    snapshot = read_small_file(disk, f"{directory}/{journal.SNAPSHOT_FILE}", limit=1 << 30)
    names = _journals(disk, directory)
    if snapshot is None and names:
        raise CorruptMetadata(
            f"{directory} has journals of the metadata store but no {journal.SNAPSHOT_FILE}"
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
            raise CorruptMetadata(f"{name} goes on at transaction {txid}, but {tree.last_txid} came before")
        match transaction:
            case journal.SessionOpened(timeout_ms):
                tree.open_session(timeout_ms)
            case journal.SessionClosed(session_id):
                tree.close_session(session_id)
            case journal.Written(session_id, operation):
                tree.apply(session_id, operation)
        if tree.last_txid != txid:
            raise CorruptMetadata(f"transaction {txid} in {name} does not apply to what came before it")
