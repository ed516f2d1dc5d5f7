"""A queue in a forked child: it is the parent's, also if a thread of the parent was using it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore import LogClosed, QueueConfig
from logstore.queue import Message, Queue

LIMIT_S = 30

Call = Callable[[Queue, Message], object]

CALLS: list[Call] = [
    lambda queue, _: queue.put(b"0", key=b"k"),
    lambda queue, _: queue.put(b"1", topic="new"),
    lambda queue, _: queue.put_many([b"2"]),
    lambda queue, _: queue.get(timeout=0),
    lambda queue, _: queue.get(),
    lambda queue, _: queue.get_many(2),
    lambda queue, _: queue.peek(),
    lambda queue, message: queue.ack(message),
    lambda queue, message: queue.ack_many([message]),
    lambda queue, message: queue.nack(message),
    lambda queue, message: queue.extend(message),
    lambda queue, _: queue.dead_letters(),
    lambda queue, _: queue.redrive(),
    lambda queue, _: queue.stats(),
]


def refused(queue: Queue, message: Message) -> None:
    for call in CALLS:
        with pytest.raises(LogClosed, match="belongs to the parent process"):
            call(queue, message)
    queue.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_is_refused_at_once(tmp_path: Path) -> None:
    """The lock is held, as by a thread of the parent in the middle of a call: a child would wait for ever."""
    with Queue(tmp_path / "jobs", QueueConfig(deduplication_window=60)) as queue:
        queue.put(b"0", key=b"k")
        message = queue.get(timeout=0)
        assert message is not None
        with queue._lock:
            child = os.fork()
            if child == 0:
                try:
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.alarm(LIMIT_S)
                    refused(queue, message)
                except BaseException as error:
                    os.write(2, repr(error).encode())
                    os._exit(1)
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        queue.ack(message)
        assert queue.put(b"1") == 1
