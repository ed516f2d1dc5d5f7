"""One partition's log on one disk: what is in it, and is it safe?

    log            Log: append, read, truncate, flush; stand_alone: one that owns its directory
    log_manager    the logs of a node, over log dirs that fail one by one
    reader         LogReader: a directory that somebody else owns
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

from logstore.batch import Batch, encode_batch, walk
from logstore.compression import Codec
from logstore.config import LogConfig
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
    OffsetOutOfRange,
    OutOfOrderSequence,
    PolicyViolation,
    RecordBatchTooLarge,
    RecordTooLarge,
    UnsupportedCompression,
)
from logstore.log import AppendInfo, FetchedBytes, FetchIsolation, Log, TimestampOffset
from logstore.log_manager import LogManager
from logstore.log_manager_config import LogManagerConfig
from logstore.losses import Loss
from logstore.producer_state import OpenTransaction, ProducerStateConfig
from logstore.reader import LogReader
from logstore.record import Header, Record
from logstore.transaction_index import AbortedTransaction

__all__ = [
    "AbortedTransaction",
    "AppendInfo",
    "Batch",
    "Codec",
    "CorruptBatch",
    "DamagedLog",
    "DiskFull",
    "FetchIsolation",
    "FetchedBytes",
    "Header",
    "InvalidConfig",
    "InvalidProducerEpoch",
    "InvalidRecord",
    "InvalidTimestamp",
    "InvalidTransactionState",
    "Log",
    "LogClosed",
    "LogConfig",
    "LogDirOffline",
    "LogGone",
    "LogManager",
    "LogManagerConfig",
    "LogReader",
    "Loss",
    "OffsetOutOfRange",
    "OpenTransaction",
    "OutOfOrderSequence",
    "PolicyViolation",
    "ProducerStateConfig",
    "Record",
    "RecordBatchTooLarge",
    "RecordTooLarge",
    "TimestampOffset",
    "UnsupportedCompression",
    "encode_batch",
    "walk",
]
