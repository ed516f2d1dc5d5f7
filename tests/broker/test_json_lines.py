"""What goes into a process's log."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logstore.broker.acceptor import SAY_AGAIN_S
from logstore.broker.json_lines import JsonLines, QuietKazoo


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


def test_the_time_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local time without its zone was off by hours in whatever collects lines of several hosts."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        line = JsonLines().format(record("logstore.broker", logging.INFO, "registered", 1_700_000_000.0625))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert json.loads(line)["time"] == "2023-11-14T22:13:20.062Z"


def test_a_log_file_is_rotated(tmp_path: Path) -> None:
    program = """
import logging, sys
from logstore.broker import json_lines
json_lines.MOST_BYTES = 2_000
json_lines.log_as_json(sys.argv[1])
for number in range(50):
    logging.info("line %d", number)
"""
    path = tmp_path / "a.log"
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    lines = [
        json.loads(line)
        for name in ("a.log.1", "a.log")
        for line in (tmp_path / name).read_text().splitlines()
    ]
    assert [line["message"] for line in lines][-1] == "line 49"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.log", "a.log.1"]
    assert all(each.stat().st_size <= 2_000 for each in tmp_path.iterdir())
