"""Mistakes, and the error that says what to do; nothing is changed by any of them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logstore import Log, Queue, QueueConfig
from logstore.disk.errors import DirectoryLocked, InvalidTopic
from logstore.errors import InvalidConfig, LogDirOffline, RecordTooLarge
from logstore.queue import AlreadyFinished, AsyncQueue, LeaseEnded, NotAQueue, QueueClosed
from tests.queue.parts import Hands

Mistake = Callable[[Any, Any], object]

ON_A_QUEUE: list[tuple[str, Mistake, type[Exception], str]] = [
    ("text", lambda h, _: h.queue.put("job"), TypeError, r"bytes, not str; encode text"),
    ("no value", lambda h, _: h.queue.put(None), TypeError, "bytes, not NoneType"),
    ("a text key", lambda h, _: h.queue.put(b"job", key="17"), TypeError, "a key is bytes, not str"),
    ("a bad header", lambda h, _: h.queue.put(b"job", headers=[("n", "text")]), TypeError, "header 'n' is"),
    ("our header", lambda h, _: h.queue.put(b"", headers=[("logstore.x", b"")]), ValueError, "not begin"),
    ("one value for many", lambda h, _: h.queue.put_many(b"job"), TypeError, "use put"),
    ("a wrong one of many", lambda h, _: h.queue.put_many([b"a", 7]), TypeError, "bytes, not int"),
    ("a mapping", lambda h, _: h.queue.put_many({b"a": b"b"}), TypeError, r"pass its items\(\)"),
    ("a number for topics", lambda h, _: h.queue.get(5, timeout=0), TypeError, "one str or several, not int"),
    ("numbers for topics", lambda h, _: h.queue.get([5], timeout=0), TypeError, "several, not list"),
    ("bytes for topics", lambda h, _: h.queue.get(b"a", timeout=0), TypeError, "several, not bytes"),
    ("no reason", lambda h, m: h.queue.nack(m, reason=None), TypeError, "a reason is a str, not NoneType"),
    ("a broken reason", lambda h, m: h.queue.nack(m, reason="\udc80"), ValueError, "not valid Unicode"),
    ("too large", lambda h, _: h.queue.put(b"x" * 2_000_000), RecordTooLarge, "max.message.bytes"),
    ("a delay in the past", lambda h, _: h.queue.put(b"job", delay=-1), ValueError, "delay is -1"),
    ("a delay for ever", lambda h, _: h.queue.put(b"job", delay=float("inf")), ValueError, "delay is inf"),
    ("no number", lambda h, _: h.queue.put(b"job", delay=float("nan")), ValueError, "delay is nan"),
    ("a topic with a slash", lambda h, _: h.queue.put(b"job", topic="a/b"), InvalidTopic, "a-zA-Z0-9"),
    ("a reserved topic", lambda h, _: h.queue.put(b"job", topic="__events.a"), InvalidTopic, "reserved"),
    ("no topic", lambda h, _: h.queue.put(b"job", topic=None), TypeError, "a topic is a str"),
    ("no lease", lambda h, _: h.queue.get(lease=0, timeout=0), ValueError, "lease is 0"),
    ("a timeout in the past", lambda h, _: h.queue.get(timeout=-1), ValueError, "timeout is -1"),
    ("none at most", lambda h, _: h.queue.get_many(0), ValueError, "at least 1"),
    ("a share", lambda h, _: h.queue.get_many(1.5), TypeError, "most is an int, not float"),
    ("text for a count", lambda h, _: h.queue.get_many("3"), TypeError, "most is an int, not str"),
    ("a peek backwards", lambda h, _: h.queue.peek(-1), ValueError, "count is -1; .* at least 0"),
    ("a peek of text", lambda h, _: h.queue.peek("3"), TypeError, "count is an int, not str"),
    ("ack of a value", lambda h, m: h.queue.ack(m.value), TypeError, r"pass what get\(\) returned"),
    ("ack of nothing", lambda h, _: h.queue.ack(None), TypeError, "NoneType is not a message"),
    ("ack twice", lambda h, m: (h.queue.ack(m), h.queue.ack(m)), AlreadyFinished, "acknowledged before"),
    ("ack twice at once", lambda h, m: h.queue.ack_many([m, m]), ValueError, "twice in one call"),
    ("ack after nack", lambda h, m: (h.queue.nack(m), h.queue.ack(m)), LeaseEnded, "was returned"),
    ("ack after the lease", lambda h, m: (h.wait(99), h.get(), h.queue.ack(m)), LeaseEnded, "lease ended"),
    ("extend after the lease", lambda h, m: (h.wait(99), h.get(), h.queue.extend(m)), LeaseEnded, "longer"),
    ("another queue's", lambda h, m: h.queue.ack(m._replace(offset=99)), ValueError, "does not exist"),
    ("another topic's", lambda h, m: h.queue.ack(m._replace(topic="x")), ValueError, "no topic x"),
    ("after a restart", lambda h, m: h.reopen().ack(m), LeaseEnded, "no longer leased"),
    ("closed", lambda h, _: (h.queue.close(), h.queue.put(b"job")), QueueClosed, "open it again"),
    ("get of a closed one", lambda h, _: (h.queue.close(), h.queue.get()), QueueClosed, "open it again"),
    ("open twice", lambda h, _: h.open(), DirectoryLocked, "already"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mistake", "error", "text"), [row[1:] for row in ON_A_QUEUE], ids=[row[0] for row in ON_A_QUEUE]
)
def test_a_mistake_on_a_queue(mistake: Mistake, error: type[Exception], text: str) -> None:
    hands = Hands(QueueConfig(lease=60))
    hands.queue.put(b"job")
    message = hands.get()
    with pytest.raises(error, match=text):
        mistake(hands, message)
    if not hands.queue._is_closed:
        assert sum(hands.queue.stats().topics["default"][:4]) == 1
        assert list(hands.queue.stats().topics) == ["default"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"durability": "sync"}, "'written', 'synced'"),
        ({"lease": 0}, "lease is 0"),
        ({"max_deliveries": 0}, "max_deliveries is 0"),
        ({"deduplication_window": -1}, "deduplication_window is -1"),
        ({"max_message_bytes": 0}, "max_message_bytes is 0"),
        ({"priorities": [("a", 1)]}, "must map topics to ints"),
        ({"priorities": None}, "must map topics to ints"),
        ({"priorities": {"a": "b"}}, "'a' is 'b'"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        QueueConfig(**settings)


def test_a_path_that_is_something_else(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders-0") as log:
        log.append(b"placed")
    (tmp_path / "file").write_text("")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/notes.txt").write_text("")
    before = sorted(path for path in tmp_path.rglob("*"))
    for name, text in [("orders-0", "is a log"), ("file", "is a file"), ("home", "it holds notes.txt")]:
        with pytest.raises(NotAQueue, match=text):
            Queue(tmp_path / name)
    assert sorted(path for path in tmp_path.rglob("*")) == before
    with pytest.raises((NotAQueue, LogDirOffline)):
        Queue(tmp_path / "file/jobs")


def test_a_queue_that_must_be_there(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "jobs"):
        with pytest.raises(NotAQueue, match="has no queue, and create=False makes none: check the path"):
            Queue(path, create=False)
    with pytest.raises(NotAQueue, match="create=False"):
        AsyncQueue(tmp_path / "jobs", create=False)
    assert list(tmp_path.iterdir()) == []
    Queue(tmp_path / "jobs").close()
    Queue(tmp_path / "jobs", create=False).close()
    AsyncQueue(tmp_path / "jobs", create=False).queue.close()


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    Queue(tmp_path / "jobs").close()
    (tmp_path / "jobs/queue.json").write_text('{"version": 2}\n')
    with pytest.raises(NotAQueue, match="version 2"):
        Queue(tmp_path / "jobs")


def test_settings_can_be_copied_and_sent_to_a_process() -> None:
    for config in (QueueConfig(), QueueConfig(priorities={"urgent": 1})):
        assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
