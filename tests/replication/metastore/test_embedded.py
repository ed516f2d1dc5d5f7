"""The embedded store against crashes: answered writes stay, others may go, damage is reported."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from logstore.disk.errors import DirectoryLocked
from logstore.disk.files import Disk
from logstore.disk.memory import MemoryDisk, Profile
from logstore.replication.metastore import journal
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.replication.metastore.errors import CorruptMetadata, MetadataStoreFailed
from logstore.replication.metastore.operations import (
    ANY_VERSION,
    Children,
    Create,
    Delete,
    Get,
    Multi,
    Operation,
    Set,
    StoreError,
)
from logstore.testing.disks.faulty import Fault, FaultyDisk

DIRECTORY = "/var/meta"

# No refusals in here: each operation is one transaction, so states can be counted.
SCRIPT: tuple[Operation, ...] = (
    Create("/a", b"0"),
    Create("/a/b", b"deep", make_parents=True),
    Create("/live", b"me", ephemeral=True),
    Set("/a", b"1", 0),
    Multi((Create("/c", b"c"), Set("/a", b"2", 1), Delete("/a/b"))),
    Create("/q/n_", b"", sequential=True, make_parents=True),
    Create("/q/n_", b"", sequential=True),
    Delete("/q/n_0000000000"),
    Set("/c", b"x" * 40, ANY_VERSION),
)

Content = dict[str, tuple[bytes, int]]


def content(store: EmbeddedStore) -> Content:
    """Path → data and version, the ephemeral nodes left out."""
    session = store.open_session(1000, 0)
    found: Content = {}
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        outcome = store.call(session, Get(path), 0)[0]
        assert outcome.stat is not None
        if not outcome.stat.ephemeral_owner:
            found[path] = (outcome.data, outcome.stat.version)
        below = path.rstrip("/") + "/"
        waiting += [below + name for name in store.call(session, Children(path), 0)[0].children]
    return found


def states() -> list[Content]:
    """The content after 0, 1, … of the script's operations, on a store that nothing happens to."""
    result = []
    for count in range(len(SCRIPT) + 1):
        with EmbeddedStore(DIRECTORY, disk=MemoryDisk()) as store:
            session = store.open_session(1000, 0)
            for operation in SCRIPT[:count]:
                assert store.call(session, operation, 0)[0].error is None
            result.append(content(store))
    return result


STATES = states()


def reopened(disk: Disk) -> Content:
    with EmbeddedStore(DIRECTORY, disk=disk) as store:
        return content(store)


def played(disk: Disk, *, journal_limit: int = 1 << 20) -> Iterator[int]:
    """Play the script, yielding how many operations have been answered."""
    store = EmbeddedStore(DIRECTORY, disk=disk, journal_limit=journal_limit)
    session = store.open_session(1000, 0)
    yield 0
    for number, operation in enumerate(SCRIPT, 1):
        assert store.call(session, operation, 0)[0].error is None
        yield number


def journal_of(disk: MemoryDisk) -> tuple[str, bytes]:
    ((path, data),) = [(path, data) for path, data in disk.files().items() if "/journal-" in path]
    return path, data


def played_disk() -> MemoryDisk:
    disk = MemoryDisk()
    for _ in played(disk):
        pass
    return disk.copy()


def test_everything_answered_survives_a_stop_without_goodbye() -> None:
    assert reopened(played_disk()) == STATES[-1]


def test_sessions_do_not_outlive_the_store_and_ids_do_not_come_back() -> None:
    """A broker epoch issued twice would let a former incarnation act for a later one."""
    disk = MemoryDisk()
    with EmbeddedStore(DIRECTORY, disk=disk) as store:
        session = store.open_session(1000, 0)
        before = store.call(session, Create("/live", ephemeral=True), 0)[0].stat
    with EmbeddedStore(DIRECTORY, disk=disk) as store:
        assert store.call(session, Get("/"), 0)[0].error is StoreError.SESSION_EXPIRED
        later = store.open_session(1000, 0)
        assert later > session
        assert store.call(later, Get("/live"), 0)[0].error is StoreError.NO_NODE
        after = store.call(later, Create("/live", ephemeral=True), 0)[0].stat
    assert before is not None
    assert after is not None
    assert after.created_txid > before.created_txid
    assert reopened(disk) == reopened(disk), "opening twice is opening once"


