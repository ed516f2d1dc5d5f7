"""A broker inside a program: threads and loops, appends and reads, failovers, what is said of failures."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from logstore.broker import (
    Address,
    Appended,
    AsyncBroker,
    BlockingClient,
    Broker,
    BrokerCluster,
    BrokerConfig,
    BrokerFailed,
    BrokerStopped,
    RequestRefused,
    SharedStore,
    open_store,
)
from logstore.broker.errors import RequestFailed
from logstore.broker.metadata.server import MetadataServer, session_secret
from logstore.broker.producing import Appendable
from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import SteadyClock
from logstore.disk.memory import MemoryDisk
from logstore.errors import InvalidConfig
from logstore.format.record import Header, Record
from logstore.replication.durability import Durability
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.testing.disks.faulty import Fault, FaultyDisk

QUICK = {
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "20",
    "registration.retry.ms": "20",
    "controlled.shutdown.retry.backoff.ms": "20",
    "request.timeout.ms": "5000",
}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def config(node_id: int = 1, **settings: object) -> BrokerConfig:
    return BrokerConfig(node_id=node_id, **{"settings": QUICK, "timeout_s": 30.0, **settings})  # type: ignore[arg-type]


# --- one broker -------------------------------------------------------------------------------


def test_in_a_thread() -> None:
    with Broker(config()) as broker:
        assert broker.is_ready
        assert broker.bootstrap == f"127.0.0.1:{broker.address.port}"
        broker.create_topic("t", 3)
        assert broker.topics() == {"t": 3}
        placed = broker.append("t", b"v", key=b"foobar", headers=[("h", b"1"), ("n", None)])
        assert placed == Appended("t", (-790332482 & 0x7FFFFFFF) % 3, 0, Durability.REPLICATED)
        [record] = broker.read("t", placed.partition)
        assert (record.offset, record.key, record.value) == (0, b"foobar", b"v")
        assert record.headers == (Header("h", b"1"), Header("n", None))
        assert record.timestamp_ms > 1_600_000_000_000, "now"
    assert not broker.is_ready


def test_all_topics_are_known_when_it_is_ready(tmp_path: Path) -> None:
    """The leaders come after the live brokers, and topics() was empty until then."""
    on_disk = config(log_dirs=(str(tmp_path / "data"),))
    expected = {f"t{number}": number for number in range(1, 9)}
    with Broker(on_disk) as broker:
        for name, partitions in expected.items():
            broker.create_topic(name, partitions)
    with Broker(on_disk) as broker:
        assert broker.topics() == expected

    async def test() -> None:
        async with AsyncBroker(on_disk) as broker:
            assert await broker.topics() == expected

    asyncio.run(test())


def test_on_the_callers_loop() -> None:
    async def test() -> None:
        async with Broker(config()) as broker:
            assert isinstance(broker, AsyncBroker)
            await broker.create_topic("t")
            placed = await asyncio.gather(*(broker.append("t", b"%d" % number) for number in range(20)))
            assert [each.offset for each in placed] == list(range(20)), "in the order of the calls"
            assert [record.value async for record in broker.scan("t")] == [b"%d" % n for n in range(20)]
        with pytest.raises(BrokerStopped):
            await broker.append("t", b"x")

    asyncio.run(test())


def test_many_records_at_once() -> None:
    """Values, pairs and records; those without a key stay together, offsets come back in order."""
    with Broker(config()) as broker:
        broker.create_topic("t", 2)
        given: list[Appendable] = [b"a", (b"k", b"b"), Record(99, 5, None, None), (None, b"c")]
        placed = broker.append("t", given, partition=1)
        assert [(each.partition, each.offset) for each in placed] == [(1, 0), (1, 1), (1, 2), (1, 3)]
        records = broker.read("t", 1)
        assert [record.value for record in records] == [b"a", b"b", None, b"c"]
        assert records[2].timestamp_ms == 5
        assert broker.append("t", []) == []
        keyless = broker.append("t", [b"x"] * 5)
        assert len({each.partition for each in keyless}) == 1
        other = broker.append("t", [b"x"] * 5)
        assert keyless[0].partition != other[0].partition, "the next call, the next partition"
        large = [os.urandom(1) * 100_000 for _ in range(20)]
        assert len(broker.append("t", large, partition=0)) == 20, "more than one batch may hold"
        assert [each.value for each in broker.scan("t", 0)][-20:] == large


def test_acks_and_levels() -> None:
    with Broker(config()) as broker:
        broker.create_topic("t")
        broker.create_topic("s", settings={"durability.level": "synced"})
        assert broker.append("t", b"0", acks=0).offset == -1
        assert broker.append("t", b"1", acks=1)[2:] == (1, None)
        assert broker.append("t", b"a", acks="all")[2:] == (2, Durability.REPLICATED)
        assert broker.append("s", b"a", acks=-1)[2:] == (0, Durability.SYNCED)
        assert [record.value for record in broker.scan("t")] == [b"0", b"1", b"a"]
        with pytest.raises(ValueError, match="acks is 2"):
            broker.append("t", b"x", acks=2)  # type: ignore[call-overload]


def test_reading() -> None:
    with Broker(config()) as broker:
        broker.create_topic("t")
        assert broker.read("t", wait=0.0) == []
        broker.append("t", [b"%d" % number for number in range(10)])
        assert [record.offset for record in broker.read("t", 0, 7)] == [7, 8, 9], "in the middle of a batch"
        assert broker.read("t", 0, 10, wait=0.0) == []
        with pytest.raises(RequestRefused) as refusal:
            broker.read("t", 0, 11)
        assert refusal.value.error is ErrorCode.OFFSET_OUT_OF_RANGE
        follower = broker.scan("t", 0, 8, follow=True)
        assert [next(follower).offset, next(follower).offset] == [8, 9]
        broker.append("t", b"more")
        assert next(follower).value == b"more"
        assert [record.offset for record in broker.scan("t", 0, 9)] == [9, 10]


def test_what_is_refused_is_said() -> None:
    with Broker(config()) as broker:
        broker.create_topic("t", settings={"max.message.bytes": "1000"})
        for ask, error in (
            (lambda: broker.append("nowhere", b"x", timeout=0.3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (lambda: broker.append("t", b"x", partition=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (lambda: broker.append("t", bytes(2000)), ErrorCode.MESSAGE_TOO_LARGE),
            (lambda: broker.create_topic("t"), ErrorCode.TOPIC_ALREADY_EXISTS),
            (lambda: broker.create_topic("u", replication_factor=2), ErrorCode.INVALID_REPLICATION_FACTOR),
        ):
            with pytest.raises(RequestRefused) as refusal:
                ask()
            assert refusal.value.error is error
        with pytest.raises(ValueError, match="give each of many records its own"):
            broker.append("t", [b"x"], key=b"k")  # type: ignore[call-overload]


def test_who_is_at_fault_pays_alone() -> None:
    """Records of several calls share a batch; one that no log takes must not cost the others theirs."""

    async def test() -> None:
        async with Broker(config()) as broker:
            await broker.create_topic("t", settings={"max.message.bytes": "1000"})
            values = [b"a", bytes(2000), b"b", b"c"]
            results = await asyncio.gather(
                *(broker.append("t", value) for value in values), return_exceptions=True
            )
            assert [isinstance(result, RequestRefused) for result in results] == [False, True, False, False]
            assert [record.value async for record in broker.scan("t")] == [b"a", b"b", b"c"]

    asyncio.run(test())


def test_any_thread_may_call() -> None:
    with Broker(config()) as broker:
        broker.create_topic("t")

        def write(name: int) -> None:
            for number in range(50):
                broker.append("t", b"%d %d" % (name, number))

        threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        values = [tuple(map(int, (record.value or b"").split())) for record in broker.scan("t")]
        assert sorted(values) == [(name, number) for name in range(4) for number in range(50)]
        for name in range(4):
            assert [number for who, number in values if who == name] == list(range(50))


def test_logs_stay(tmp_path: Path) -> None:
    there = config(log_dirs=(str(tmp_path / "data"),))
    with Broker(there) as broker:
        broker.create_topic("t")
        broker.append("t", b"kept")
    assert (tmp_path / "data" / "t-0").is_dir()
    assert (tmp_path / "data.metadata").is_dir()
    with Broker(there) as broker:
        assert [record.value for record in broker.read("t")] == [b"kept"]
        assert broker.append("t", b"more").offset == 1


def test_a_disk_in_memory_outlives_the_broker() -> None:
    """After a kill a partition without another replica leads again if its acknowledgements meant the disk."""
    disk = MemoryDisk()
    with Broker(config(disk=disk)) as broker:
        broker.create_topic("t", settings={"durability.level": "synced"})
        broker.append("t", b"kept")
        broker.kill("as the power would")
    with Broker(config(disk=disk)) as broker:
        assert [record.value for record in broker.read("t")] == [b"kept"]


# --- starting and stopping --------------------------------------------------------------------


def test_after_the_end_calls_say_why() -> None:
    broker = Broker(config())
    with pytest.raises(BrokerStopped, match="has not been started"):
        broker.topics()
    broker.stop("nothing to stop")
    broker.start()
    broker.wait_until_ready(30)
    broker.stop("the tests are over")
    with pytest.raises(BrokerStopped, match="the tests are over"):
        broker.topics()
    broker.stop("twice")


def test_calls_that_wait_are_told_of_the_end() -> None:
    broker = Broker(config())
    broker.start()
    broker.wait_until_ready()
    broker.create_topic("t")
    waiting = threading.Event()
    told: list[BaseException] = []

    def read() -> None:
        waiting.set()
        try:
            broker.read("t", wait=60.0)
        except EngineError as error:
            told.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    waiting.wait()
    broker.stop("enough")
    thread.join()
    assert isinstance(told[0], BrokerStopped)


def test_what_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    with Broker(config()) as first:
        taken = str(first.address)
        with pytest.raises(OSError, match="in use"), Broker(config(listen=taken)):
            pass
    with pytest.raises(InvalidConfig, match=r"no\.such\.setting"):
        Broker(config(settings={"no.such.setting": "1"})).start()
    with pytest.raises(InvalidConfig, match="etcd"):
        Broker(config(metadata="etcd://x")).start()
    with pytest.raises(ValueError, match="host:port"):
        Broker(config(listen="nowhere")).start()
    (tmp_path / "data").write_text("a file")
    with pytest.raises(EngineError, match="no usable log dir"):
        Broker(config(log_dirs=(str(tmp_path / "data"),))).start()
    with pytest.raises(EngineError, match=r"in /proc/x\.metadata, beside the first log dir.*embedded:DIR"):
        Broker(config(log_dirs=("/proc/x",))).start()
    with pytest.raises(ValueError, match="log_dirs"):
        config(log_dirs=("",))


def test_it_belongs_to_one_way_in() -> None:
    async def test() -> None:
        broker = Broker(config())
        async with broker as inner:
            assert broker.is_ready
            assert broker.bootstrap == inner.bootstrap
            with pytest.raises(BrokerStopped, match="await the calls"):
                broker.topics()

    asyncio.run(test())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is there on POSIX alone")
def test_a_forked_child_has_no_broker() -> None:
    """Its threads stayed with the parent: a call would wait for ever."""
    with Broker(config()) as broker:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:  # pragma: no cover
            code = 1
            try:
                broker.topics()
            except BrokerStopped as error:
                broker.stop()
                code = 0 if "parent process" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert broker.topics() == {}, "the parent's is as it was"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is there on POSIX alone")
def test_a_forked_child_has_no_client() -> None:
    """It has the parent's sequence numbers: the second of two appends counted as a repetition."""
    with Broker(config()) as broker, BlockingClient(broker.bootstrap) as client, BlockingClient("h:1") as new:
        broker.create_topic("orders")
        assert client.append("orders", b"a").offset == 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:  # pragma: no cover
            code = 1
            try:
                client.append("orders", b"child")
            except RequestFailed as error:
                client.close()
                new._client.check()  # not used before: it may be used here
                code = 0 if "fork" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.append("orders", b"b").offset == 1
        assert [record.value for record in broker.scan("orders")] == [b"a", b"b"]


