"""Each row once, in order per partition, whatever fails between a task and the marker."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from logstore.config import LogConfig
from logstore.disk.errors import DirectoryLocked, EngineError
from logstore.disk.files import Disk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import Batch, encode_batch
from logstore.format.record import MAX_INT, Record
from logstore.log.log import Log
from logstore.spark.errors import PublicationBroken, RowRefused, StagedFileGone, WriteRefused
from logstore.spark.ledger import Ledger, read_ledger
from logstore.spark.publishing import Message, PartPlan, PartWrite, Plan, Producer, Publisher
from logstore.spark.sink import Sink
from logstore.spark.targets import DirectoryTarget
from logstore.testing.crash import CrashLab, CrashReport, CrashRun
from logstore.testing.disks import MemoryDisk, Operation, RecordingDisk
from tests.spark.sinks import LEDGER, LOGS, NOW_MS, on_memory, rows, staged, values

ROWS = {number: [f"{number} {row}" for row in range(4)] for number in range(3)}


def tasks(sink: Sink, number: int, attempt: int = 0) -> list[Message]:
    """Two tasks of two rows each, for two partitions, a batch a row."""
    first, second = ROWS[number][:2], ROWS[number][2:]
    return [
        staged(sink, number, [rows(first, partition=i32([0, 1]))], spark_partition=0, attempt=attempt),
        staged(sink, number, [rows(second, partition=i32([0, 1]))], spark_partition=1, attempt=attempt),
    ]


def i32(numbers: Sequence[int]) -> Any:
    import pyarrow as pa

    return pa.array(numbers, pa.int32())


def expected(*numbers: int) -> dict[str, list[str]]:
    return {
        f"t-{part}": [ROWS[number][row] for number in numbers for row in (part, part + 2)] for part in (0, 1)
    }


SETTINGS: dict[str, Any] = {"partitions": "2", "kafka.batch.size": "1"}


def publish(disk: Disk, number: int, attempt: int = 0) -> bool:
    sink = on_memory(disk, seed=number, **SETTINGS)
    return sink.commit(tasks(sink, number, attempt)[::-1], LEDGER, number)


# --- in order ---------------------------------------------------------------------------------------


def test_rows_go_by_spark_partition_and_arrival() -> None:
    disk = MemoryDisk()
    assert [publish(disk, number) for number in (0, 1, 2)] == [True] * 3
    assert values(disk) == expected(0, 1, 2)
    assert not publish(disk, 1, attempt=9)
    assert values(disk.durable_image()) == expected(0, 1, 2)
    assert disk.scan(f"{LEDGER}/staged") == []


def test_a_batch_that_is_done_is_not_even_staged() -> None:
    disk = MemoryDisk()
    publish(disk, 1)
    sink = on_memory(disk, **SETTINGS)
    assert [message.staged.name for message in tasks(sink, 1)] == ["", ""]


def test_one_producer_whose_numbers_go_on() -> None:
    disk = MemoryDisk()
    publish(disk, 0)
    publish(disk, 2)
    with Log.open(f"{LOGS}/t-1", disk=disk, clock=lambda: NOW_MS) as log:
        batches = list(log.read_batches())
    assert len({batch.producer_id for batch in batches}) == 1
    assert [batch.base_sequence for batch in batches] == [0, 1, 2, 3]
    assert batches[0].producer_id >= 1 << 61, "no broker counts that far"


def test_a_write_without_rows_is_done_too() -> None:
    disk = MemoryDisk()
    sink = on_memory(disk)
    assert sink.commit([staged(sink, 0, [])], LEDGER, 0)
    assert read_ledger(disk, LEDGER).done == 0


def test_attempts_that_lost_are_not_published_and_swept() -> None:
    disk = MemoryDisk()
    sink = on_memory(disk, **SETTINGS)
    dead = tasks(sink, 0, attempt=1)
    sink.commit(tasks(sink, 0, attempt=2), LEDGER, 0)
    assert values(disk) == expected(0)
    assert dead[0].staged.name
    assert disk.scan(f"{LEDGER}/staged") == []


def test_abort_removes_what_no_intent_names() -> None:
    disk = MemoryDisk()
    sink = on_memory(disk, **SETTINGS)
    messages = tasks(sink, 0)
    other = tasks(sink, 0, attempt=5)
    sink.abort(messages[:1], LEDGER, 0)
    names = [entry.name for entry in disk.scan(f"{LEDGER}/staged/0")]
    assert names == sorted(each.staged.name for each in [messages[1], *other])
    with Ledger(disk, LEDGER) as ledger:
        ledger.decide(0, {})
    sink.abort(other, LEDGER, 0)
    assert [entry.name for entry in disk.scan(f"{LEDGER}/staged/0")] == names


# --- crashes ----------------------------------------------------------------------------------------


def workload(run: CrashRun[int]) -> None:
    for number in (0, 1):
        publish(run.disk, number)
        run.promise(number + 1)


def second_alone(run: CrashRun[int]) -> None:
    run.is_watched = False
    publish(run.disk, 0)
    run.promise(1)
    run.is_watched = True
    publish(run.disk, 1)
    run.promise(2)


def _next_attempt(disk: Disk, number: int) -> int:
    """An attempt with a number that no staged file has, as the attempts of Spark's tasks."""
    try:
        staged = disk.scan(f"{LEDGER}/staged/{number}")
    except FileNotFoundError:
        staged = []
    return max((int(entry.name.split("-")[1]) for entry in staged), default=6) + 1