def test_journal_cut_at_every_byte_keeps_the_longest_run_of_whole_frames() -> None:
    """Power fails while the last frame is written: the file may end anywhere. Exhaustive."""
    disk = played_disk()
    path, data = journal_of(disk)
    frames, _ = journal.read_journal(data, "journal")
    ends = [frame.end for frame in frames]
    for size in range(len(data) + 1):
        files = disk.files() | {path: data[:size]}
        cut = MemoryDisk(files)
        whole = sum(end <= size for end in ends)
        # The first frame is the session's opening, the next ones the script's operations.
        assert reopened(cut) == STATES[max(0, whole - 1)], f"cut at byte {size}"
        torn = [content for name, content in cut.files().items() if name.endswith(".torn")]
        tail = data[[0, *ends][whole] : size]
        assert torn == ([tail] if tail else []), "what is cut is kept aside"


def test_a_flipped_byte_is_a_torn_tail_only_in_the_last_frame() -> None:
    """A frame before a sound one had been synced and answered: it must not be cut."""
    disk = played_disk()
    path, data = journal_of(disk)
    frames, _ = journal.read_journal(data, "journal")
    last_start = frames[-2].end
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0x40
        damaged = MemoryDisk(disk.files() | {path: bytes(flipped)})
        if position >= last_start:
            assert reopened(damaged) == STATES[-2]
            continue
        before = damaged.files()
        with pytest.raises(CorruptMetadata, match="damaged"):
            EmbeddedStore(DIRECTORY, disk=damaged)
        assert damaged.files() == before | {f"{DIRECTORY}/.lock": b""}, "damage is left as it was found"
        with pytest.raises(CorruptMetadata, match="damaged"):
            EmbeddedStore(DIRECTORY, disk=damaged)


@pytest.mark.parametrize("tail", [b"\0" * 100, b"LSMJ" * 30, bytes(range(256))])
def test_zeros_and_garbage_behind_the_last_frame_are_a_torn_tail(tail: bytes) -> None:
    disk = played_disk()
    path, data = journal_of(disk)
    assert reopened(MemoryDisk(disk.files() | {path: data + tail})) == STATES[-1]


def test_snapshot_damage_is_refused_at_every_byte() -> None:
    disk = MemoryDisk()
    with EmbeddedStore(DIRECTORY, disk=disk) as store:
        session = store.open_session(1000, 0)
        for operation in SCRIPT:
            store.call(session, operation, 0)
    path = f"{DIRECTORY}/{journal.SNAPSHOT_FILE}"
    data = disk.files()[path]
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1
        for bad in (bytes(flipped), data[:position]):
            with pytest.raises(CorruptMetadata):
                EmbeddedStore(DIRECTORY, disk=MemoryDisk(disk.files() | {path: bad}))


def test_a_missing_journal_between_snapshot_and_the_next_is_noticed() -> None:
    """Transaction ids have no gap, so a removed file is noticed."""
    disk = played_disk()
    path, data = journal_of(disk)
    frames, _ = journal.read_journal(data, "journal")
    files = disk.files() | {path: data[frames[3].end :]}
    with pytest.raises(CorruptMetadata, match="continues at transaction"):
        EmbeddedStore(DIRECTORY, disk=MemoryDisk(files))
    only_journals = {name: data for name, data in disk.files().items() if "snapshot" not in name}
    with pytest.raises(CorruptMetadata, match="no snapshot"):
        EmbeddedStore(DIRECTORY, disk=MemoryDisk(only_journals))


@pytest.mark.parametrize("profile", list(Profile))
@pytest.mark.parametrize("journal_limit", [1 << 20, 120])
def test_power_cuts_keep_what_was_answered(profile: Profile, journal_limit: int) -> None:
    """Any image of any moment between two answers, rotations included; and cut again while it reopens."""
    for seed in range(40):
        chance = random.Random(seed)
        disk = MemoryDisk()
        for answered in played(disk, journal_limit=journal_limit):
            image = disk.image(chance, profile)
            assert reopened(image.copy()) == STATES[answered], f"seed {seed}"
            EmbeddedStore(DIRECTORY, disk=image)
            again = image.power_cut(chance, profile)
            assert reopened(again) == STATES[answered], f"seed {seed}, cut after reopening"


