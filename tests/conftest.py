"""Fixtures that many files share."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from logstore import loggers

LONG = Path(__file__).with_name("long.txt")

# How long an example takes says how busy the machine is: pytest-timeout ends what hangs.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
# Started by `nohup`, or in the background of a script, the tests and their processes would ignore these.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


_REPORT = loggers.report


def _raise(record: logging.LogRecord) -> None:
    raise  # noqa: PLE0704  called where the exception is handled


# pytest's handler raises what a wrong call of a logger causes: here this is a mistake of the caller.
loggers.report = _raise


@pytest.fixture
def loggers_of_an_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of handlers are printed, as in production."""
    monkeypatch.setattr(loggers, "report", _REPORT)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of `long.txt`."""
    named = {line for line in LONG.read_text().splitlines() if line and not line.startswith("#")}
    found = set()
    for item in items:
        if known := named & {item.nodeid, item.nodeid.partition("[")[0]}:
            item.add_marker("long")
            found |= known
    files = {item.nodeid.partition("::")[0] for item in items}
    unknown = sorted(each for each in named - found if each.partition("::")[0] in files)
    if unknown and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"{LONG.name} names tests that do not exist: {', '.join(unknown)}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from 18,000 collected tests: a full pass takes half a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Keep it away from what a module's tests have loaded, too. Tests ask for full passes by the thousand."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture
def kept_signals() -> Iterator[None]:
    """Restore the handlers after a test that runs a server in its process, which leaves those of its loop."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def zookeeper_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real ZooKeeper server, one for each worker; tests keep out of each other's way by chroots."""
    from tests.zookeeper import ZooKeeperServer

    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


@pytest.fixture(scope="session")
def served_store_port() -> Iterator[int]:
    """Our own store, served as ZooKeeper serves its."""
    from tests.metadata_server import served

    with served() as port:
        yield port


@pytest.fixture(scope="session")
def chroots() -> Iterator[int]:
    """Numbers for parts of a server's tree, each for one test."""
    return iter(range(1, 1_000_000))


@pytest.fixture
def zookeeper_url(zookeeper_port: int, chroots: Iterator[int]) -> str:
    """A part of that server's tree that is this test's own."""
    return f"zookeeper://127.0.0.1:{zookeeper_port}/test-{next(chroots)}"
