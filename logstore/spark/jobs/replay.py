"""`replay`: copy records from directories or brokers to brokers or a directory, each once.

    source ─ ranges, filters ─ tasks stage batches ─ the driver publishes them ─► target
                                                     └─ ledger: how far each partition is

A record keeps its partition number, key, value, headers and timestamp; records of a partition keep their
order. Offsets are the target's. A publication is the ranges of some tasks. Tasks stage them as any sink does
(`sink.py`); the driver decides in the ledger which files are published and how far each partition of the
source then is, in one step, appends what the target does not have yet, and marks the publication as done. A
run that is killed leaves nothing, or a publication that the next run completes.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from random import Random
from threading import Event
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore.disk.clocks import steady_s
from logstore.disk.files import Disk, OsDisk
from logstore.disk.topic_partition import TopicPartition, check_topic_name
from logstore.spark.errors import InvalidOption, WriteRefused
from logstore.spark.jobs.job import (
    Answer,
    BadUsage,
    absolute,
    add_source,
    check_positive,
    milliseconds,
    named_values,
    read_options,
)
from logstore.spark.jobs.pieces import Told, advanced, done_of, grouped, joined, rest_of, same_topics, wait_s
from logstore.spark.jobs.work import Workers, amount, amounts, attempt_id
from logstore.spark.ledger import Json, Ledger, complete, publish_once, read_ledger
from logstore.spark.logs import Missing, OffsetRange, describe, raise_on_loss
from logstore.spark.offsets import nested
from logstore.spark.read_options import BOOTSTRAP_SERVERS, ReadOptions
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.spark.publishing import Message, Target
    from logstore.spark.write_options import WriteOptions

HELP: Final = "copy records of topics to other topics, brokers or directories, each once"

_COLUMNS: Final = ("key", "value", "headers", "timestamp")
_BURST_S: Final = 2
"""With a rate, a publication has at most the records of so many seconds."""


def arguments(parser: ArgumentParser) -> None:
    add_source(parser)
    rows = parser.add_argument_group("filters; a record must pass all of them")
    rows.add_argument(
        "--key", metavar="TEXT", action="append", default=[], help="this key, in UTF-8; repeatable"
    )
    rows.add_argument("--key-pattern", metavar="REGEX", help="keys in which this is found (RE2)")
    rows.add_argument("--since", metavar="TIME", help="timestamp at or after; TIME as --starting-timestamp")
    rows.add_argument("--before", metavar="TIME", help="timestamp before")
    target = parser.add_argument_group("output")
    target.add_argument("--to", metavar="DIR", help="a log dir")
    target.add_argument("--to-brokers", metavar="HOST:PORT,…", help="write to these brokers instead")
    target.add_argument(
        "--rename", metavar="TOPIC=NEW", action="append", default=[],
        help="write this topic under another name; repeatable",
    )  # fmt: skip
    target.add_argument(
        "--checkpoint", metavar="DIR", required=True,
        help="how far the replay is, and staged files; on a path that driver and executors share",
    )  # fmt: skip
    target.add_argument("--rate", metavar="N", type=int, help="records per second (default: no limit)")
    target.add_argument(
        "--write-option", metavar="NAME=VALUE", action="append", default=[],
        help="an option of the sink, as kafka.compression.type=zstd; repeatable",
    )  # fmt: skip
    target.add_argument(
        "--task-records",
        metavar="N",
        type=int,
        default=1 << 18,
        help="offsets per task (default: %(default)s)",
    )
    target.add_argument(
        "--publish-tasks", metavar="N", type=int,
        help="tasks per publication: the work that a killed run repeats (default: 4 per core)",
    )  # fmt: skip


def prepare(options: Namespace) -> Replay:
    """Check the options. Raises `BadUsage`, `InvalidOption`, `InvalidTopic`."""
    from logstore.spark.write_options import Delivery, WriteOptions

    check_positive(options, "task_records", "publish_tasks", "rate")
    source = read_options(options, _COLUMNS)
    given = named_values("--write-option", options.write_option)
    if (options.to is None) == (options.to_brokers is None):
        raise BadUsage("give either --to DIR or --to-brokers")
    named = {
        "path": None if options.to is None else absolute(options.to),
        BOOTSTRAP_SERVERS: options.to_brokers,
        "includeTimestamp": "true",
        "stagingPath": absolute(options.checkpoint),
    }
    sink = WriteOptions.parse(
        {**given, **{name: value for name, value in named.items() if value is not None}}, streaming=False
    )
    if sink.delivery is not Delivery.EXACTLY_ONCE or sink.topic is not None or sink.transaction is not None:
        raise InvalidOption(
            "--write-option cannot set delivery, topic, txnAppId or txnVersion: a replay writes each record "
            "once, under its topic's name or that of --rename"
        )
    renames = named_values("--rename", options.rename)
    for name in renames.values():
        check_topic_name(name)
    return Replay(
        source,
        sink,
        options.to_brokers or absolute(options.to),
        Filter.parse(options),
        renames,
        absolute(options.checkpoint),
        Pace(options.task_records, options.publish_tasks, options.rate),
    )


@dataclass(frozen=True, slots=True)
class Filter:
    """The records to copy; times in epoch milliseconds. None and () let all pass."""

    keys: tuple[str, ...] = ()
    key_pattern: str | None = None
    since_ms: int | None = None
    before_ms: int | None = None

    @classmethod
    def parse(cls, options: Namespace) -> Filter:
        """Read the command line. Raises `InvalidOption`."""
        times = [
            None if text is None else int(text)
            for text in (milliseconds("--since", options.since), milliseconds("--before", options.before))
        ]
        since_ms, before_ms = times
        if since_ms is not None and before_ms is not None and since_ms >= before_ms:
            raise InvalidOption(f"--since {options.since} is not before --before {options.before}")
        if options.key_pattern is not None:
            import pyarrow as pa
            import pyarrow.compute as pc

            try:
                pc.match_substring_regex(pa.array([b""]), options.key_pattern)
            except pa.ArrowInvalid as error:
                raise InvalidOption(f"--key-pattern {options.key_pattern!r}: {error}") from error
        return cls(tuple(options.key), options.key_pattern, since_ms, before_ms)

    def of(self, rows: Any) -> Any:
        """Return the rows of a record batch, with columns key and timestamp (int64), that pass."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from logstore.format.record import NO_TIMESTAMP

        tests = []
        if self.keys:
            wanted = pa.array([key.encode() for key in self.keys], pa.binary())
            tests.append(pc.is_in(rows.column("key"), value_set=wanted))
        if self.key_pattern is not None:
            tests.append(pc.match_substring_regex(rows.column("key"), self.key_pattern).fill_null(False))
        if self.since_ms is not None:
            tests.append(pc.greater_equal(rows.column("timestamp"), self.since_ms))
        if self.before_ms is not None:
            tests.append(pc.less(rows.column("timestamp"), self.before_ms))
            tests.append(pc.not_equal(rows.column("timestamp"), NO_TIMESTAMP))
        return rows.filter(reduce(pc.and_, tests)) if tests else rows


