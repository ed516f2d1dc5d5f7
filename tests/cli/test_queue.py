"""`logstore queue …`: on a queue that is open, and on one whose owner was killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore import Log, Queue, QueueConfig
from logstore.queue import lane
from tests.cli.conftest import Outcome
from tests.cli.conftest import snapshot as content_of

Command = Callable[..., Outcome]


def test_a_queue_in_use(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "EVENTS_BETWEEN_CHECKPOINTS", 3)
    with Queue(tmp_path / "jobs", QueueConfig(max_deliveries=1)) as queue:
        queue.put_many([b"%d" % number for number in range(8)])
        queue.put(b"mail \x1b[1m", key=b"k", headers=[("n", b"v")], topic="mail")
        queue.ack_many(queue.get_many(5, "default"))
        message = queue.get("default")
        assert message is not None
        queue.nack(message, reason="broken\n")
        assert queue.get("default", timeout=0) is not None  # leased
        before = content_of(tmp_path)
        figures = command("queue", "stats", tmp_path / "jobs", "--json")
        stored = [each.stored_bytes for each in queue.stats().topics.values()]
        assert [json.loads(line) for line in figures.out.splitlines()] == [
            {
                "topic": "default",
                "waiting": 2,
                "delayed": 0,
                "finished": 6,
                "stored_bytes": stored[0],
            },
            {"topic": "mail", "waiting": 1, "delayed": 0, "finished": 0, "stored_bytes": stored[1]},
            {"dead_letters": 1},
        ]
        assert "1 dead letter\n" in command("queue", "stats", tmp_path / "jobs").out
        peeked = command("queue", "peek", tmp_path / "jobs", "-n", 5)
        assert peeked.out.splitlines() == ["default 6, delivered 0×: 6", "default 7, delivered 0×: 7"]
        assert command("queue", "peek", tmp_path / "jobs", "-n", 1 << 63).code == 0
        mail = json.loads(command("queue", "peek", tmp_path / "jobs", "--topic", "mail", "--json").out)
        assert (mail["key"], mail["headers"]) == ("k", [["n", "v"]])
        shown = command("queue", "peek", tmp_path / "jobs", "--topic", "mail").out
        assert shown == "mail 0, delivered 0×: mail \\x1b[1m\n"
        unknown = command("queue", "peek", tmp_path / "jobs", "--topic", "mial")
        assert (unknown.code, unknown.out) == (2, "")
        assert "has only default, mail" in unknown.err
        dead = command("queue", "dead-letters", tmp_path / "jobs").out
        assert dead == "default 5, delivered 1× (broken\\n): 5\n"
        letter = json.loads(command("queue", "dead-letters", tmp_path / "jobs", "--json").out)
        assert (letter["value"], letter["reason"]) == ("5", "broken\n")
        assert content_of(tmp_path) == before


def test_a_delayed_message_counts_as_waiting_until_it_is_reached(command: Command, tmp_path: Path) -> None:
    """The help says so; the owner's checkpoint, here that of its end, tells that it was reached."""

    def counted() -> str:
        return str(command("queue", "stats", tmp_path / "jobs").out.partition(", 0 finished")[0])

    with Queue(tmp_path / "jobs") as queue:
        queue.put(b"later", delay=1000)
        assert counted() == "default: 1 waiting, 0 delayed"
        assert queue.get(timeout=0) is None
        assert counted() == "default: 1 waiting, 0 delayed"
    assert counted() == "default: 0 waiting, 1 delayed"
    told = " ".join(command("queue", "stats", "--help").out.split())
    assert "So does a message that was put with a delay, until a consumer has reached it." in told


def test_what_is_no_queue(command: Command, tmp_path: Path) -> None:
    Log.open(tmp_path / "orders-0").close()
    (tmp_path / "empty").mkdir()
    for name, text in (("orders-0", "is a log"), ("empty", "is not a queue")):
        for verb in ("stats", "peek", "dead-letters"):
            outcome = command("queue", verb, tmp_path / name)
            assert (outcome.code, outcome.out) == (2, "")
            assert text in outcome.err