def recover(disk: Disk) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What a restart makes of it, that replays all that may not have been published, in other tasks."""
    for number in (0, 1):
        publish(disk, number, attempt=_next_attempt(disk, number))
    assert read_ledger(disk, LEDGER).intent is None
    return tuple((name, tuple(found)) for name, found in values(disk).items())


def judge(found: tuple[tuple[str, tuple[str, ...]], ...], done: int) -> None:
    assert {name: list(rows) for name, rows in found} == expected(0, 1), dict(found)


def explored(running: Callable[[CrashRun[int]], None], **given: Any) -> CrashReport:
    """Every moment of `running`."""
    lab = CrashLab(recover, judge, clock=lambda: NOW_MS, **{"images": 3, "second_images": 1, **given})
    return lab.explore(running, 0)


def test_the_power_fails_before_any_call() -> None:
    """Of a publication into partitions that are there; the slow one has the making of them as well."""
    report = explored(second_alone, kills=False)
    assert report.moments > 50
    assert report.is_good, str(report)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_power_fails_before_any_call_twice() -> None:
    report = explored(workload, images=8, depth=2)
    assert report.is_good, str(report)


def _count_nothing(self: PartPlan, batches: Any, producer: Producer) -> int:
    return 0


def _unsynced(self: Log) -> None:
    pass


def _own_files_first(
    ledger: Ledger, number: int, plan: Callable[[], Any], carry_out: Callable[[Any], Any]
) -> bool:
    if number > ledger.done:
        ledger.finish(carry_out(ledger.decide(number, plan())))
    return True


@pytest.mark.parametrize(
    ("target", "plant"),
    [
        ("logstore.spark.publishing.PartPlan.written", _count_nothing),
        ("logstore.spark.sink.publish_once", _own_files_first),
    ],
    ids=["does not count what is written", "does not carry out first what is open"],
)
def test_the_checker_notices(monkeypatch: pytest.MonkeyPatch, target: str, plant: Any) -> None:
    monkeypatch.setattr(target, plant)
    assert not explored(second_alone, stop_after=1).is_good


# --- unknown fates, without a disk ------------------------------------------------------------------


class Cluster:
    """A target in memory that fails before or after any append, and may forget a producer."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[tuple[Producer, int, list[str]]]] = {}
        self.producers = 0
        self.id: str | None = "here"
        self.fail_at: int | None = None
        self.appends = 0
        self.counts: dict[str, int] = {}
        self.forgets: set[TopicPartition] = set()

    def cluster(self) -> str | None:
        return self.id

    def topic(self, name: str) -> Any:
        from logstore.spark.sink_rows import Topic

        return Topic(self.counts[name], LogConfig()) if name in self.counts else None

    def create(self, name: str, partitions: int) -> None:
        self.counts[name] = partitions

    def _log(self, partition: TopicPartition) -> list[tuple[Producer, int, list[str]]]:
        return self.logs.setdefault(partition, [])

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {each: sum(len(batch[2]) for batch in self._log(each)) for each in partitions}

    def new_producer(self) -> Producer:
        self.producers += 1
        return Producer(self.producers, 0)

    def close(self) -> None:
        pass

    def write(self, parts: Sequence[PartWrite]) -> dict[TopicPartition, int]:
        return {part.owed.topic_partition: self._write(part) for part in parts}

    def _write(self, part: PartWrite) -> int:
        partition = part.owed.topic_partition
        log, behind, offset = self._log(partition), [], 0
        for producer, sequence, found in log:
            if offset >= part.owed.end_offset:
                records = [Record(0, 0, None, each.encode()) for each in found]
                behind.append(
                    Batch(
                        encode_batch(
                            records,
                            producer_id=producer.id,
                            producer_epoch=producer.epoch,
                            base_sequence=sequence,
                        )
                    )
                )
            offset += len(found)
        written = part.owed.written(behind, part.producer)
        for data in part.batches(written):
            batch = Batch(data)
            batch.check_crc()
            if not self._follows(partition, batch):
                return written
            self._fails()
            found = [(record.value or b"").decode() for record in batch.records()]
            log.append((part.producer, batch.base_sequence, found))
            self._fails()
            written += len(found)
        return written

    def _follows(self, partition: TopicPartition, batch: Batch) -> bool:
        mine = [each for each in self._log(partition) if each[0].id == batch.producer_id]
        if not mine or partition in self.forgets:
            return partition not in self.forgets or batch.base_sequence == 0
        return batch.base_sequence == mine[-1][1] + len(mine[-1][2])

    def _fails(self) -> None:
        self.appends += 1
        if self.appends == self.fail_at:
            raise PublicationBroken("the connection broke")

    def values(self) -> dict[str, list[str]]:
        logs = sorted(self.logs.items())
        return {str(each): [row for batch in log for row in batch[2]] for each, log in logs}