# --- failures ---------------------------------------------------------------------------------


def test_a_broker_that_cannot_go_on_says_so() -> None:
    """Its only disk fails: calls raise, and so does the end, whatever the caller did with those."""
    disk = FaultyDisk(MemoryDisk())
    with (  # noqa: PT012
        pytest.raises(BrokerFailed, match="broker 1 failed") as at_exit,
        open_store() as store,
        Broker(config(disk=disk, metadata=store)) as broker,
    ):
        broker.create_topic("t", settings={"durability.level": "synced"})
        disk.inject(Fault(operation="sync", path=lambda path: path.startswith("data"), forever=True))
        with pytest.raises(EngineError):
            broker.append("t", b"x", timeout=20)
        with pytest.raises(BrokerFailed, match="broker 1 failed"):
            broker.topics()
        assert not broker.is_ready
    assert "broker 1" in str(at_exit.value)


def test_a_failure_does_not_hide_what_else_went_wrong() -> None:
    disk = FaultyDisk(MemoryDisk())
    with (  # noqa: PT012
        pytest.raises(KeyError) as error,
        open_store() as store,
        Broker(config(disk=disk, metadata=store)) as broker,
    ):
        broker.create_topic("t", settings={"durability.level": "synced"})
        disk.inject(Fault(operation="sync", path=lambda path: path.startswith("data"), forever=True))
        with pytest.raises(EngineError):
            broker.append("t", b"x", timeout=20)
        raise KeyError("the program's own")
    assert "failed" in error.value.__notes__[0]