@pytest.mark.parametrize("journal_limit", [1 << 20, 120])
@pytest.mark.parametrize("short", [0, 7])
def test_every_call_that_fails_stops_the_store_and_loses_nothing_answered(
    journal_limit: int, short: int
) -> None:
    """The k-th call to the disk fails, for every k. Reopening reads what the disk kept."""
    for at in range(1, 200):
        for forever in (False, True):
            inner = MemoryDisk()
            disk = FaultyDisk(inner, [Fault(at=at, errno=errno.EIO, forever=forever, short=short)])
            answered = -1
            try:
                for number in played(disk, journal_limit=journal_limit):
                    answered = number
            except (OSError, MetadataStoreFailed):
                pass
            else:
                return
            if answered < 0:
                assert reopened(MemoryDisk(inner.files())) == STATES[0]
                continue
            possible = STATES[answered : answered + 2]
            assert reopened(MemoryDisk(inner.files())) in possible, f"the process died after call {at}"
            for seed in range(3):
                image = inner.image(random.Random(seed))
                assert reopened(image) in possible, f"power went after call {at}"
    raise AssertionError("the script takes fewer calls than that")


def test_a_failed_store_answers_nothing_more() -> None:
    """After a failed sync the tree in memory is ahead of the disk: no reader may see it."""
    inner = MemoryDisk()
    disk = FaultyDisk(inner)
    store = EmbeddedStore(DIRECTORY, disk=disk)
    session = store.open_session(1000, 0)
    disk.inject(Fault(operation="sync"))
    with pytest.raises(MetadataStoreFailed):
        store.call(session, Create("/a"), 0)
    for _ in range(2):
        with pytest.raises(MetadataStoreFailed, match="reopen"):
            store.call(session, Get("/"), 0)
        with pytest.raises(MetadataStoreFailed, match="reopen"):
            store.open_session(1000, 0)
        with pytest.raises(MetadataStoreFailed, match="reopen"):
            store.close_session(session)
    store.close()
    assert set(reopened(inner)) <= {"/", "/a"}


def test_an_unexpected_error_is_final_and_nothing_half_done_reaches_the_disk() -> None:
    disk = MemoryDisk()
    store = EmbeddedStore(DIRECTORY, disk=disk)
    session = store.open_session(1000, 0)
    with pytest.raises(MetadataStoreFailed, match="unexpected error"):
        store.call(session, Multi((Create("/half"), Create("/" + "x" * 0x10000))), 0)
    with pytest.raises(MetadataStoreFailed, match="reopen"):
        store.call(session, Get("/"), 0)
    store.close()
    assert set(reopened(disk)) == {"/"}


def test_operations_that_arrive_together_share_a_sync() -> None:
    disk = FaultyDisk(MemoryDisk())
    with EmbeddedStore(DIRECTORY, disk=disk) as store:
        session = store.open_session(1000, 0)
        before = disk.calls
        answers = store.call_many([(session, operation) for operation in SCRIPT], 0)
        assert disk.calls - before == 2, "one write, one sync"
        assert all(outcome.error is None for outcome, _ in answers)
        before = disk.calls
        assert store.call(session, Get("/a"), 0)[0].data == b"2"
        assert store.call(session, Create("/a"), 0)[0].error is StoreError.NODE_EXISTS
        assert disk.calls == before, "what changes nothing writes nothing"


def test_one_owner() -> None:
    disk = MemoryDisk()
    with EmbeddedStore(DIRECTORY, disk=disk) as store:
        with pytest.raises(DirectoryLocked):
            EmbeddedStore(DIRECTORY, disk=disk)
        store.close()
        with pytest.raises(MetadataStoreFailed, match="closed"):
            store.open_session(1000, 0)
    EmbeddedStore(DIRECTORY, disk=disk).close()


def test_a_new_journal_does_not_begin_on_the_remains_of_an_old_one() -> None:
    """With no whole frame in it, a torn journal's name is the next one's too."""
    disk = MemoryDisk()
    EmbeddedStore(DIRECTORY, disk=disk)
    path, data = journal_of(disk)
    assert data == b""
    torn = MemoryDisk(disk.files() | {path: b"\xff" * 500})
    EmbeddedStore(DIRECTORY, disk=torn).open_session(1000, 0)
    frames, end = journal.read_journal(torn.files()[path], "journal")
    assert (len(frames), end) == (1, len(torn.files()[path]))