def on_cluster(cluster: Cluster, disk: Disk) -> Sink:
    from tests.spark.sinks import options

    return Sink(options(**SETTINGS), disk, lambda parsed, disk: cluster)


@pytest.mark.parametrize("step", range(1, 9))
def test_a_break_before_and_after_every_append(step: int) -> None:
    """Somebody else writes to the partition before it is gone on with."""
    cluster, disk = Cluster(), MemoryDisk()
    sink = on_cluster(cluster, disk)
    cluster.fail_at = step
    with pytest.raises(PublicationBroken):
        sink.commit(tasks(sink, 0), LEDGER, 0)
    cluster.logs[TopicPartition("t", 0)].append((Producer(99, 0), 0, ["of others"]))
    sink.abort(tasks(sink, 0, attempt=3), LEDGER, 0)
    sink.commit(tasks(sink, 1), LEDGER, 1)
    found = cluster.values()
    assert found["t-0"].count("of others") == 1
    found["t-0"].remove("of others")
    assert found == expected(0, 1)
    assert cluster.producers == 1


@pytest.mark.parametrize("step", [None, 1, 3, 6])
def test_a_log_that_has_lost_the_producer_gets_another_one(step: int | None) -> None:
    """Only for what is left, and not before that is written down."""
    cluster, disk = Cluster(), MemoryDisk()
    sink = on_cluster(cluster, disk)
    sink.commit(tasks(sink, 0), LEDGER, 0)
    cluster.forgets = {TopicPartition("t", 1)}
    if step is not None:
        cluster.fail_at = cluster.appends + step
        with pytest.raises(PublicationBroken):
            sink.commit(tasks(sink, 1), LEDGER, 1)
    cluster.forgets = {TopicPartition("t", 1)} if step != 6 else set()
    sink = on_cluster(cluster, disk)
    original = cluster._follows

    def forgets_until_renewed(partition: TopicPartition, batch: Batch) -> bool:
        if cluster.producers > 1:
            cluster.forgets = set()
        return original(partition, batch)

    cluster._follows = forgets_until_renewed  # type: ignore[method-assign]
    sink.commit(tasks(sink, 1), LEDGER, 1)
    sink.commit(tasks(sink, 2), LEDGER, 2)
    assert cluster.values() == expected(0, 1, 2)
    assert cluster.producers == 2