def test_a_store_that_fails_is_told() -> None:
    disk = FaultyDisk(MemoryDisk())
    with (  # noqa: PT012
        pytest.raises(BrokerFailed, match="metadata store"),
        open_store(disk=disk) as store,
        Broker(config(metadata=store)) as broker,
    ):
        broker.create_topic("t")
        disk.inject(Fault(operation="sync", forever=True))
        with pytest.raises(EngineError):
            broker.create_topic("u", timeout=3)
        with pytest.raises(BrokerFailed, match="metadata store"):
            broker.append("t", b"x")


# --- several brokers --------------------------------------------------------------------------


def cluster(stack: ExitStack, store: SharedStore, count: int = 3) -> list[Broker]:
    settings = {**QUICK, "default.replication.factor": "3", "min.insync.replicas": "2"}
    return [
        stack.enter_context(Broker(config(node_id, metadata=store, settings=settings)))
        for node_id in range(1, count + 1)
    ]


def test_three_brokers_and_one_is_killed_while_appending() -> None:
    """Nothing acknowledged is lost, nothing is there twice, and each thread's records are in its order."""
    with open_store() as store, ExitStack() as stack:
        brokers = cluster(stack, store)
        brokers[0].create_topic("t", 3)
        acknowledged: dict[int, list[int]] = {name: [] for name in range(3)}
        stop, flowing = threading.Event(), threading.Semaphore(0)
        failures: list[BaseException] = []

        def write(name: int, broker: Broker) -> None:
            number = 0
            try:
                while not stop.is_set():
                    broker.append("t", b"%d %d" % (name, number), partition=name)
                    acknowledged[name].append(number)
                    number += 1
                    flowing.release()
            except BaseException as error:
                failures.append(error)
                stop.set()

        # Nobody writes through the third; each of three partitions is led by another broker.
        threads = [threading.Thread(target=write, args=(name, brokers[name % 2])) for name in acknowledged]
        for thread in threads:
            thread.start()
        for _ in range(60):
            assert flowing.acquire(timeout=60)
        brokers[2].kill("a test")
        for _ in range(200):
            assert flowing.acquire(timeout=60), failures
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        for name, numbers in acknowledged.items():
            values = [record.value for record in brokers[0].scan("t", name)]
            assert values == [b"%d %d" % (name, number) for number in numbers]
        brokers[0].stop("the last but one has min.insync.replicas against it")
        with pytest.raises(RequestRefused) as refusal:
            brokers[1].append("t", b"x", timeout=2)
        assert refusal.value.error in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.LEADER_NOT_AVAILABLE)
        assert refusal.value.is_passing


