"""Handlers, filters and record factories of the application that raise: the work goes on, stderr says so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from logstore import Queue
from logstore.broker import Broker
from logstore.loggers import logger_of

pytestmark = pytest.mark.usefixtures("loggers_of_an_application")

LOGGER = logging.getLogger("logstore")


class Broken(logging.Handler):
    """Raises the error that it was made with."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self.error


class BrokenFilter(logging.NullHandler):
    def handle(self, record: logging.LogRecord) -> bool:
        raise KeyError("a filter reads what this record does not have")


class Appending(logging.Handler):
    """A handler that sends each line to the broker that writes it."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker

    def emit(self, record: logging.LogRecord) -> None:
        self.broker.append("lines", record.getMessage().encode())


@contextmanager
def handled(by: logging.Handler) -> Iterator[None]:
    """The lines of the package go to a handler, whatever their level is."""
    level = LOGGER.level
    LOGGER.addHandler(by)
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.setLevel(level)
        LOGGER.removeHandler(by)


@pytest.mark.parametrize("handler", [Broken(ValueError("broken")), Broken(SystemExit(1)), BrokenFilter()])
def test_a_broker_outlives_a_broken_handler(
    handler: logging.Handler, capfd: pytest.CaptureFixture[str]
) -> None:
    """It wrote in the broker's own thread, which ended; each call raised `CancelledError` from then on."""
    with Broker() as broker, handled(handler):
        broker.create_topic("orders")
        assert broker.append("orders", b"placed").offset == 0
    said = capfd.readouterr().err
    assert "topic created" in said, "the line that the handler did not take"
    assert "test_loggers.py" in said, "where the error is"


def test_a_handler_that_calls_its_broker_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with Broker() as broker:
        broker.create_topic("lines")
        with handled(Appending(broker)):
            broker.create_topic("orders")
        assert broker.append("orders", b"placed").offset == 0
    assert "a blocking call on the broker's own thread" in capfd.readouterr().err


def test_so_does_a_queue(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its opening failed at a warning of a file that is not its own."""
    with Queue(tmp_path / "jobs") as queue:
        queue.put(b"send invoice 17")
    (tmp_path / "jobs" / ("x" * 245 + "-0")).mkdir()
    with handled(Broken(ValueError("broken"))), Queue(tmp_path / "jobs") as queue:
        message = queue.get(timeout=0)
    assert message is not None
    assert "its name is too long" in capfd.readouterr().err


def test_a_program_without_wanted_errors_gets_none(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As for Python's own handlers."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with handled(Broken(ValueError("broken"))):
        logger_of("logstore.any").warning("nobody hears this")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_the_main_thread_is_interrupted_and_no_other(
    error: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    logger = logger_of("logstore.any")
    with handled(Broken(error())):
        with pytest.raises(error):
            logger.warning("one")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(logger.warning, "two").result()
    assert "two" in capfd.readouterr().err


def test_a_line_names_its_writer(caplog: pytest.LogCaptureFixture) -> None:
    """Not the guard around it."""
    logger_of("logstore.any").warning("%d of %s", 1, "two")
    (record,) = caplog.records
    assert (record.getMessage(), record.filename) == ("1 of two", "test_loggers.py")
    assert record.funcName == "test_a_line_names_its_writer"