@pytest.mark.parametrize("step", [None, 3])
def test_a_ledger_belongs_to_one_cluster(step: int | None) -> None:
    """The second cluster lacks the published versions, and perhaps every part of an open intent."""
    cluster, other, disk = Cluster(), Cluster(), MemoryDisk()
    other.id = "there"
    cluster.fail_at = step
    sink = on_cluster(cluster, disk)
    if step is None:
        sink.commit(tasks(sink, 0), LEDGER, 0)
    else:
        with pytest.raises(PublicationBroken):
            sink.commit(tasks(sink, 0), LEDGER, 0)
    before = read_ledger(disk, LEDGER)
    elsewhere = on_cluster(other, disk)
    for number in (0, 1):
        with pytest.raises(WriteRefused, match="writes to cluster here, and this write is for cluster there"):
            elsewhere.commit(tasks(elsewhere, number), LEDGER, number)
    assert (read_ledger(disk, LEDGER), other.values()) == (before, {})
    cluster.fail_at = None
    sink.commit(tasks(sink, 1, attempt=1), LEDGER, 1)
    assert cluster.values() == expected(0, 1)


def test_a_cluster_without_an_id_is_taken_for_the_same() -> None:
    cluster, disk = Cluster(), MemoryDisk()
    for number, cluster.id in enumerate([None, "here", None]):
        sink = on_cluster(cluster, disk)
        sink.commit(tasks(sink, number), LEDGER, number)
    assert cluster.values() == expected(0, 1, 2)
    assert read_ledger(disk, LEDGER).state["cluster"] == "here"


def test_a_log_that_refuses_every_producer() -> None:
    cluster, disk = Cluster(), MemoryDisk()
    cluster._follows = lambda partition, batch: False  # type: ignore[method-assign]
    sink = on_cluster(cluster, disk)
    with pytest.raises(PublicationBroken, match="sequence numbers of 3 new producers: run logstore verify"):
        sink.commit(tasks(sink, 0), LEDGER, 0)


def owed(**given: int) -> PartPlan:
    numbers = {"end_offset": 10, "first_sequence": 5, "skip": 0, "records": 8, **given}
    return PartPlan(TopicPartition("t", 0), **numbers)


def batch(sequence: int, count: int, producer: int = 7, epoch: int = 0) -> Batch:
    records = [Record(row, 0, None, b"") for row in range(count)]
    data = encode_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return Batch(data)


def test_what_stands_is_told_by_producer_and_sequence() -> None:
    mine = Producer(7, 0)
    assert owed().written([], mine) == 0
    assert owed().written([batch(5, 2), batch(0, 4, producer=8), batch(7, 3)], mine) == 5
    assert owed().written([batch(5, 2), batch(5, 9, epoch=1)], mine) == 2
    assert owed().written([batch(9, 4)], mine) == 8, "compaction took those before"
    assert owed(first_sequence=MAX_INT - 1).written([batch(MAX_INT - 1, 5)], mine) == 5, "numbers wrap"
    assert owed(skip=3).written([batch(5, 5)], mine) == 5
    with pytest.raises(PublicationBroken, match="ledger is a copy"):
        owed(skip=3).written([batch(5, 6)], mine)
    with pytest.raises(PublicationBroken, match="ledger is a copy"):
        owed().written([batch(3, 2)], mine)


