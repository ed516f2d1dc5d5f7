"""`Log.writer`: single appends in batches, and what each caller is told of its record."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logstore.config import LogConfig
from logstore.errors import (
    DiskFull,
    InvalidRecord,
    InvalidTimestamp,
    LogClosed,
    LogDirOffline,
    RecordTooLarge,
)
from logstore.format.batch import Batch, encode_batch
from logstore.format.record import Header, Record
from logstore.log.log import Log
from logstore.log.outgoing import append_records
from logstore.log.writer import Pending, Writer
from logstore.testing.disks import Fault, FaultyDisk, MemoryDisk
from tests.logstore.logs import DIRECTORY
from tests.logstore.plain_logs import new_disk, opened

LIMIT_S = 60
LONG_MS = 3_600_000
"""A linger that no test lives to see: batches are written because they are full, flushed or closed."""


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk(new_disk())


@pytest.fixture
def log(disk: FaultyDisk) -> Iterator[Log]:
    log = Log.open(DIRECTORY, disk=disk, clock=lambda: 10_000)
    yield log
    disk.heal()
    log.partition.abandon()


def values(log: Log) -> list[bytes | None]:
    return list(log.read_values())


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


class TestBatches:
    def test_single_appends_share_batches(self, log: Log) -> None:
        with log.writer(linger_ms=LONG_MS, max_batch=4) as writer:
            pending = [writer.append(b"%d" % number) for number in range(10)]
        assert [batch.record_count for batch in log.read_batches()] == [4, 4, 2]
        assert [each.written().first_offset for each in pending] == list(range(10))
        assert values(log) == [b"%d" % number for number in range(10)]

    def test_a_hundred_bytes_take_little_more(self, log: Log) -> None:
        with log.writer(linger_ms=LONG_MS) as writer:
            for _ in range(1000):
                writer.append(bytes(100))
        assert log.size <= 111 * 1000

    def test_a_batch_is_full_at_half_of_the_largest(self) -> None:
        log = opened(max_message_bytes=1000)
        with log.writer(linger_ms=LONG_MS) as writer:
            for _ in range(20):
                writer.append(bytes(100))
        assert [batch.record_count for batch in log.read_batches()] == [4] * 5

    def test_large_headers_count(self, log: Log) -> None:
        """Each batch was refused, its records were appended one by one, and no `Pending` was told."""
        with log.writer(linger_ms=LONG_MS) as writer:
            pending = [writer.append(b"a", headers=[("h", bytes(20_000))]) for _ in range(100)]
        assert [each.written(LIMIT_S).first_offset for each in pending] == list(range(100))
        assert len(list(log.read_batches())) == 4

    def test_keys_headers_times_pairs_and_tombstones_keep_their_order(self, log: Log) -> None:
        with log.writer(linger_ms=LONG_MS) as writer:
            writer.append(b"a")
            writer.append(b"b", key=b"k")
            writer.append(None, key=b"k")
            writer.append((b"k", b"c"))
            writer.append(b"d", headers=[("trace", b"1")])
            writer.append(b"e", timestamp_ms=9000)
            writer.append(Record(77, 8000, b"r", b"f"))
            writer.append(None)
        assert [(each.key, each.value, each.timestamp_ms, each.headers) for each in log.read()] == [
            (None, b"a", 10_000, ()),
            (b"k", b"b", 10_000, ()),
            (b"k", None, 10_000, ()),
            (b"k", b"c", 10_000, ()),
            (None, b"d", 10_000, (Header("trace", b"1"),)),
            (None, b"e", 9000, ()),
            (b"r", b"f", 8000, ()),
            (None, None, 10_000, ()),
        ]
        assert len(list(log.read_batches())) == 1

    def test_a_buffer_is_taken_as_it_is_at_the_call(self, log: Log) -> None:
        value = bytearray(b"before")
        with log.writer(linger_ms=LONG_MS) as writer:
            writer.append(value)
            value[:] = b"after!"
        assert values(log) == [b"before"]

    def test_many_records_and_large_ones_go_behind_those_that_wait(self, log: Log) -> None:
        large = bytes(log.partition.config.max_message_bytes // 2)
        with log.writer(linger_ms=LONG_MS) as writer:
            first = writer.append(b"first")
            assert not first.is_written
            many = writer.append([b"a", b"b"])
            assert first.is_written
            assert many.written().offsets == range(1, 3)
            writer.append(b"waits")
            assert writer.append(large).written().offsets == range(4, 5)
            batch = Batch(encode_batch([Record(0, 10_000, None, b"ready")]))
            assert writer.append(batch).written().offsets == range(5, 6)
        assert values(log) == [b"first", b"a", b"b", b"waits", large, b"ready"]

    def test_the_thread_writes_what_has_lingered(self, log: Log) -> None:
        with log.writer(linger_ms=1) as writer:
            assert writer.append(b"a").written(LIMIT_S).first_offset == 0
            assert writer.append(b"b").written(LIMIT_S).first_offset == 1

    def test_a_time_out_may_be_longer_than_a_wait_of_the_platform(self, log: Log) -> None:
        with log.writer(linger_ms=50) as writer:
            assert writer.append(b"a").written(timeout=float("inf")).first_offset == 0

    def test_without_linger_each_record_is_written_as_soon_as_can_be(self, log: Log) -> None:
        with log.writer(linger_ms=0) as writer:
            for offset in range(100):
                assert writer.append(b"a").written(LIMIT_S).first_offset == offset

    def test_a_time_out_leaves_the_record_where_it_is(self, log: Log) -> None:
        with log.writer(linger_ms=LONG_MS) as writer:
            pending = writer.append(b"a")
            with pytest.raises(TimeoutError, match="still waits"):
                pending.written(timeout=0)
        assert pending.written().first_offset == 0

    @pytest.mark.parametrize("timeout", [-1, float("nan"), "1"])
    def test_a_wrong_time_out_is_refused(self, log: Log, timeout: Any) -> None:
        with log.writer(linger_ms=LONG_MS) as writer:
            pending = writer.append(b"a")
            with pytest.raises((TypeError, ValueError), match=r"timeout .*or None to wait for ever"):
                pending.written(timeout)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"linger_ms": -1}, "linger_ms is -1"),
            ({"linger_ms": float("nan")}, "linger_ms is nan"),
            ({"linger_ms": float("inf")}, "linger_ms is inf"),
            ({"max_batch": 0}, "max_batch is 0"),
            ({"max_batch": 1 << 20}, "max_batch is 1048576"),
        ],
    )
    def test_settings_out_of_range(self, log: Log, settings: dict[str, float], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            log.writer(**settings)  # type: ignore[arg-type]

    def test_threads_keep_the_order_of_each(self, log: Log) -> None:
        seed = int.from_bytes(os.urandom(4))
        print(f"seed {seed}")
        each = 500
        taken: list[list[Pending]] = [[] for _ in range(8)]

        with log.writer(linger_ms=0, max_batch=7) as writer:

            def work(number: int) -> None:
                random = Random(seed + number)
                for count in range(each):
                    pending = writer.append(b"%d %d" % (number, count))
                    taken[number].append(pending)
                    if random.random() < 0.01:
                        assert pending.written(LIMIT_S)
                    elif random.random() < 0.01:
                        assert pending.synced().is_synced

            in_threads(8, work)
        found = [(value or b"").split() for value in log.read_values()]
        for number in range(8):
            assert [int(b) for a, b in found if int(a) == number] == list(range(each))
        for number, handed in enumerate(taken):
            for count, pending in enumerate(handed):
                assert log[pending.written().first_offset].value == b"%d %d" % (number, count)


class TestStates:
    def test_waiting_written_and_synced(self, log: Log) -> None:
        with log.writer(linger_ms=LONG_MS) as writer:
            pending = writer.append(b"a")
            assert repr(pending) == "Pending(waiting)"
            assert (pending.is_written, pending.is_synced) == (False, False)
            assert repr(writer) == f"Writer({log!r}, 1 records waiting)"
            writer.append([])  # what waits is written first
            assert repr(pending) == "Pending(offset 0, written)"
            assert (pending.is_written, pending.is_synced) == (True, False)
            assert not pending.written().is_synced
            assert pending.synced().is_synced
            assert repr(pending) == "Pending(offset 0, synced)"
            assert (pending.is_written, pending.is_synced) == (True, True)
            assert log.is_synced(0)

    def test_flush_syncs_what_was_taken(self, log: Log) -> None:
        with log.writer(linger_ms=LONG_MS) as writer:
            pending = writer.append(b"a")
            writer.flush()
            assert pending.is_synced

    def test_closing_writes_and_the_log_closes_its_writers(self, disk: FaultyDisk) -> None:
        log = Log.open(DIRECTORY, disk=disk)
        first, second = log.writer(linger_ms=LONG_MS), log.writer(linger_ms=LONG_MS)
        pending = first.append(b"a")
        other = second.append(b"b")
        first.close()
        first.close()
        assert pending.is_written
        assert not pending.is_synced
        log.close()
        assert other.is_synced
        with pytest.raises(LogClosed, match="this writer was closed"):
            second.append(b"c")
        with pytest.raises(LogClosed):
            log.writer()
        with Log.open(DIRECTORY, disk=disk) as again:
            assert sorted(value or b"" for value in again.read_values()) == [b"a", b"b"]

    def test_the_log_forgets_closed_writers(self, log: Log) -> None:
        for _ in range(10):
            with log.writer() as writer:
                writer.append(b"a")
            assert writer.is_closed
        assert len(log._writers) == 1

    def test_two_threads_that_ask_for_writers(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second one comes while the first looks for closed writers."""
        log.writer()
        comes, found = iter([LONG_MS]), list[Writer]()

        def is_closed(_: Writer) -> bool:
            found.extend(log.writer(linger_ms=each) for each in comes)
            return False

        with monkeypatch.context() as patch:
            patch.setattr(Writer, "is_closed", property(is_closed))
            log.writer()
        pending = found[0].append(b"a")
        log.close()
        assert pending.is_written

    def test_a_log_that_is_closed_meanwhile(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[Writer] = []

        class Late(Writer):
            def __init__(self, *arguments: Any, **settings: Any) -> None:
                super().__init__(*arguments, **settings)
                made.append(self)
                log.close()

        monkeypatch.setattr("logstore.log.writer.Writer", Late)
        with pytest.raises(LogClosed):
            log.writer()
        assert [(each.is_closed, each._thread.is_alive()) for each in made] == [(True, False)]

    def test_who_waits_is_served_by_the_close(self, log: Log) -> None:
        writer = log.writer(linger_ms=LONG_MS)
        taken = threading.Barrier(5)

        def wait(number: int) -> None:
            pending = writer.append(b"%d" % number)
            taken.wait(LIMIT_S)
            assert pending.written(LIMIT_S).offsets

        def close(_: int) -> None:
            taken.wait(LIMIT_S)
            writer.close()

        in_threads(5, lambda number: close(number) if number == 4 else wait(number))
        assert log.log_end_offset == 4

    def test_appends_that_race_with_the_close_are_in_or_refused(self, log: Log) -> None:
        writer = log.writer(linger_ms=0, max_batch=3)
        accepted: list[Pending] = []
        started = threading.Barrier(5)

        def work(number: int) -> None:
            started.wait(LIMIT_S)
            if number == 4:
                writer.close()
                return
            try:
                for _ in range(100_000):
                    accepted.append(writer.append(b"a"))
            except LogClosed:
                pass

        in_threads(5, work)
        assert sorted(each.written(LIMIT_S).first_offset for each in accepted) == list(
            range(log.log_end_offset)
        )


class TestErrors:
    def test_a_refused_record_fails_alone(self) -> None:
        log = opened(cleanup_policy="compact")
        with log.writer(linger_ms=LONG_MS) as writer:
            good = writer.append(b"a", key=b"k")
            bad = writer.append(b"a")
            late = writer.append(b"b", key=b"k")
            writer._write_open()
            assert good.written().offsets == range(1)
            assert late.written().offsets == range(1, 2)
            with pytest.raises(InvalidRecord):
                bad.written()
            assert repr(bad).startswith("Pending(failed: ")
            assert not bad.is_written
            assert not bad.is_synced
            writer.append(b"c", key=b"k")  # the error was told
        assert values(log) == [b"a", b"b", b"c"]

    @pytest.mark.parametrize("call", ["append", "flush", "close", "log.close"])
    def test_an_error_that_nobody_asked_for_is_raised_by_the_next_call(self, call: str) -> None:
        log = opened(message_timestamp_after_max_ms=1000)
        writer = log.writer(linger_ms=LONG_MS)
        writer.append(b"from the future", timestamp_ms=20_000)
        writer._write_open()
        calls: dict[str, Callable[[], object]] = {
            "append": lambda: writer.append(b"a"),
            "flush": writer.flush,
            "close": writer.close,
            "log.close": log.close,
        }
        with pytest.raises(InvalidTimestamp) as caught:
            calls[call]()
        assert caught.value.__notes__ == ["not written: 1 record of this writer"]
        if call in ("append", "flush"):
            assert log.log_end_offset == 0
            assert writer.append(b"b").is_written is False
            writer.flush()
            assert values(log) == [b"b"]
        else:
            writer.close()  # once is enough
        log.close()

    def test_what_the_call_itself_gets_wrong_is_raised_there(self, log: Log) -> None:
        with log.writer(linger_ms=LONG_MS) as writer:
            with pytest.raises(TypeError, match="serializer"):
                writer.append("text")
            with pytest.raises(TypeError, match="bytes or None"):
                writer.append(b"a", key="text")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="bytes or None"):
                writer.append((b"k", "text"))
            with pytest.raises(TypeError, match="single value"):
                writer.append((b"k", b"v"), key=b"k")
            with pytest.raises(RecordTooLarge):
                writer.append(bytes(2 * log.partition.config.max_message_bytes))
            writer.append(b"a")
        assert values(log) == [b"a"]

    @pytest.mark.parametrize("has_bad", [False, True])
    def test_a_limit_that_is_lowered_while_records_wait(self, has_bad: bool) -> None:
        """Their batch is too large now. Each is written once, by itself; only one that is refused fails."""
        log = opened(message_timestamp_after_max_ms=1000)
        partition = log.partition
        with log.writer(linger_ms=LONG_MS) as writer:
            pending = [writer.append(b"%01000d" % number) for number in range(50)]
            bad = writer.append(b"bad", timestamp_ms=20_000) if has_bad else None
            partition.config = replace(partition.config, max_message_bytes=5000)  # as `LogManager` does
            writer._write_open()
            assert [each.written(LIMIT_S).first_offset for each in pending] == list(range(50))
            if bad is not None:
                with pytest.raises(InvalidTimestamp):
                    bad.written()
            for number in range(50, 54):
                writer.append(b"%01000d" % number)
        assert values(log) == [b"%01000d" % number for number in range(54)]

    def test_a_full_disk_fails_the_batch_and_later_appends_go_on(self, log: Log, disk: FaultyDisk) -> None:
        log.append(b"before")
        with log.writer(linger_ms=LONG_MS, max_batch=2) as writer:
            disk.inject(Fault(operation="pwrite", errno=errno.ENOSPC))
            pending = [writer.append(b"a"), writer.append(b"b")]
            for each in pending:
                with pytest.raises(DiskFull):
                    each.written()
            disk.heal()
            assert [writer.append(b"c"), writer.append(b"d")][1].written().first_offset == 2
        assert values(log) == [b"before", b"c", b"d"]

    def test_a_failed_disk_in_the_thread_reaches_every_caller(self, log: Log, disk: FaultyDisk) -> None:
        log.append(b"before")
        writer = log.writer(linger_ms=1)
        disk.inject(Fault(operation="pwrite"))
        pending = writer.append(b"a")
        with pytest.raises(LogDirOffline):
            pending.written(LIMIT_S)
        disk.heal()
        after = writer.append(b"b")
        with pytest.raises(LogDirOffline):
            after.synced()
        with pytest.raises(LogDirOffline):
            log.writer()
        writer.close()

    def test_an_error_that_is_raised_again_and_again_stays_as_small(self, log: Log, disk: FaultyDisk) -> None:
        log.append(b"before")
        writer = log.writer(linger_ms=LONG_MS)
        pending = writer.append(b"a")
        disk.inject(Fault(operation="pwrite"))
        for call in (pending.written, partial(writer.append, b"b")):
            with suppress(LogDirOffline):
                writer.close()
            lengths = set()
            for _ in range(3):
                with pytest.raises((LogDirOffline, LogClosed)) as caught:
                    call()
                lengths.add(len(caught.traceback))
            assert len(lengths) == 1

    def test_a_failed_sync(self, log: Log, disk: FaultyDisk) -> None:
        with log.writer(linger_ms=1) as writer:
            pending = writer.append(b"a")
            assert pending.written(LIMIT_S)
            disk.inject(Fault(operation="sync"))
            with pytest.raises(LogDirOffline):
                pending.synced()
            assert not pending.is_synced

    def test_an_interrupt_leaves_nobody_waiting(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        writer = log.writer(linger_ms=LONG_MS)
        pending = writer.append(b"a")

        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("logstore.log.writer.append_records", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.flush()
        with pytest.raises(InterruptedError, match="look in the log"):
            pending.written(LIMIT_S)
        writer.close()


WAITS = """
import os, signal, sys
from logstore import Log
log = Log.open(sys.argv[1])
writer = log.writer(linger_ms=3_600_000, max_batch=10)
pending = [writer.append(b"%d" % number) for number in range(25)]
print(sum(each.is_written for each in pending), flush=True)
"""


@pytest.mark.parametrize(
    ("ending", "kept"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 20),  # what `is_written` said, and no more
        ("", 25),  # the regular end of a program writes what waits
        ("raise SystemExit(3)", 25),
    ],
)
def test_a_process_that_ends_while_records_wait(tmp_path: Path, ending: str, kept: int) -> None:
    path = tmp_path / "orders-0"
    done = subprocess.run(
        [sys.executable, "-c", WAITS + ending, str(path)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stderr == ""
    assert done.stdout == "20\n"
    assert done.returncode == {"o": -signal.SIGKILL, "": 0, "r": 3}[ending[:1]]
    with Log.open(path) as log:
        assert values(log) == [b"%d" % number for number in range(kept)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_writes_nothing_twice(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "orders-0")
    writer = log.writer(linger_ms=LONG_MS)
    pending = writer.append(b"a")
    child = os.fork()
    if child == 0:
        try:
            for call in (lambda: writer.append(b"b"), lambda: pending.written(LIMIT_S), writer.flush):
                with pytest.raises(LogClosed, match="parent process"):
                    call()
            writer.close()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    log.close()
    assert pending.is_synced
    with Log.open(tmp_path / "orders-0") as again:
        assert values(again) == [b"a"]


def test_memory_is_bounded_by_two_batches(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk hangs: appends wait instead of piling up."""
    from logstore.log import writer as module

    inside, go_on = threading.Event(), threading.Event()
    plain = append_records

    def slow(*arguments: object, **settings: object) -> object:
        inside.set()
        assert go_on.wait(LIMIT_S)
        return plain(*arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "append_records", slow)
    writer = log.writer(linger_ms=LONG_MS, max_batch=5)
    taken: list[int] = []

    def work(number: int) -> None:
        for count in range(20):
            writer.append(b"a")
            taken.append(count)

    thread = threading.Thread(target=work, args=(0,))
    thread.start()
    assert inside.wait(LIMIT_S)
    others = [threading.Thread(target=work, args=(0,)) for _ in range(3)]
    for other in others:
        other.start()
    while len(writer._open.rows) < 5:
        time.sleep(0)  # gives the others their turn
    assert len(writer._open.rows) == 5
    go_on.set()
    for each in (thread, *others):
        each.join(LIMIT_S)
    writer.close()
    assert log.log_end_offset == len(taken) == 80


def test_settings_of_the_log_apply(tmp_path: Path) -> None:
    disk = MemoryDisk(directories=["/data"])
    config = LogConfig.from_kafka({"compression.type": "gzip"})
    with Log.open(DIRECTORY, config, disk=disk) as log:
        with log.writer() as writer:
            for _ in range(100):
                writer.append(bytes(100))
        assert log.size < 1000
