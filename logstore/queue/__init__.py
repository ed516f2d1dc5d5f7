"""A queue of jobs on disk: put, get with a lease, acknowledge; at least once.

    queue          Queue: topics with priorities, waiting, settings; what applications call
      tasks        AsyncQueue: the same calls for asyncio
      lane         one topic: its messages, its events, its checkpoint
      state        which message is delivered next; pure
      checkpoint   the state of a lane as one small file
      looking      reads a queue that another process owns
    config, errors

It knows nothing of other nodes or sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.lazily import names_from

if TYPE_CHECKING:
    from logstore.queue.config import QueueConfig
    from logstore.queue.errors import AlreadyFinished, LeaseEnded, NotAQueue, QueueClosed
    from logstore.queue.messages import DeadLetter, Message
    from logstore.queue.queue import Queue, QueueStats
    from logstore.queue.state import LaneStats
    from logstore.queue.tasks import AsyncQueue

__all__ = [
    "AlreadyFinished",
    "AsyncQueue",
    "DeadLetter",
    "LaneStats",
    "LeaseEnded",
    "Message",
    "NotAQueue",
    "Queue",
    "QueueClosed",
    "QueueConfig",
    "QueueStats",
]

__getattr__, __dir__ = names_from(
    __name__,
    {
        "config": ("QueueConfig",),
        "errors": ("AlreadyFinished", "LeaseEnded", "NotAQueue", "QueueClosed"),
        "messages": ("DeadLetter", "Message"),
        "queue": ("Queue", "QueueStats"),
        "state": ("LaneStats",),
        "tasks": ("AsyncQueue",),
    },
)