def test_a_plan_comes_back_as_it_was() -> None:
    plan = Plan([("a", 3)], Producer(1, 2), [owed(), owed(skip=1)], {"t": 4})
    assert Plan.of_json(plan.to_json()) == plan


def test_staged_files_that_the_driver_does_not_see_decide_nothing() -> None:
    disk = MemoryDisk()
    sink = on_memory(disk, **SETTINGS)
    messages = tasks(sink, 0)
    disk.remove(f"{LEDGER}/staged/0/{messages[1].staged.name}")
    with pytest.raises(StagedFileGone, match="stagingPath"):
        sink.commit(messages, LEDGER, 0)
    assert read_ledger(disk, LEDGER).intent is None


# --- directories ------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there() -> None:
    disk = MemoryDisk()
    sink = on_memory(disk)
    with pytest.raises(WriteRefused, match=r"topic t does not exist in /data/logs; set option partitions"):
        staged(sink, 0, [rows(["a"])])


def test_a_topic_that_is_there_keeps_its_partitions() -> None:
    disk = MemoryDisk()
    publish(disk, 0)
    sink = on_memory(disk, partitions="5")
    message = staged(sink, 1, [rows(["a"] * 2, partition=i32([0, 1]))])
    assert message.new_topics == {}
    with pytest.raises(RowRefused, match="partitions 0 to 1"):
        staged(sink, 1, [rows(["a"], partition=i32([2]))])


def test_a_topic_that_somebody_else_makes_meanwhile() -> None:
    disk = MemoryDisk()
    sink = on_memory(disk, **SETTINGS)
    messages = tasks(sink, 0)
    other = on_memory(disk, partitions="3")
    other.commit([staged(other, 0, [rows(["x"])], ledger="/data/sink/other")], "/data/sink/other", 0)
    with pytest.raises(WriteRefused, match="with 3 partitions, while rows were placed in 2"):
        sink.commit(messages, LEDGER, 0)
    disk = MemoryDisk()
    sink = on_memory(disk, **SETTINGS)
    messages = tasks(sink, 0)
    for partition in (0, 1):
        with Log.open(f"{LOGS}/t-{partition}", disk=disk, clock=lambda: NOW_MS) as log:
            log.append(b"before")
    sink.commit(messages, LEDGER, 0)
    assert values(disk) == {name: ["before", *found] for name, found in expected(0).items()}


def test_a_topic_that_an_open_intent_is_making() -> None:
    """Half of it may be there: tasks place rows as if all were, and so does who completes it."""
    disk = MemoryDisk()
    sink = on_memory(disk, partitions="4")
    message = staged(sink, 0, [rows(["a"])])
    with Ledger(disk, LEDGER) as ledger:
        target = sink.open_target(sink.options, disk)
        publisher = Publisher(disk, ledger, target)
        ledger.decide(0, publisher.plan(0, [message]))
        target.close()
    Log.open(f"{LOGS}/t-3", disk=disk).close()
    with pytest.raises(WriteRefused, match="lacks partitions of topic t"):
        staged(sink, 1, [rows(["b"])], ledger="/data/sink/another")
    placed = staged(on_memory(disk), 1, [rows(["b"], partition=i32([2]))])
    sink.commit([placed], LEDGER, 1)
    assert values(disk) == {"t-0": ["a"], "t-1": [], "t-2": ["b"], "t-3": []}