def test_leaders_are_killed_one_after_the_other_and_come_back() -> None:
    """As above, of clients outside, whose answers get lost with the leader that they wait for."""
    with BrokerCluster(3, settings={"min.insync.replicas": "2"}) as brokers, ExitStack() as stack:
        brokers.create_topic("t", 3)
        addresses = [broker.address for broker in brokers.brokers.values()]
        stop, flowing = threading.Event(), threading.Semaphore(0)
        acknowledged: dict[int, int] = dict.fromkeys(range(3), 0)
        failures: list[BaseException] = []

        def write(name: int) -> None:
            try:
                with BlockingClient(addresses) as client:
                    while not stop.is_set():
                        client.append("t", b"%d" % acknowledged[name], partition=name)
                        acknowledged[name] += 1
                        flowing.release()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=(name,)) for name in acknowledged]
        stack.callback(stop.set)
        for thread in threads:
            thread.start()
        for victim in (0, 1, 2, 0, 1):
            for _ in range(60):
                assert flowing.acquire(timeout=60), failures
            leader = brokers.leader("t", victim)
            brokers.kill(leader)
            for _ in range(30):
                assert flowing.acquire(timeout=60), failures
            brokers.start(leader)
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        for name, count in acknowledged.items():
            assert [record.value for record in brokers.scan("t", name)] == [b"%d" % n for n in range(count)]