# --- a task -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """The work of a task: stage the records of these offsets as number `place` of a publication."""

    wanted: OffsetRange
    source: ReadOptions
    sink: WriteOptions
    filter: Filter
    ledger: str
    number: int
    place: int

    def __str__(self) -> str:
        return str(self.wanted)


class Staged(NamedTuple):
    """The result of a task: its message to the publication, and the number of records read."""

    wanted: OffsetRange
    message: Message
    read: int
    missing: list[Missing]

    @property
    def written(self) -> int:
        return sum(self.message.staged.records.values())


def stage(piece: Piece) -> Staged:
    """Write the records of `piece` that pass to a durable file with a name of this attempt.

    Raises `DataLoss` for lost records if the options ask for it, `RowRefused` for a record that the target
    does not accept, `EngineError` and `OSError`.
    """
    from logstore.spark.reading import open_logs
    from logstore.spark.sink import os_sink

    read = 0
    missing: list[Missing] = []

    def rows(found: Iterator[Any]) -> Iterator[Any]:
        nonlocal read
        for batch in found:
            read += batch.num_rows
            if (kept := piece.filter.of(_sink_rows(batch, piece.wanted.partition))).num_rows:
                yield kept

    with closing(open_logs(piece.source)) as logs:
        message = os_sink(piece.sink).stage(
            rows(logs.read(piece.wanted, ("offset", *_COLUMNS), missing)),
            piece.ledger,
            piece.number,
            spark_partition=piece.place,
            attempt=attempt_id(),
            random=Random(),
        )
    if piece.source.fail_on_data_loss:
        raise_on_loss(missing)
    return Staged(piece.wanted, message, read, missing)


