"""One partition's log on one disk: its content and its durability.

    log            Log: append, read, truncate, flush; stand_alone: one that owns its directory
    log_manager    the logs of a node, over log dirs that fail one by one
    reader         LogReader: a directory that another process owns
    queue          Queue: jobs that are delivered until they are acknowledged
      recovery     what opening a directory finds, cuts and rebuilds
      segment      a `.log` with its indexes: offset_index, time_index, transaction_index
      scan         thousands of batch headers at once
      validation   what may enter; producer_state: what is remembered of its senders
      read_committed   what of their transactions is shown
      batch        format v2, read in place; record, compression, varint, crc below it
    config, log_manager_config, policy, retention, epochs   pure

It knows nothing of other nodes, sockets or leaders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.lazily import names_from
from logstore.version import VERSION as __version__

if TYPE_CHECKING:
    from logstore.async_log import AsyncLog
    from logstore.config import LogConfig
    from logstore.disk.errors import CorruptCheckpoint, DirectoryLocked, EngineError
    from logstore.errors import (
        CorruptBatch,
        DamagedLog,
        DiskFull,
        InvalidConfig,
        InvalidProducerEpoch,
        InvalidRecord,
        InvalidTimestamp,
        InvalidTransactionState,
        LogClosed,
        LogDirOffline,
        LogGone,
        LogTruncated,
        OffsetOutOfRange,
        OutOfOrderSequence,
        OutOfResources,
        PolicyViolation,
        RecordBatchTooLarge,
        RecordTooLarge,
        UnsupportedCompression,
    )
    from logstore.format.batch import Batch, encode_batch, walk
    from logstore.format.compression import Codec
    from logstore.format.record import Header, Record
    from logstore.log.cursors import Cursor
    from logstore.log.following import Follower
    from logstore.log.log import AppendInfo, FetchedBytes, FetchIsolation, Log, TimestampOffset
    from logstore.log.losses import Loss
    from logstore.log.manager import LogManager
    from logstore.log.manager_config import LogManagerConfig
    from logstore.log.producer_state import OpenTransaction, ProducerStateConfig
    from logstore.log.reader import LogReader
    from logstore.log.serializers import Serializer
    from logstore.log.writer import Pending, Writer
    from logstore.queue.config import QueueConfig
    from logstore.queue.errors import AlreadyFinished, LeaseEnded, NotAQueue, QueueClosed
    from logstore.queue.messages import Message
    from logstore.queue.queue import Queue
    from logstore.queue.tasks import AsyncQueue
    from logstore.segment.transaction_index import AbortedTransaction

__all__ = [
    "AbortedTransaction",
    "AlreadyFinished",
    "AppendInfo",
    "AsyncLog",
    "AsyncQueue",
    "Batch",
    "Codec",
    "CorruptBatch",
    "CorruptCheckpoint",
    "Cursor",
    "DamagedLog",
    "DirectoryLocked",
    "DiskFull",
    "EngineError",
    "FetchIsolation",
    "FetchedBytes",
    "Follower",
    "Header",
    "InvalidConfig",
    "InvalidProducerEpoch",
    "InvalidRecord",
    "InvalidTimestamp",
    "InvalidTransactionState",
    "LeaseEnded",
    "Log",
    "LogClosed",
    "LogConfig",
    "LogDirOffline",
    "LogGone",
    "LogManager",
    "LogManagerConfig",
    "LogReader",
    "LogTruncated",
    "Loss",
    "Message",
    "NotAQueue",
    "OffsetOutOfRange",
    "OpenTransaction",
    "OutOfOrderSequence",
    "OutOfResources",
    "Pending",
    "PolicyViolation",
    "ProducerStateConfig",
    "Queue",
    "QueueClosed",
    "QueueConfig",
    "Record",
    "RecordBatchTooLarge",
    "RecordTooLarge",
    "Serializer",
    "TimestampOffset",
    "UnsupportedCompression",
    "Writer",
    "__version__",
    "encode_batch",
    "walk",
]

__getattr__, __dir__ = names_from(
    __name__,
    {
        "async_log": ("AsyncLog",),
        "format.batch": ("Batch", "encode_batch", "walk"),
        "format.compression": ("Codec",),
        "config": ("LogConfig",),
        "disk.errors": ("CorruptCheckpoint", "DirectoryLocked", "EngineError"),
        "errors": (
            "CorruptBatch",
            "DamagedLog",
            "DiskFull",
            "InvalidConfig",
            "InvalidProducerEpoch",
            "InvalidRecord",
            "InvalidTimestamp",
            "InvalidTransactionState",
            "LogClosed",
            "LogDirOffline",
            "LogGone",
            "LogTruncated",
            "OffsetOutOfRange",
            "OutOfOrderSequence",
            "OutOfResources",
            "PolicyViolation",
            "RecordBatchTooLarge",
            "RecordTooLarge",
            "UnsupportedCompression",
        ),
        "log.cursors": ("Cursor",),
        "log.following": ("Follower",),
        "log.log": ("AppendInfo", "FetchedBytes", "FetchIsolation", "Log", "TimestampOffset"),
        "log.manager": ("LogManager",),
        "log.manager_config": ("LogManagerConfig",),
        "log.losses": ("Loss",),
        "log.producer_state": ("OpenTransaction", "ProducerStateConfig"),
        "log.reader": ("LogReader",),
        "log.serializers": ("Serializer",),
        "log.writer": ("Pending", "Writer"),
        "queue.config": ("QueueConfig",),
        "queue.errors": ("AlreadyFinished", "LeaseEnded", "NotAQueue", "QueueClosed"),
        "queue.messages": ("Message",),
        "queue.queue": ("Queue",),
        "queue.tasks": ("AsyncQueue",),
        "format.record": ("Header", "Record"),
        "segment.transaction_index": ("AbortedTransaction",),
    },
)