def test_a_cluster_on_one_loop_and_a_client_outside() -> None:
    async def test() -> None:
        with open_store() as store:
            async with Broker(config(1, metadata=store)) as one, Broker(config(2, metadata=store)) as two:
                await one.create_topic("t", 4, replication_factor=2)
                for number in range(8):
                    await (one, two)[number % 2].append("t", b"%d" % number, partition=number % 4)
                address = Address(*two.address)
                values = await asyncio.to_thread(outside, address)
                assert sorted(values) == [b"%d" % number for number in range(8)]

    def outside(address: Address) -> list[bytes]:
        with BlockingClient([address]) as client:
            assert client.topics() == {"t": 4}
            return [record.value or b"" for number in range(4) for record in client.scan("t", number)]

    asyncio.run(test())


def test_a_cluster_on_disk(tmp_path: Path) -> None:
    with BrokerCluster(2, directory=str(tmp_path)) as brokers:
        brokers.create_topic("t")
        brokers.append("t", b"x")
    with BrokerCluster(2, directory=str(tmp_path)) as brokers:
        brokers.append("t", b"y")
        assert [record.value for record in brokers.scan("t")] == [b"x", b"y"]
    assert (tmp_path / "broker-2" / "t-0").is_dir()


def test_a_cluster_over_a_store_that_speaks_zookeeper() -> None:
    """As brokers in several programs are one cluster."""
    pytest.importorskip("kazoo")

    async def test() -> None:
        clock = SteadyClock()
        disk = MemoryDisk()
        with EmbeddedStore("/meta", disk=disk, sessions_from_ms=clock()) as store:
            secret = session_secret("/meta", disk=disk, random=random.Random(0))
            server = MetadataServer(store, clock=clock, secret=secret)
            url = f"zookeeper://{await server.listen(Address('127.0.0.1', 0))}/embedded"
            try:
                async with Broker(config(1, metadata=url)) as one, Broker(config(2, metadata=url)) as two:
                    await one.create_topic("t", replication_factor=2)
                    placed = await asyncio.gather(one.append("t", b"a"), two.append("t", b"b"))
                    assert sorted(each.offset for each in placed) == [0, 1]
            finally:
                server.close()

    asyncio.run(test())


def test_clusters_beside_each_other() -> None:
    """Nothing is global."""
    with Broker(config()) as one, Broker(config()) as other:
        one.create_topic("t")
        assert one.topics() == {"t": 1}
        assert other.topics() == {}


def test_a_restarted_broker_is_where_it_was_or_elsewhere() -> None:
    """Its clients look for it at its port; who took that meanwhile keeps it."""
    with BrokerCluster(2) as brokers:
        former = brokers.brokers[2].address
        brokers.stop(2)
        assert brokers.start(2).address == former
        brokers.stop(2)
        with Broker(config(9, listen=str(former))):
            assert brokers.start(2).address != former
            assert brokers.brokers[2].is_ready


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
def test_kafkas_clients_do_not_know_the_difference(listen: str) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    with Broker(config(listen=listen)) as broker:
        broker.create_topic("t")
        producer = kafka.Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        producer.produce("t", b"theirs", key=b"k")
        assert producer.flush(60) == 0
        broker.append("t", b"ours", key=b"k")
        consumer = kafka.Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        try:
            consumer.assign([kafka.TopicPartition("t", 0, 0)])
            assert [consumer.poll(60).value() for _ in range(2)] == [b"theirs", b"ours"]
        finally:
            consumer.close()


def test_what_others_are_told_is_the_advertised_address() -> None:
    """Behind another address it still reaches itself, without that address."""
    with Broker(config(advertised="broker.example:9999")) as broker:
        assert broker.bootstrap == "broker.example:9999"
        broker.create_topic("orders", 1)
        broker.append("orders", b"placed")
        assert [record.value for record in broker.read("orders")] == [b"placed"]
    with pytest.raises(ValueError, match="host:port"):
        AsyncBroker(config(advertised="nowhere"))
