"""A broker's process before it serves; what it prints, serves by HTTP, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from logstore.broker import process as broker_process
from logstore.broker.broker import Assembly
from logstore.broker.limits import Address
from logstore.broker.loop import heed_stop_signals
from logstore.broker.metadata.opening import OpenStore
from logstore.broker.metadata.process import run as run_metadata_store
from logstore.broker.metadata.process import serve as serve_metadata
from logstore.broker.process import ServeOptions, allow_open_files, run, serve
from logstore.broker.settings import read_settings
from logstore.checkpoint.clean_shutdown import read_clean_shutdown, write_clean_shutdown
from logstore.disk.memory import MemoryDisk, MemoryLock
from logstore.disk.topic_partition import TopicPartition
from logstore.errors import OutOfResources
from logstore.log.manager import LogManager
from logstore.replication.effects import StoreCall, StoreEvent
from logstore.replication.metastore.errors import MetadataStoreFailed
from logstore.replication.metastore.operations import Create
from tests.broker.nodes import SharedStore, StoreEnd

pytestmark = pytest.mark.usefixtures("kept_signals")

LOOPBACK = Address("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ServeOptions(node_id=1, listen=LOOPBACK, log_dirs=("d",), settings={"no.such.setting": "1"}),
            "no.such.setting",
        ),
        (
            ServeOptions(node_id=1, listen=LOOPBACK, log_dirs=("d",), metadata="etcd://somewhere"),
            "etcd://somewhere",
        ),
        (
            ServeOptions(node_id=1, listen=LOOPBACK, log_dirs=("/dev/null/logs",), metadata="embedded:meta"),
            "/dev/null/logs",
        ),
        (ServeOptions(node_id=1, listen=Address("0.0.0.0", 0), log_dirs=("d",)), "--advertise"),
        (ServeOptions(node_id=1, listen=Address("host.example", 1), log_dirs=("d",)), "--insecure"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    options: ServeOptions,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(options) == 2
    errors = capsys.readouterr().err.splitlines()
    assert complaint in errors[-1]
    assert errors[-1].startswith("error: ")


@pytest.mark.parametrize(("metadata", "code"), [("zookeeper://zk:2181", 1), ("embedded", 2)])
def test_a_store_that_does_not_answer_yet_is_no_reason_to_stay_down(
    metadata: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a power cut ZooKeeper may be later than a broker, which systemd did not start again."""

    @contextmanager
    def silent(*_: object, **__: object) -> Iterator[OpenStore]:
        raise MetadataStoreFailed("did not answer for 30 s")
        yield

    monkeypatch.setattr(broker_process, "store_named", silent)
    assert run(ServeOptions(node_id=1, listen=LOOPBACK, log_dirs=("d",), metadata=metadata)) == code
    assert "error: did not answer for 30 s" in capsys.readouterr().err


def test_an_identity_provider_that_does_not_answer_yet_is_no_reason_to_stay_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are read at the start; a broker that finds none is started again by systemd."""
    monkeypatch.setattr("logstore.broker.security.oauth.START_PATIENCE_S", 0.0, raising=False)
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security."
        'scram.ScramLoginModule required username="admin" password="admin-secret";',
        "sasl.oauthbearer.jwks.endpoint.url": "http://127.0.0.1:1/keys",
    }
    options = ServeOptions(node_id=1, listen=LOOPBACK, log_dirs=(str(tmp_path),), settings=settings)
    assert run(options) == 1
    assert "error: the keys at http://127.0.0.1:1/keys cannot be read: " in capsys.readouterr().err


@pytest.mark.parametrize("process", ["broker", "metadata store"])
def test_a_client_that_leaves_does_not_end_the_process(process: str, tmp_path: Path) -> None:
    """The command line has SIGPIPE kill, as in any filter; a server writes to whoever has just left."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        directory = tmp_path / "file"
        directory.write_bytes(b"")
        if process == "broker":
            run(ServeOptions(node_id=1, listen=LOOPBACK, log_dirs=("d",), metadata=f"embedded:{directory}"))
        else:
            run_metadata_store(str(directory), LOOPBACK)
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGPIPE, before)


class _Broken(StoreEnd):
    """Answers the questions before the start, and fails the node that begins."""

    def submit(self, call: StoreCall) -> None:
        if isinstance(call.operation, Create) and call.operation.ephemeral:
            raise AssertionError("a promise of ours")
        super().submit(call)