def test_directories_that_are_not_ours_to_write() -> None:
    disk = MemoryDisk({f"{LOGS}/meta.properties": b""})
    with pytest.raises(WriteRefused, match="belongs to a broker"):
        staged(on_memory(disk), 0, [rows(["a"])])
    disk = MemoryDisk({f"{LOGS}/00000000000000000000.log": b""})
    with pytest.raises(WriteRefused, match="name the log dir above"):
        staged(on_memory(disk), 0, [rows(["a"])])


def test_a_log_dir_that_somebody_owns() -> None:
    disk = MemoryDisk()
    publish(disk, 0)
    sink = on_memory(disk, **SETTINGS)
    messages = tasks(sink, 1)
    lock = disk.lock(LOGS)
    with pytest.raises(DirectoryLocked, match="write through the broker"):
        sink.commit(messages, LEDGER, 1)
    lock.release()
    sink.commit(messages, LEDGER, 1)
    assert values(disk) == expected(0, 1)


def test_another_sink_that_has_a_partition_open_is_waited_for() -> None:
    disk = MemoryDisk()
    publish(disk, 0)
    log = Log.open(f"{LOGS}/t-1", disk=disk, clock=lambda: NOW_MS)
    waited: list[int] = []

    def pause() -> None:
        waited.append(1)
        if len(waited) == 3:
            log.close()

    def opened(parsed: Any, disk: Disk) -> DirectoryTarget:
        from random import Random

        return DirectoryTarget(
            disk, LOGS, config=LogConfig(), clock=lambda: NOW_MS, random=Random(0), pause=pause
        )

    sink = Sink(on_memory(disk, **SETTINGS).options, disk, opened)
    sink.commit(tasks(sink, 1), LEDGER, 1)
    assert len(waited) == 3
    assert values(disk) == expected(0, 1)


def test_a_partition_whose_log_was_made_anew() -> None:
    """It knows no producer, so the numbers go on there; one that was cut gets another producer."""
    disk = MemoryDisk()
    publish(disk, 0)
    for entry in disk.scan(f"{LOGS}/t-0"):
        if entry.name != ".lock":
            disk.remove(f"{LOGS}/t-0/{entry.name}")
    with Log.open(f"{LOGS}/t-1", disk=disk, clock=lambda: NOW_MS) as log:
        log.truncate_to(1)
    publish(disk, 1)
    publish(disk, 2)
    whole = expected(0, 1, 2)
    assert values(disk) == {"t-0": whole["t-0"][2:], "t-1": [whole["t-1"][0], *whole["t-1"][2:]]}


def test_many_partitions_are_not_all_open_at_once() -> None:
    disk = MemoryDisk()
    sink = on_memory(disk, partitions="70")
    batch = rows([str(row) for row in range(70)], partition=i32(list(range(70))))
    for number in (0, 1):
        sink.commit([staged(sink, number, [batch])], LEDGER, number)
    assert set(map(tuple, values(disk).values())) == {(str(row), str(row)) for row in range(70)}


def test_a_large_record() -> None:
    disk = MemoryDisk()
    sink = on_memory(disk, **{**SETTINGS, "kafka.max.request.size": "3000000"})
    sink.commit([staged(sink, 0, [rows(["x" * 2_900_000], partition=i32([0]))])], LEDGER, 0)
    assert len(values(disk)["t-0"][0]) == 2_900_000


def test_a_disk_that_fails_for_a_while_keeps_no_log_locked() -> None:
    """Whatever cannot be written when the logs are closed: the next commit of this process opens them."""
    memory, is_failing = MemoryDisk(), False
    publish(memory, 0)

    def before(operation: Operation) -> None:
        nonlocal is_failing
        is_failing |= operation.name == "pwrite" and operation.path.startswith(f"{LEDGER}/ledger")
        if is_failing:
            raise OSError(errno.EIO, "Input/output error", operation.path)

    with pytest.raises(EngineError, match="Input/output error"):
        publish(RecordingDisk(memory, before=before), 1)
    assert publish(memory, 1, attempt=1)
    assert values(memory) == expected(0, 1)
