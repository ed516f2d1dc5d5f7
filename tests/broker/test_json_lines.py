"""What goes into a process's log."""

from __future__ import annotations

import logging

from logstore.broker.acceptor import SAY_AGAIN_S
from logstore.broker.json_lines import QuietKazoo


def record(name: str, level: int, message: str, at_s: float) -> logging.LogRecord:
    made = logging.LogRecord(name, level, "file", 1, message, (), None)
    made.created = at_s
    return made


def test_kazoo_says_each_warning_once_in_a_while_and_nothing_of_its_ordinary_work() -> None:
    """56 of the 94 lines that a broker wrote while its store was away were kazoo's."""
    passes = QuietKazoo().filter
    assert not passes(record("kazoo.client", logging.INFO, "Connecting to %s(%s):%s", 0))
    assert passes(record("kazoo.client", logging.WARNING, "Connection dropped: %s", 0))
    assert not passes(record("kazoo.client", logging.WARNING, "Connection dropped: %s", 1))
    assert passes(record("kazoo.client", logging.WARNING, "Session has expired", 1))
    assert passes(record("kazoo.client", logging.WARNING, "Connection dropped: %s", SAY_AGAIN_S))
    for _ in range(3):
        assert passes(record("logstore.broker.runtime", logging.INFO, "registered", 2))