@pytest.mark.parametrize(
    ("store", "code", "number"),
    [
        (StoreEnd, 0, signal.SIGTERM),
        (StoreEnd, 0, signal.SIGINT),
        (StoreEnd, 0, signal.SIGHUP),
        (_Broken, 1, signal.SIGTERM),
    ],
)
def test_the_code_tells_an_order_from_a_failure(
    store: type[StoreEnd], code: int, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal is an order; a node that cannot go on is none (F3), and leaves no mark of a clean stop."""
    disk = MemoryDisk(directories=["data"])
    # After a clean stop: the order may come before the controller has recorded what another stop had lost.
    write_clean_shutdown(disk, "data")
    settings = read_settings({}, node_id=1, host="127.0.0.1", port=0)
    options = ServeOptions(node_id=1, listen=LOOPBACK, log_dirs=("data",))

    async def run() -> int:
        shared = SharedStore()
        serving = asyncio.create_task(serve(options, settings, lambda tell: store(shared, tell), disk=disk))
        async with asyncio.timeout(20):
            while not serving.done() and not capsys.readouterr().out:
                await asyncio.sleep(0.002)
            if not serving.done():
                os.kill(os.getpid(), number)
            return await serving

    assert asyncio.run(run()) == code
    assert (read_clean_shutdown(disk, "data") is not None) == (code == 0)


class _Silent(StoreEnd):
    """Answers nothing, and sends the process a signal when it is asked."""

    number = signal.SIGTERM

    def open_session(self, timeout_ms: int) -> None:
        os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_wait_for_a_store_that_does_not_answer(number: signal.Signals) -> None:
    settings = read_settings({}, node_id=1, host="127.0.0.1", port=0)
    options = ServeOptions(node_id=1, listen=LOOPBACK, log_dirs=("data",))

    def store_of(tell: Callable[[StoreEvent], None]) -> StoreEnd:
        store = _Silent(SharedStore(), tell)
        store.number = number
        return store

    async def run() -> int:
        async with asyncio.timeout(20):
            return await serve(options, settings, store_of, disk=MemoryDisk())

    assert asyncio.run(run()) == 0


class _Slow(MemoryDisk):
    """Calls `while_locking` in the thread that opens the logs."""

    def __init__(self) -> None:
        super().__init__()
        self.while_locking: Callable[[], object] = lambda: None

    def lock(self, directory: str) -> MemoryLock:
        found = super().lock(directory)
        self.while_locking()
        return found


def test_logs_that_are_being_opened_are_closed_in_order_by_a_signal() -> None:
    """No thread can be stopped. The next start reads nothing again."""
    settings = read_settings({}, node_id=1, host="127.0.0.1", port=0)
    disk = _Slow()
    logs = LogManager(["data"], disk=disk, clock=lambda: 0, random=Random(0))
    logs.get_or_create(TopicPartition("t", 0)).flush()
    logs.close()

    async def run() -> None:
        shared, loop = SharedStore(), asyncio.get_running_loop()
        opening = loop.create_task(
            Assembly.open(
                settings,
                LOOPBACK,
                ["data"],
                lambda tell: StoreEnd(shared, tell),
                disk=disk,
                clock=lambda: 0,
                random=Random(0),
            )
        )

        async def cancel() -> None:
            opening.cancel()

        disk.while_locking = lambda: asyncio.run_coroutine_threadsafe(cancel(), loop).result(20)
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert not shared.ends, "its session is closed"

    asyncio.run(run())
    assert read_clean_shutdown(disk, "data") is not None
    disk.while_locking = lambda: None
    disk.lock("data").release()


def test_a_metadata_store_stops_in_order_by_any_of_the_signals(capsys: pytest.CaptureFixture[str]) -> None:
    async def run(number: signal.Signals) -> int:
        serving = asyncio.create_task(serve_metadata("meta", LOOPBACK, disk=MemoryDisk()))
        async with asyncio.timeout(20):
            while not capsys.readouterr().out:
                await asyncio.sleep(0.002)
            os.kill(os.getpid(), number)
            return await serving

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert asyncio.run(run(number)) == 0


def test_nohup_is_respected() -> None:
    """It starts a program with SIGHUP ignored."""
    heard: list[int] = []

    async def run() -> None:
        heed_stop_signals(heard.append)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(20):
            while signal.SIGTERM not in heard:
                await asyncio.sleep(0.002)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        asyncio.run(run())
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == [signal.SIGTERM]


def test_it_tells_where_it_is_and_how_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A cluster of one over the embedded store, by HTTP; what others are told is the advertised address."""
    options = ServeOptions(
        node_id=7,
        listen=LOOPBACK,
        advertised=Address("broker.example", 9999),
        log_dirs=(str(tmp_path / "logs"),),
        http=LOOPBACK,
    )
    settings = read_settings({}, node_id=7, host="127.0.0.1", port=0)
    answers: dict[str, bytes] = {}

    def read(address: str, path: str) -> None:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
            answers[path] = answer.read()

    async def run() -> int:
        shared = SharedStore()
        serving = asyncio.create_task(
            serve(options, settings, lambda tell: StoreEnd(shared, tell), disk=MemoryDisk())
        )
        async with asyncio.timeout(60):
            while not (told := capsys.readouterr().out):
                await asyncio.sleep(0.002)
            ready = json.loads(told)
            assert (ready["node_id"], ready["host"], ready["port"]) == (7, "broker.example", 9999)
            for path in ("/healthz", "/metrics", "/livez"):
                await asyncio.to_thread(read, ready["http"], path)
            os.kill(os.getpid(), signal.SIGTERM)
            return await serving

    assert asyncio.run(run()) == 0
    assert json.loads(answers["/healthz"])["ready"]
    assert b"kafka_server_kafkaserver_brokerstate 3.0" in answers["/metrics"]


def test_files_are_allowed_as_far_as_the_system_lets_us(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started with 1,024 files by most systems, it could not even keep its default of connections."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 1024), before[1]))
    try:
        allow_open_files(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1024
        assert not caplog.records
        allow_open_files(1 << 40)
        assert "ulimit" in caplog.text
        monkeypatch.setattr(resource, "getrlimit", lambda _: (63, 63))
        with pytest.raises(OutOfResources, match=r"limit of open files is 63; a broker needs 64.*ulimit -n"):
            allow_open_files(10)
        monkeypatch.undo()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
