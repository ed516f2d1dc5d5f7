"""The cluster's id, the marks in log dirs, blocks of producer ids; over a store that loses answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from logstore.broker import identity
from logstore.broker.fewer_log_dirs import replicas_without_log
from logstore.broker.identity import (
    InconsistentBrokerId,
    InconsistentClusterId,
    claim_log_dirs,
    find_cluster_id,
)
from logstore.broker.metadata.local import SharedStore
from logstore.broker.producer_ids import BLOCK_SIZE, ProducerIds, ProducerIdsUnavailable
from logstore.broker.store_session import StoreSession
from logstore.checkpoint.identity import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
    write_partition_metadata,
)
from logstore.disk.errors import CorruptCheckpoint
from logstore.disk.files import Disk
from logstore.disk.ids import new_id
from logstore.disk.memory import MemoryDisk
from logstore.format.batch import encode_batch
from logstore.format.record import Record
from logstore.replication.effects import (
    SessionExpired,
    SessionOpened,
    StoreCall,
    StoreEvent,
    StoreReply,
)
from logstore.replication.metastore import layout
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.replication.metastore.errors import CorruptMetadata, MetadataStoreFailed, WriteTooLarge
from logstore.replication.metastore.layout import TopicAssignment, encode_topic
from logstore.replication.metastore.memory import MemoryStore
from logstore.replication.metastore.operations import (
    LARGEST_WRITE,
    Children,
    Create,
    Get,
    Multi,
    Operation,
    Outcome,
    Set,
    Stat,
    StoreError,
)
from logstore.testing.disks import Fault, FaultyDisk
from tests.broker.nodes import Nodes


class Lossy:
    """A store whose answers `fate` may lose: False before the operation, True after it."""

    def __init__(self, fate: Callable[[Operation], bool | None] = lambda operation: None) -> None:
        self.fate = fate
        self._store = MemoryStore()
        self._session = self._store.open_session(1_000, 0)

    async def ask(self, operation: Operation) -> Outcome:
        fate = self.fate(operation)
        if fate is False:
            return Outcome(StoreError.CONNECTION_LOSS)
        outcome, _ = self._store.call(self._session, operation, 0)
        return outcome if fate is None else Outcome(StoreError.CONNECTION_LOSS)


def test_the_first_broker_names_the_cluster() -> None:
    async def run() -> None:
        store = Lossy()
        names = await asyncio.gather(*(find_cluster_id(store.ask, Random(seed)) for seed in range(3)))
        assert len(set(names)) == 1
        assert len(names[0]) == 22

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(8))
def test_lost_answers_name_it_once_all_the_same(seed: int) -> None:
    chance = Random(seed)

    async def run() -> None:
        store = Lossy(lambda operation: chance.choice([None, True, False]))
        found = {await find_cluster_id(store.ask, Random(number)) for number in range(5)}
        assert len(found) == 1

    asyncio.run(run())


def test_a_store_that_never_answers_is_told_of() -> None:
    async def run() -> None:
        with pytest.raises(MetadataStoreFailed):
            await find_cluster_id(Lossy(lambda operation: True).ask, Random(0))
        with pytest.raises(ProducerIdsUnavailable):
            await ProducerIds(1, Lossy(lambda operation: False).ask, Random(0)).take()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(8))
def test_no_producer_id_is_given_twice(seed: int) -> None:
    """Three brokers, lost answers, a broker that is started anew: what was in its block is never given."""
    chance = Random(seed)

    async def run() -> None:
        store = Lossy(lambda operation: chance.choice([None, None, True, False]))
        brokers = [ProducerIds(number, store.ask, Random(number)) for number in range(3)]
        given = []
        for _ in range(20):
            which = chance.randrange(3)
            if chance.random() < 0.2:
                brokers[which] = ProducerIds(which, store.ask, chance)
            given += await asyncio.gather(*(brokers[which].take() for _ in range(chance.randrange(400))))
        assert len(set(given)) == len(given)
        assert all(number >= 0 for number in given)

    asyncio.run(run())


def test_two_processes_of_one_broker_never_share_a_block() -> None:
    """The one that was taken for dead finds what its successor wrote: the same broker, the same numbers."""

    successor = layout.encode_producer_ids(layout.ProducerIdBlock(1, 0, BLOCK_SIZE - 1, "successor"))

    async def run() -> None:
        store = Lossy()

        def fate(operation: Operation) -> bool | None:
            if not isinstance(operation, Create):
                return None
            store.fate = lambda operation: None
            store._store.call(store._session, Create(layout.PRODUCER_IDS_PATH, successor), 0)
            return False

        store.fate = fate
        assert await ProducerIds(1, store.ask, Random(1)).take() == BLOCK_SIZE

    asyncio.run(run())


def test_a_block_that_another_broker_takes_meanwhile_is_its_own() -> None:
    """Both read the same node; the write of the second one must fail."""

    async def run() -> None:
        store = Lossy()
        assert await ProducerIds(1, store.ask, Random(1)).take() == 0
        others = layout.encode_producer_ids(
            layout.ProducerIdBlock(2, BLOCK_SIZE, 2 * BLOCK_SIZE - 1, "other")
        )

        def fate(operation: Operation) -> bool | None:
            if isinstance(operation, Set):
                store.fate = lambda operation: None
                store._store.call(store._session, Set(layout.PRODUCER_IDS_PATH, others, -1), 0)
            return None

        store.fate = fate
        assert await ProducerIds(3, store.ask, Random(3)).take() == 2 * BLOCK_SIZE

    asyncio.run(run())


def test_blocks_follow_each_other_as_kafka_writes_them() -> None:
    async def run() -> None:
        store = Lossy()
        assert await ProducerIds(4, store.ask, Random(4)).take() == 0
        assert await ProducerIds(5, store.ask, Random(5)).take() == BLOCK_SIZE
        node = await store.ask(Get(layout.PRODUCER_IDS_PATH))
        assert node.data.startswith(b'{"version":1,"broker":5,"block_start":"1000","block_end":"1999",')
        await store.ask(Set(layout.PRODUCER_IDS_PATH, b'{"version":1}', -1))
        with pytest.raises(CorruptMetadata):
            await ProducerIds(4, store.ask, Random(4)).take()

    asyncio.run(run())


# --- log dirs -----------------------------------------------------------------------------------


def claim(
    disk: Disk, *dirs: str, broker_id: int = 1, cluster_id: str = "c" * 22, may_be_fewer: bool = False
) -> list[str]:
    return claim_log_dirs(
        dirs,
        disk=disk,
        broker_id=broker_id,
        cluster_id=cluster_id,
        random=Random(0),
        may_be_fewer=may_be_fewer,
    )


def test_log_dirs_are_marked_once_and_known_again() -> None:
    disk = MemoryDisk()
    assert claim(disk, "/a", "/b") == []
    first, second = read_meta_properties(disk, "/a"), read_meta_properties(disk, "/b")
    assert first is not None
    assert second is not None
    assert (first.node_id, first.cluster_id) == (1, "c" * 22)
    assert first.directory_id != second.directory_id
    assert claim(disk, "/a", "/b") == []
    assert read_meta_properties(disk, "/a") == first


def test_log_dirs_of_others_are_refused_and_nothing_is_written() -> None:
    disk = MemoryDisk()
    claim(disk, "/mine")
    with pytest.raises(InconsistentBrokerId, match="--node-id 1"):
        claim(disk, "/new", "/mine", broker_id=2)
    with pytest.raises(InconsistentClusterId, match="another log dir"):
        claim(disk, "/new", "/mine", cluster_id="d" * 22)
    assert [entry.name for entry in disk.scan("/")] == ["mine"]


def test_a_dir_that_kafka_made_before_clusters_had_ids_is_taken() -> None:
    disk = MemoryDisk(directories=["/old"])
    write_meta_properties(disk, "/old", MetaProperties(node_id=1))
    assert claim(disk, "/old") == []


def test_a_dir_that_fails_is_left_to_the_log_manager() -> None:
    disk = FaultyDisk(MemoryDisk(directories=["/bad", "/good"]))
    disk.inject(Fault(path=lambda path: path.startswith("/bad")))
    assert claim(disk, "/bad", "/good") == ["/bad"]
    assert read_meta_properties(disk, "/good") is not None


def test_a_dir_that_was_taken_out_is_missed() -> None:
    """A broker would begin its logs anew in the others, empty, and count as in sync with them."""
    disk = MemoryDisk(directories=["/a"])
    write_meta_properties(disk, "/a", MetaProperties(node_id=1, extra={"unknown": "stays"}))
    assert claim(disk, "/a") == []
    assert claim(disk, "/a", "/b", "/c") == []
    before = [read_meta_properties(disk, each) for each in ("/a", "/b", "/c")]
    with pytest.raises(
        identity.LogDirMissing, match=r"names 2 of the 3 .* move its replicas to the others first"
    ):
        claim(disk, "/c", "/new")
    assert [read_meta_properties(disk, each) for each in ("/a", "/b", "/c")] == before
    assert [entry.name for entry in disk.scan("/")] == ["a", "b", "c"]
    # An empty dir in its place is for the log manager, which counts the broker as unclean then.
    assert claim(disk, "/a", "/new", "/c") == []
    found = read_meta_properties(disk, "/a")
    assert found is not None
    assert found.extra == {"unknown": "stays", identity.LOG_DIRS: "3"}
    for each in ("/a", "/c"):
        mark = read_meta_properties(disk, each)
        assert mark is not None
        write_meta_properties(disk, each, replace(mark, extra={}))
    assert claim(disk, "/a", "/c") == []
    with pytest.raises(identity.LogDirMissing):
        claim(disk, "/c")
    assert claim(disk, "/c", may_be_fewer=True) == []
    mark = read_meta_properties(disk, "/c")
    assert mark is not None
    assert mark.extra[identity.LOG_DIRS] == "1"


def test_replicas_that_are_in_none_of_the_log_dirs() -> None:
    """Also those whose directory is of another topic of the name, is a copy, or waits for its deletion."""
    one, other = new_id(Random(1)), new_id(Random(2))
    topics = {
        "t": TopicAssignment(one, {0: (1, 2), 1: (2, 1), 2: (2, 3)}, {}, {2: (3,)}, {}, {1: (3,), 2: (1,)}),
        "u": TopicAssignment(other, {number: (1,) for number in range(4)}),
    }
    disk = MemoryDisk(directories=["/a/t-0", "/a/u-0", "/b/u-1", "/b/u-3.00-future", "/b/u-2.00-delete"])
    write_partition_metadata(disk, "/a/t-0", one)
    write_partition_metadata(disk, "/a/u-0", one)
    write_partition_metadata(disk, "/b/u-1", other)

    async def ask(operation: Operation) -> Outcome:
        if isinstance(operation, Children):
            return Outcome(None, children=(*topics, "bad", "gone"))
        assert isinstance(operation, Get)
        name = operation.path.rpartition("/")[2]
        if name == "gone":
            return Outcome(StoreError.NO_NODE)
        data = encode_topic(topics[name]) if name in topics else b"{"
        return Outcome(None, data=data, stat=Stat(0, 0))

    found = asyncio.run(replicas_without_log(ask, 1, ["/a", "/b", "/none"], disk=disk))
    assert found == ["bad", "t-1", "t-2", "u-0", "u-2", "u-3"]
    raised = identity.LogDirMissing("one is missing").for_want_of(found)
    assert str(raised).endswith("no log in the dirs named: bad, t-1, t-2 and 3 more")


def test_a_number_of_log_dirs_that_cannot_be_read_is_an_error() -> None:
    disk = MemoryDisk(directories=["/a"])
    write_meta_properties(disk, "/a", MetaProperties(node_id=1, extra={identity.LOG_DIRS: "many"}))
    with pytest.raises(CorruptCheckpoint, match=r"/a: logstore.log.dirs"):
        claim(disk, "/a")


def test_a_broker_without_one_of_its_log_dirs_does_not_start_and_loses_nothing() -> None:
    """It was the last of the ISR, led with an empty log, and the other replica was cut to it."""

    async def run() -> None:
        nodes = Nodes(2)
        nodes.log_dirs = ["a", "b"]
        async with asyncio.timeout(60), nodes:
            topics = [await nodes.create_topic(name, (0, 1)) for name in ("t", "u")]
            for each in topics:
                await nodes.client.produce(each, encode_batch([Record(0, 5, None, b"x")]))
            await nodes.until(lambda: all(nodes.ends(each) == {0: 1, 1: 1} for each in topics))
            await nodes.stop(1)
            await nodes.stop(0)
            nodes.log_dirs = ["a"]
            with pytest.raises(identity.LogDirMissing):
                await nodes.start(0)
            nodes.log_dirs = ["a", "b"]
            await nodes.start(0)
            await nodes.start(1)
            await nodes.until(lambda: all(nodes.ends(each) == {0: 1, 1: 1} for each in topics))

    asyncio.run(run())


# --- the conversation ---------------------------------------------------------------------------


def test_a_conversation_is_had_in_a_session_of_its_own() -> None:
    async def run(shared: SharedStore) -> None:
        async with StoreSession(shared.client) as session:
            assert (await session.ask(Create("/a", b"1"))).error is None
            assert (await session.ask(Get("/a"))).data == b"1"
            opened = session._opened
            assert opened is not None
            await asyncio.to_thread(shared.end, opened.result())
            assert (await session.ask(Get("/a"))).error is StoreError.SESSION_EXPIRED
            assert (await session.ask(Get("/a"))).data == b"1", "a new session, unasked"

    with SharedStore(EmbeddedStore("/meta", disk=MemoryDisk()), clock=lambda: 0) as shared:
        asyncio.run(run(shared))


class ByHand:
    """A client of the store whose answers the test gives."""

    name = "of a test"

    def __init__(self, on_event: Callable[[StoreEvent], None]) -> None:
        self.on_event = on_event
        self.opened = 0
        self.calls: list[StoreCall] = []

    def open_session(self, timeout_ms: int) -> None:
        self.opened += 1

    def submit(self, call: StoreCall) -> None:
        self.calls.append(call)

    def close_session(self, session_id: int) -> None: ...
    def close(self) -> None: ...


def test_every_question_of_a_session_that_ended_is_asked_in_the_same_next_one() -> None:
    """Each of them opened a session, and all but the last waited for one that was forgotten."""

    async def run() -> None:
        clients: list[ByHand] = []

        def store_of(on_event: Callable[[StoreEvent], None]) -> ByHand:
            clients.append(ByHand(on_event))
            return clients[0]

        async def settle() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        async def until_answered(session: StoreSession, path: str) -> Outcome:
            while (outcome := await session.ask(Get(path))).error is StoreError.SESSION_EXPIRED:
                pass
            return outcome

        async with StoreSession(store_of) as session:
            (client,) = clients
            asking = [asyncio.ensure_future(until_answered(session, path)) for path in ("/a", "/b")]
            await settle()
            client.on_event(SessionOpened(1))
            await settle()
            for call in client.calls:
                client.on_event(StoreReply(call.call_id, Outcome(StoreError.SESSION_EXPIRED)))
            await settle()
            client.on_event(SessionExpired(1))
            await settle()
            client.calls.clear()
            client.on_event(SessionOpened(2))
            await settle()
            assert [call.session_id for call in client.calls] == [2, 2]
            for call in client.calls:
                client.on_event(StoreReply(call.call_id, Outcome(data=b"1")))
            assert [(await each).data for each in asking] == [b"1", b"1"]
            assert client.opened == 2

    asyncio.run(asyncio.wait_for(run(), 10))


class Refusing(ByHand):
    """A store that ends every session without an answer, as after a wrong password."""

    def open_session(self, timeout_ms: int) -> None:
        super().open_session(timeout_ms)
        self.on_event(SessionOpened(self.opened))

    def submit(self, call: StoreCall) -> None:
        super().submit(call)
        self.on_event(StoreReply(call.call_id, Outcome(StoreError.SESSION_EXPIRED)))
        self.on_event(SessionExpired(call.session_id))


def test_a_store_that_ends_each_session_at_once_is_told_of() -> None:
    """Twenty were opened in a tenth of a second, and the broker ended with "does not answer reads"."""

    async def run() -> None:
        async with StoreSession(Refusing) as session:
            for _ in range(2):
                with pytest.raises(MetadataStoreFailed, match=r"\(of a test\) ended 3 sessions .* its login"):
                    await find_cluster_id(session.ask, Random(1))

    asyncio.run(run())


def test_sessions_that_end_after_an_answer_are_no_trouble() -> None:
    async def run(shared: SharedStore) -> None:
        async with StoreSession(shared.client) as session:
            for _ in range(5):
                assert (await session.ask(Get("/"))).error is None
                assert session.session_id is not None
                await asyncio.to_thread(shared.end, session.session_id)
                while (await session.ask(Get("/"))).error is not None:
                    pass

    with SharedStore(EmbeddedStore("/meta", disk=MemoryDisk()), clock=lambda: 0) as shared:
        asyncio.run(run(shared))


def test_what_no_server_takes_is_refused_and_not_sent() -> None:
    async def run(shared: SharedStore) -> None:
        async with StoreSession(shared.client) as session:
            write = Create("/a", bytes(LARGEST_WRITE))
            for each in (write, Multi((write,))):
                with pytest.raises(WriteTooLarge, match="use shorter settings"):
                    await session.ask(each)
            assert (await session.ask(Get("/a"))).error is StoreError.NO_NODE

    with SharedStore(EmbeddedStore("/meta", disk=MemoryDisk()), clock=lambda: 0) as shared:
        asyncio.run(run(shared))


def test_a_store_that_is_not_there_is_told_of_in_time() -> None:
    class Silent:
        name = "zookeeper://nowhere:1"

        def open_session(self, timeout_ms: int) -> None: ...
        def submit(self, call: object) -> None: ...
        def close_session(self, session_id: int) -> None: ...
        def close(self) -> None: ...

    async def run() -> None:
        async with StoreSession(lambda on_event: Silent(), patience_s=0.01) as session:
            with pytest.raises(MetadataStoreFailed, match=r"\(zookeeper://nowhere:1\) did not answer"):
                await session.ask(Get("/"))

    asyncio.run(run())
