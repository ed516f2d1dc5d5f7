"""The examples do what they say, and take few lines of this package."""

from __future__ import annotations

import ast
import importlib.util
import json
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from logstore import Message, Queue, QueueClosed
from logstore.broker import BrokerCluster
from logstore.log.log import Log
from tests.page_runner import ROOT

EXAMPLES = ROOT / "examples"
MOST_LINES = 15
LIMIT_S = 60


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines_of_logstore(source: str) -> set[int]:
    """The lines that name the package, one of its names, or a variable that holds one of its objects."""
    tree = ast.parse(source)
    names: set[str] = set()

    def is_ours(node: ast.AST | None) -> bool:
        return node is not None and any(
            isinstance(each, ast.Name) and each.id in names for each in ast.walk(node)
        )

    def bind(target: ast.AST | None) -> None:
        names.update(each.id for each in ast.walk(target or ast.Pass()) if isinstance(each, ast.Name))

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "logstore":
            names.update(alias.asname or alias.name for alias in node.names)
    for _ in range(3):  # objects made of objects
        for node in ast.walk(tree):
            match node:
                case ast.withitem(context_expr=ast.Call() as made, optional_vars=target) if is_ours(
                    made.func
                ):
                    bind(target)
                case ast.Assign(targets=[ast.Name() as target], value=ast.Call() as made) if is_ours(
                    made.func
                ):
                    bind(target)
                case ast.arg(arg=name, annotation=annotation) if is_ours(annotation):
                    names.add(name)
                case ast.AnnAssign(target=target, annotation=annotation) if is_ours(annotation):
                    bind(target)
    lines = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names}
    return lines | {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "logstore"
    }


@pytest.mark.parametrize("name", ["event_sourced_service", "outbox", "other_process", "three_hosts"])
def test_it_takes_few_lines_of_logstore(name: str) -> None:
    lines = lines_of_logstore((EXAMPLES / f"{name}.py").read_text())
    assert 3 <= len(lines) <= MOST_LINES, sorted(lines)


def test_the_lines_are_counted() -> None:
    source = """
from logstore import Log
import json

with Log.open("a") as log:
    for record in log.read():
        print(record)
    last = log.last()
    print(json.dumps(last))

def f(log: Log) -> None:
    log.append(
        b"a"
    )
"""
    assert lines_of_logstore(source) == {2, 5, 6, 8, 9, 11, 12}


# --- the service --------------------------------------------------------------------------------------


def test_a_service_appends_projects_and_replays(tmp_path: Path) -> None:
    from fastapi.testclient import TestClient

    example = loaded("event_sourced_service")
    with TestClient(example.service(str(tmp_path))) as client:
        answers = [
            client.post("/movements", json={"account": "ann", "amount": amount}) for amount in (100, -30, 5)
        ]
        assert [each.status_code for each in answers] == [200, 200, 200]
        assert answers[-1].json() == {"offset": 2, "balance": 75}
        refused = client.post("/movements", json={"account": "ann", "amount": -76})
        assert (refused.status_code, refused.json()) == (409, {"detail": "the account has too little"})
        assert client.get("/accounts/bob").json() == {"balance": 0}
    with TestClient(example.service(str(tmp_path))) as client:
        assert client.get("/accounts/ann").json() == {"balance": 75}
    with Log.open(tmp_path / "movements-0") as log:
        assert log.log_end_offset == 3


@pytest.mark.parametrize(
    "movement",
    [
        {"account": "a" * 2_000_000, "amount": 1},
        {"account": "", "amount": 1},
        {"account": "ann", "amount": 10**4000},
        {"account": "ann", "amount": "many"},
        {"account": "ann"},
        ["ann", 1],
    ],
)
def test_a_service_refuses_what_is_no_movement(movement: object, tmp_path: Path) -> None:
    """A record or a snapshot could not hold it: a 500, and after that one at every hundredth movement."""
    from fastapi.testclient import TestClient

    example = loaded("event_sourced_service")
    with TestClient(example.service(str(tmp_path)), raise_server_exceptions=False) as client:
        assert client.post("/movements", json=movement).status_code == 422
        assert client.get("/accounts/ann").json() == {"balance": 0}
    with Log.open(tmp_path / "movements-0") as log:
        assert log.log_end_offset == 0


def test_a_service_begins_at_its_snapshot(tmp_path: Path) -> None:
    from fastapi.testclient import TestClient

    example = loaded("event_sourced_service")
    vars(example)["SNAPSHOT_EVERY"] = 2
    with TestClient(example.service(str(tmp_path))) as client:
        for _ in range(5):
            client.post("/movements", json={"account": "ann", "amount": 1})
    with Log.open(tmp_path / "balances-0") as log:
        newest = log.last()
        assert newest is not None
        assert json.loads(newest.value or b"") == {"next_offset": 4, "balances": {"ann": 4}}
    with Log.open(tmp_path / "movements-0") as log:
        log.delete_records(4)  # what the snapshot holds is not read again
    with TestClient(example.service(str(tmp_path))) as client:
        assert client.get("/accounts/ann").json() == {"balance": 5}


# --- the outbox ---------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(tmp_path / "shop.sqlite")
    database.executescript(loaded("outbox").TABLES)
    yield database
    database.close()