def _sink_rows(batch: Any, partition: int) -> Any:
    """Return the sink's columns. A record without a timestamp has -1; names of headers stay bytes."""
    import pyarrow as pa

    from logstore.format.record import NO_TIMESTAMP

    columns = {name: batch.column(name) for name in _COLUMNS}
    columns["timestamp"] = columns["timestamp"].cast(pa.int64()).fill_null(NO_TIMESTAMP)
    columns["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
    return pa.RecordBatch.from_pydict(columns)


# --- the job ------------------------------------------------------------------------------------------------


class Pace(NamedTuple):
    """The sizes of the work; `rate` in records per second, None for no limit."""

    task_records: int
    publish_tasks: int | None
    rate: int | None

    def piece_records(self) -> int:
        """Return the most offsets of a task: those of a burst may not wait for a larger publication."""
        return self.task_records if self.rate is None else min(self.task_records, self.rate * _BURST_S)


@dataclass(frozen=True, slots=True)
class Replay:
    """A prepared replay. `target` is the directory or the brokers, as given."""

    source: ReadOptions
    sink: WriteOptions
    target: str
    filter: Filter
    renames: Mapping[str, str]
    checkpoint: str
    pace: Pace
    disk: Disk = field(default_factory=OsDisk)

    def plan(self) -> Answer:
        from logstore.spark.sink import knock

        knock(self.sink)
        entry = read_ledger(self.disk, self.checkpoint)
        state = entry.state if entry.intent is None else {"kept": entry.intent.plan.get("kept", {})}
        self._check_same(state)
        pieces, _ = self._pieces(state)
        ranges = joined(pieces)
        offsets = sum(each.size for each in ranges)
        facts = {
            "job": "replay",
            "to": self.target,
            "unfinished": entry.intent is not None,
            "offsets": offsets,
            "tasks": len(pieces),
            "partitions": [{**asdict(each), "to": self._name(each.topic)} for each in ranges],
        }
        lines = [f"{each} → {self._name(each.topic)}-{each.partition}" for each in ranges]
        if entry.intent is not None:
            lines.append("would first complete the publication that the last run left open")
        lines.append(
            f"would read {amounts(offsets, 'offset')} of {counted(len(ranges), 'partition')} in "
            f"{counted(len(pieces), 'task')}, and "
            f"write them to {self.target}"
        )
        return Answer(facts, lines)

    def run(self, workers: Workers) -> Answer:
        """Do the job. Raises `WorkFailed`, `WriteRefused`, `BadUsage`, `EngineError` and `OSError`."""
        from logstore.spark.publishing import Publisher
        from logstore.spark.sink import knock, open_target

        knock(self.sink)
        total = _Total()
        began_s = steady_s()
        with Ledger(self.disk, self.checkpoint) as ledger:
            if ledger.intent is not None:
                with closing(open_target(self.sink, self.disk)) as target:
                    complete(ledger, Publisher(self.disk, ledger, target).carry_out)
                total.recovered += 1
            self._check_same(ledger.state)
            pieces, topic_ids = self._pieces(ledger.state)
            if pieces:
                began_s = self._replay(workers, ledger, pieces, topic_ids, total)
        return total.answer(self.target, steady_s() - began_s)

    def _replay(
        self,
        workers: Workers,
        ledger: Ledger,
        pieces: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        total: _Total,
    ) -> float:
        """Publish all `pieces`; return the start time, which is after Spark has started."""
        tasks = self.pace.publish_tasks or 4 * workers.cores
        rate = self.pace.rate
        partitions = self._partitions(pieces)
        workers.progress.begin("replay", sum(each.size for each in pieces), "records")
        began_s = steady_s()
        for group in grouped(pieces, tasks, None if rate is None else rate * _BURST_S):
            number = ledger.done + 1
            work = [self._piece(each, number, place, partitions) for place, each in enumerate(group)]
            staged: list[Staged] = []
            for _, report in workers.reports(work, stage):
                staged.append(report)
                workers.progress.advance(report.wanted.size)
            self._publish(ledger, number, staged, topic_ids)
            total.add(staged)
            Event().wait(wait_s(total.written, rate, steady_s() - began_s))
        workers.progress.end()
        return began_s

    def _piece(self, wanted: OffsetRange, number: int, place: int, partitions: Mapping[str, int]) -> Piece:
        topic = self._name(wanted.topic)
        sink = replace(self.sink, topic=topic, partitions=partitions[topic])
        return Piece(wanted, self.source, sink, self.filter, self.checkpoint, number, place)

    def _publish(
        self, ledger: Ledger, number: int, staged: Sequence[Staged], topic_ids: Mapping[str, str]
    ) -> None:
        from logstore.spark.publishing import Publisher
        from logstore.spark.reading import topic_ids_now
        from logstore.spark.sink import open_target

        now = topic_ids_now(self.source, [each.wanted.topic_partition for each in staged])
        same_topics(topic_ids, now, **self._told)
        ends = advanced(done_of(ledger.state.get("kept", {})), (each.wanted for each in staged))
        kept = {"job": self._identity(), "offsets": nested(ends), "topic_ids": dict(topic_ids)}
        with closing(open_target(self.sink, self.disk)) as target:
            publisher = Publisher(self.disk, ledger, target)
            messages = [each.message for each in staged]
            publish_once(ledger, number, lambda: publisher.plan(number, messages, kept), publisher.carry_out)

    def _name(self, topic: str) -> str:
        return self.renames.get(topic, topic)

    def _identity(self) -> Json:
        """Return what runs with one checkpoint must agree on: other rows would be missing or out of order."""
        passing = {**asdict(self.filter), "keys": list(self.filter.keys)}
        return {"to": self.target, "rename": dict(self.renames), "filter": passing}

    def _check_same(self, state: Json) -> None:
        before = state.get("kept", {}).get("job")
        if before is not None and before != self._identity():
            raise BadUsage(
                f"--checkpoint {self.checkpoint} belongs to a replay with {_as_options(before)}: give the "
                "same options, or another --checkpoint"
            )

    @property
    def _told(self) -> Told:
        return {
            "fail_on_data_loss": self.source.fail_on_data_loss,
            "did": "replayed",
            "otherwise": "Replay it with another --checkpoint",
        }

    def _pieces(self, state: Json) -> tuple[list[OffsetRange], dict[str, str]]:
        """As `rest_of`. Raises `BadUsage` for a copy onto itself."""
        kept = state.get("kept", {})
        return rest_of(self.source, kept, self.pace.piece_records(), self._check_names, **self._told)

    def _check_names(self, partitions: Collection[TopicPartition]) -> None:
        topics = {each.topic for each in partitions}
        if unknown := sorted(set(self.renames) - topics):
            raise BadUsage(f"--rename names {', '.join(unknown)}, which is not among the topics to read")
        targets = Counter(map(self._name, topics))
        if merged := [name for name, count in sorted(targets.items()) if count > 1]:
            raise BadUsage(f"several topics would be written to {', '.join(merged)}; rename one of them")
        self._check_apart(topics & self.written_where_read(partitions))

    def _check_apart(self, topics: Collection[str]) -> None:
        """Raise `BadUsage` if one of these topics, which source and target have, keeps its name."""
        if onto := sorted(each for each in topics if self._name(each) == each):
            raise BadUsage(
                f"{', '.join(onto)} is source and target: give --rename {onto[0]}=NEW, or another target"
            )

    def written_where_read(self, partitions: Collection[TopicPartition]) -> set[str]:
        """Return the topics whose directories or brokers are the target's, by whatever path."""
        from logstore.spark.directory_logs import expand

        if self.sink.path is None:
            is_same = set(self.target.split(",")) & set(self.source.bootstrap_servers.split(","))
            return {each.topic for each in partitions} if is_same else set()
        read = {os.path.realpath(found) for path in self.source.paths for found in expand(path)}
        log_dir = os.path.realpath(self.sink.path)
        return {each.topic for each in partitions if {log_dir, f"{log_dir}/{each.directory_name}"} & read}

    def _is_one_cluster(self, target: Target) -> bool:
        """Return whether source and target are the same brokers, under whatever addresses."""
        from logstore.spark.client import ClientSettings
        from logstore.spark.targets import BrokerTarget

        if not self.source.bootstrap_servers:
            return False
        settings = ClientSettings.parse(self.source.bootstrap_servers, self.source.kafka)
        with closing(BrokerTarget(settings)) as source:
            cluster = source.cluster()
        return cluster is not None and cluster == target.cluster()

    def _partitions(self, pieces: Sequence[OffsetRange]) -> dict[str, int]:
        """Return the partitions of each target topic, if it must be created: as many as in the source.

        Raises `WriteRefused` for an existing topic that cannot keep partitions and timestamps, `BadUsage` for
        a copy onto itself.
        """
        from logstore.spark.reading import open_logs
        from logstore.spark.sink import open_target

        topics = {each.topic for each in pieces}
        counts: Counter[str] = Counter()
        with closing(open_logs(self.source)) as logs:
            for each in logs.partitions():
                if each.topic in topics:
                    name = self._name(each.topic)
                    counts[name] = max(counts[name], each.partition + 1)
        with closing(open_target(self.sink, self.disk)) as target:
            if self._is_one_cluster(target):
                self._check_apart(topics)
            for name, count in sorted(counts.items()):
                _check_topic(target, name, count)
        return counts


def _check_topic(target: Target, name: str, partitions: int) -> None:
    found = target.topic(name)
    if found is None:
        return
    if found.partitions < partitions:
        raise WriteRefused(
            f"topic {name} has {found.partitions} partitions, the source {partitions}: add partitions, or "
            "--rename it to a new topic. Nothing was written"
        )
    if found.config.message_timestamp_type != "CreateTime":
        raise WriteRefused(
            f"topic {name} has message.timestamp.type=LogAppendTime, which replaces timestamps: set it to "
            "CreateTime, or --rename the topic to a new one. Nothing was written"
        )


class _Total:
    """The totals of a run."""

    def __init__(self) -> None:
        self.recovered = self.publications = self.read = self.written = 0
        self.rows: Counter[TopicPartition] = Counter()
        self.missing: list[Missing] = []

    def add(self, staged: Sequence[Staged]) -> None:
        self.publications += 1
        for each in staged:
            self.read += each.read
            self.written += each.written
            self.rows.update(each.message.staged.records)
            self.missing += each.missing

    def answer(self, target: str, seconds: float) -> Answer:
        facts = {
            "job": "replay",
            "to": target,
            "read": self.read,
            "records": self.written,
            "publications": self.publications,
            "recovered": self.recovered,
            "seconds": round(seconds, 3),
            "partitions": [{**each._asdict(), "records": count} for each, count in sorted(self.rows.items())],
            "missing": [{**each._asdict(), "cause": each.cause.value} for each in self.missing],
        }
        lines = [f"{each}  {counted(count, 'record')}" for each, count in sorted(self.rows.items())]
        if self.recovered:
            lines.append("first completed the publication that the last run left open")
        lines += [describe(each) for each in self.missing if each.cause.is_loss]
        lines.append(
            f"read {amounts(self.read, 'record')} and wrote {amount(self.written)} to {target}, "
            f"{seconds:.1f} s"
            if self.read or self.publications
            else "nothing new to replay"
        )
        return Answer(facts, lines)


def _as_options(job: Json) -> str:
    """Return what `_identity` holds as on a command line."""
    passing = job["filter"]
    named = [("to", job["to"]), *(("rename", f"{topic}={new}") for topic, new in job["rename"].items())]
    named += [("key", key) for key in passing["keys"]]
    named += [("key-pattern", passing["key_pattern"])]
    named += [("since", passing["since_ms"]), ("before", passing["before_ms"])]
    return " ".join(f"--{name} {value}" for name, value in named if value is not None)
