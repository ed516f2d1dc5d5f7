"""`logstore cursors`: list, move and remove the named positions of a log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore import Log
from logstore.log.cursor_file import CURSORS_FILE
from tests.cli.conftest import Outcome, snapshot

Command = Callable[..., Outcome]


@pytest.fixture
def read(partition: Path) -> Path:
    """The partition, of which two readers have read a part."""
    with Log.open(partition) as log:
        log.cursor("billing").commit(2)
        log.cursor("au\ndit").commit(log.log_end_offset)
    return partition


def test_listing_changes_nothing(command: Command, read: Path) -> None:
    before = snapshot(read.parent)
    outcome = command("cursors", read)
    assert (outcome.code, outcome.err) == (0, "")
    assert f"{read} billing: offset 2, lag 4" in outcome.out.splitlines()
    assert len(outcome.out.splitlines()) == 2
    assert snapshot(read.parent) == before


def test_as_json_for_a_whole_log_dir(command: Command, read: Path) -> None:
    outcome = command("cursors", read.parent, "--json")
    assert [json.loads(line) for line in outcome.out.splitlines()] == [
        {"directory": str(read), "cursor": "au\ndit", "offset": 6, "lag": 0},
        {"directory": str(read), "cursor": "billing", "offset": 2, "lag": 4},
    ]


def test_at_any_depth_and_of_logs_alone(command: Command, read: Path) -> None:
    (read.parent / "empty").mkdir()
    assert f"{read} billing: offset 2" in command("cursors", read.parent.parent).out
    outcome = command("cursors", read.parent / "empty")
    assert (outcome.code, outcome.out) == (2, "")
    assert "holds no log" in outcome.err


@pytest.mark.parametrize(("to", "offset"), [("start", 0), ("end", 6), ("5", 5)])
def test_reset(command: Command, read: Path, to: str, offset: int) -> None:
    outcome = command("cursors", read, "--reset", "billing", "--to", to)
    assert (outcome.code, outcome.out) == (0, f"{read}: cursor billing continues at offset {offset}\n")
    with Log.open(read) as log:
        assert log.cursors() == {"billing": offset, "au\ndit": 6}


def test_remove(command: Command, read: Path) -> None:
    assert command("cursors", read, "--remove", "billing").code == 0
    with Log.open(read) as log:
        assert log.cursors() == {"au\ndit": 6}


def test_a_change_as_json(command: Command, read: Path) -> None:
    """One object each, that of a reset as in the list."""
    outcome = command("cursors", read, "--reset", "billing", "--to", "5", "--json")
    moved = {"directory": str(read), "cursor": "billing", "offset": 5, "lag": 1}
    assert (outcome.code, json.loads(outcome.out)) == (0, moved)
    outcome = command("cursors", read, "--remove", "billing", "--json")
    removed = {"directory": str(read), "cursor": "billing", "is_removed": True}
    assert (outcome.code, json.loads(outcome.out)) == (0, removed)


def test_mistakes(command: Command, read: Path) -> None:
    before = (read / CURSORS_FILE).read_bytes()
    unknown = command("cursors", read, "--reset", "nobody")
    assert unknown.code == 1
    assert "has no cursor nobody; its cursors: " in unknown.err
    assert command("cursors", read, "--reset", "billing", "--to", "x").code == 2
    assert command("cursors", read, "--reset", "billing", "--to", "99").code == 1
    assert command("cursors", read, "--reset", "billing", "--to", "9" * 5000).code == 2
    assert command("cursors", read, "--reset", "billing", "--remove", "billing").code == 2
    assert command("cursors", read.parent, "--remove", "billing").code == 2
    assert command("cursors", read, "--remove", "billing", "--to", "5").code == 2
    assert "--to goes with --reset" in command("cursors", read, "--to", "5").err
    assert (read / CURSORS_FILE).read_bytes() == before


def test_a_damaged_line_is_told_everywhere(command: Command, read: Path) -> None:
    path = read / CURSORS_FILE
    path.write_bytes(b"x" + path.read_bytes())
    outcome = command("cursors", read)
    assert outcome.code == 1
    assert "line 1 cannot be read; opening the log removes it" in outcome.err
    verified = command("verify", read)
    assert (verified.code, "line 1 cannot be read; opening the log removes it" in verified.out) == (0, True)
    assert json.loads(command("dump", path, "--json").out.splitlines()[-1])["unreadable_line"] == 1


def test_kafka_ignores_the_file(command: Command, read: Path) -> None:
    outcome = command("compat", read, "--with", "kafka-3.9")
    assert "cursors are ignored and kept" in outcome.out


def test_a_salvaged_log_has_them(command: Command, read: Path, tmp_path: Path) -> None:
    target = tmp_path / "salvaged"
    assert command("salvage", read.parent, "--to", target).code == 0
    (found,) = target.rglob(CURSORS_FILE)
    with Log.open(found.parent) as log:
        assert log.cursors()["billing"] == 2