def test_the_outbox_empties_into_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = loaded("outbox")
    directory = tmp_path / "new"
    for _ in range(2):
        example.main(str(directory))
    with Log.open(directory / "orders-0") as log:
        events = [json.loads(value or b"") for value in log.read_values()]
    assert [each["event"] for each in events] == ["placed nut", "placed bolt", "placed washer"] * 2
    assert [each["id"] for each in events] == [1, 2, 3, 4, 5, 6]


def test_a_relay_that_dies_at_any_step_moves_each_event_once(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    """It dies before or after each statement; a lower id is committed late, as PostgreSQL may do it."""
    example = loaded("outbox")
    vars(example)["MOST"] = 3

    class Dying:
        def __init__(self, left: int) -> None:
            self.left = left

        def execute(self, *arguments: object) -> object:
            self._step()
            return database.execute(*arguments)  # type: ignore[arg-type]

        def commit(self) -> None:
            self._step()
            database.commit()

        def _step(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise InterruptedError

    with Log.open(tmp_path / "orders-0", serializer="json") as log:
        for left in range(1, 12):
            for item in ("nut", "bolt", "washer", "screw"):
                example.place(database, item)
            if left % 3 == 0:  # the one that was committed late
                database.execute("INSERT INTO outbox (id, key, event) VALUES (?, 'late', 'late')", (-left,))
                database.commit()
            try:
                while example.relay(Dying(left), log):
                    pass
            except InterruptedError:
                database.rollback()
        while example.relay(database, log):
            pass
        ids = [json.loads(value or b"")["id"] for value in log.read_values()]
    assert sorted(ids) == sorted([*range(1, 45), -3, -6, -9])


# --- the queue ----------------------------------------------------------------------------------------


def test_workers_end_with_the_job_that_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the wait for the workers. None of them meets a queue that was closed under it."""
    example = loaded("job_queue")
    all_work, stops, real = threading.Barrier(example.WORKERS), list[threading.Event](), example.work
    failed: list[object] = []
    are_submitted, are_interrupted = threading.Event(), threading.Event()

    def interrupt(*_: object) -> None:
        if not are_interrupted.is_set():
            are_interrupted.set()
            raise KeyboardInterrupt

    def work(queue: Queue, stopping: threading.Event) -> None:
        stops.append(stopping)
        real(queue, stopping)

    def handle(message: Message) -> str:
        if all_work.wait(LIMIT_S) == 0:
            assert are_submitted.wait(LIMIT_S)  # the pool knows no thread whose start was interrupted
            # Python does not notice a signal that comes just before it waits for a lock.
            while not are_interrupted.wait(0.01):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert stops[0].wait(LIMIT_S)  # or a worker that is quick takes a second job before it is told
        return ""

    class NotedQueue(Queue):
        def ack(self, message: Message) -> None:
            try:
                super().ack(message)
            except QueueClosed as error:
                failed.append(error)

    class NotedPool(ThreadPoolExecutor):
        left = example.WORKERS

        def submit(self, *arguments: Any) -> Future[Any]:  # type: ignore[override]
            future = super().submit(*arguments)
            self.left -= 1
            if not self.left:
                are_submitted.set()
            return future

    monkeypatch.setattr(threading, "excepthook", failed.append)
    vars(example).update(handle=handle, work=work, Queue=NotedQueue, ThreadPoolExecutor=NotedPool)
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            example.main(str(tmp_path / "jobs"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not failed
    with Queue(tmp_path / "jobs") as queue:
        topics = queue.stats().topics.values()
        assert sum(each.finished for each in topics) == example.WORKERS
        assert sum(each.waiting for each in topics) == example.JOBS - example.WORKERS


@pytest.mark.parametrize("name", ["job_queue", "outbox", "other_process", "three_hosts"])
def test_without_a_directory_it_says_how_it_is_called(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"python examples/{name}.py " in ended.stderr
    assert "Traceback" not in ended.stderr


# --- several processes and hosts ------------------------------------------------------------------------


def test_a_reader_in_another_process(tmp_path: Path) -> None:
    example = loaded("other_process")
    example.write(str(tmp_path), [b"one\n", b"\xfftwo\n"])
    command = [sys.executable, str(EXAMPLES / "other_process.py"), "read", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        alarm = threading.Timer(LIMIT_S, reader.kill)
        alarm.start()
        try:
            assert reader.stdout is not None
            assert [next(reader.stdout), next(reader.stdout)] == ["0 one\n", "1 \\xfftwo\n"]
            example.write(str(tmp_path), [b"three\n"])
            assert next(reader.stdout) == "2 three\n"
        finally:
            alarm.cancel()
            reader.kill()


def test_three_hosts_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also in a second run: the host that stopped last leads, alone until the others have caught up."""
    example = loaded("three_hosts")
    settings: list[Mapping[str, str]] = []

    class Noted(BrokerCluster):
        def __init__(self, count: int, **options: Any) -> None:
            settings.append(options.get("settings", {}))
            super().__init__(count, **options)

    vars(example)["BrokerCluster"] = Noted
    for first in (0, 3):
        example.main(str(tmp_path))
        assert settings[-1].get("min.insync.replicas") == "2", "one host alone would acknowledge, and die"
        told, *printed = capsys.readouterr().out.splitlines()
        assert printed[-3:] == [f"{first} placed", f"{first + 1} paid", f"{first + 2} shipped"]
        died, leads = [int(word) for word in told.replace(";", "").split() if word.isdecimal()]
        assert died != leads
