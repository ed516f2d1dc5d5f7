"""An error of the engine reaches another process, as `multiprocessing` and process pools send it: pickled."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from logstore import AsyncLog, AsyncQueue, Batch, Log, OffsetOutOfRange, Queue, Record, encode_batch
from logstore.broker import RequestRefused
from logstore.disk.errors import ErrorCode
from logstore.errors import (
    CorruptBatch,
    Damage,
    DamagedLog,
    DamageKind,
    InvalidRecord,
    LogTruncated,
    RecordBatchTooLarge,
    RecordError,
    RecordTooLarge,
    UnexpectedAppendOffset,
)
from logstore.replication.errors import NotEnoughReplicas
from logstore.testing import RequestFailed, Violation

DAMAGE = Damage(DamageKind.HOLE, "0.log", 7, 3, "no batch", 0)


@pytest.mark.parametrize(
    "error",
    [
        OffsetOutOfRange(9, 0, 3),
        LogTruncated(9, 0, 3),
        RecordTooLarge(10, 5),
        RecordBatchTooLarge(10, 5),
        UnexpectedAppendOffset(1, 2, 3),
        InvalidRecord("bad", [RecordError(1, "no key")]),
        CorruptBatch("bad", DAMAGE),
        DamagedLog("bad", [DAMAGE], 4),
        NotEnoughReplicas("one of two"),
        RequestRefused(ErrorCode.INVALID_RECORD, "orders-0: no key"),
        Violation("C1", "two leaders"),
        RequestFailed(ErrorCode.REQUEST_TIMED_OUT, "orders-0", "no answer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_pickled_error_is_the_same(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.args, vars(copy)) == (
        type(error),
        str(error),
        error.args,
        vars(error),
    )


def _read_past_the_end(path: Path) -> None:
    with Log.open(path) as log:
        log[9]


def test_a_pool_of_processes_raises_the_error(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, pytest.raises(OffsetOutOfRange) as raised:
        pool.submit(_read_past_the_end, tmp_path / "orders-0").result(60)
    assert raised.value.log_end_offset == 0


def test_a_batch_is_copied_with_its_bytes() -> None:
    buffer = bytearray(encode_batch([Record(0, 0, b"k", b"v")]))
    batch = Batch(buffer)
    copies = [pickle.loads(pickle.dumps(batch)), copy.copy(batch), copy.deepcopy(batch)]
    buffer[:] = bytes(len(buffer))
    for each in copies:
        each.check_crc()
        assert [(record.key, record.value) for record in each.records()] == [(b"k", b"v")]


def test_what_belongs_to_a_process_is_refused(tmp_path: Path) -> None:
    """The error named a function inside of the opening, or a lock; a shallow copy shared the files."""
    with Log.open(tmp_path / "orders-0") as log, log.writer() as writer, Queue(tmp_path / "jobs") as queue:
        cursor = log.cursor("billing")
        pending, of_tasks = writer.append(b"0"), (AsyncLog(log), AsyncQueue(queue))
        for each in (log, writer, pending, cursor, cursor.follower, queue, *of_tasks):
            for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=f"{type(each).__name__} objects cannot be pickled"):
                    copied(each)
    assert repr(log) == f"Log({str(tmp_path / 'orders-0')!r}, [0, 1), closed)"
