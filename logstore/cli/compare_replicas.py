"""`logstore compare-replicas`: check that the replicas of a partition hold the same committed records.

    compare-replicas NODE-1 NODE-2 NODE-3     log dirs of several nodes: every partition that two of them have
    compare-replicas A/orders-0 B/orders-0    one partition
    compare-replicas --bootstrap HOST:PORT    replicas of running brokers, also of Apache Kafka's

Replicas are compared batch by batch, from the highest log start to the highest checkpointed high
watermark, as far as each one reaches. Below any replica's high watermark all must be equal, byte for byte.
Above it they may differ. A replica that ends earlier lags; this is not damage. Replicas compact
independently: where the cleaner's checkpoint of one says that it was compacted, records are compared, and it
may lack what compaction removes. The command only reads, also while brokers write.

Over brokers the same holds, for what each replica serves (`replica_fetching.py`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from logstore.cli.operating import LONGEST_INTERVAL_S, CommandConfig, Json, pause, value_of
from logstore.cli.operator import Bootstrap, asked_at
from logstore.cli.terminal import print_error, print_json
from logstore.wording import counted

if TYPE_CHECKING:
    from logstore.cli.brokers import Brokers
    from logstore.cli.replica_fetching import Compared
    from logstore.disk.files import Disk
    from logstore.format.batch import Batch


_FETCH_BYTES: Final = 1 << 20


class Replica(NamedTuple):
    """A partition's directory, where its log starts and ends, its high watermark, what was compacted."""

    directory: str
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    cleaned_to: int


class Problem(NamedTuple):
    """The error that ended the reading of a replica, and its place: the directory if no file is known."""

    error: str
    path: str
    position: int = 0
    text: str = ""
    is_damage: bool = False

    def facts(self) -> dict[str, object]:
        """Return what JSON shows: the object of `verify --json`."""
        return {
            "path": self.path,
            "position": self.position,
            "text": self.text or self.error,
            "is_damage": self.is_damage,
        }


class Difference(NamedTuple):
    """The first batch of `replica` that differs from the one of `reference`."""

    partition: str
    reference: str
    replica: str
    offset: int
    what: str

    def __str__(self) -> str:
        places = f"{self.replica} differs from {self.reference}"
        return f"{self.partition}  at offset {self.offset}: {places}: {self.what}"


def compare_replicas(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DIR DIR...",
            help="Log dirs of several nodes, or directories of one partition.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    topics: Annotated[
        str | None, typer.Option("--topics", metavar="REGEX", help="Only topics with a matching name.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="WHERE",
            help="Over brokers: begin at earliest, latest, or epoch ms. [default: earliest]",
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            min=0,
            max=LONGEST_INTERVAL_S,
            help="Over brokers: repeat, and report this often.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="With --interval: end after N reports.")
    ] = None,
    fetch_size: Annotated[
        int | None,
        typer.Option(
            "--fetch-size",
            metavar="BYTES",
            min=1,
            help="Over brokers: bytes per partition in a fetch. [default: 1048576]",
        ),
    ] = None,
    command_config: CommandConfig = None,
    as_json: Json = False,
) -> int:
    """Compare replicas below their high watermarks; exit 1 if any differ."""
    if (bootstrap is None) == (not directories):
        raise typer.BadParameter("give directories, or --bootstrap HOST:PORT")
    pattern = _pattern(topics)
    if bootstrap is None:
        over_brokers = {
            "--time": time,
            "--interval": interval,
            "--count": count,
            "--fetch-size": fetch_size,
            "--command-config": command_config,
        }
        if given := ", ".join(name for name, value in over_brokers.items() if value is not None):
            raise typer.BadParameter(f"{given} has no effect on directories: give --bootstrap, or omit it")
        return _compare_directories(directories or [], pattern, as_json=as_json)
    if count is not None and interval is None:
        raise typer.BadParameter("--count goes with --interval")
    time = "earliest" if time is None else time
    time_ms = {"latest": "-1", "earliest": "-2"}.get(time, time)
    if not re.fullmatch(r"-[12]|[0-9]{1,18}", time_ms):
        raise typer.BadParameter(f"--time {time!r}: write earliest, latest or epoch milliseconds")
    with asked_at(bootstrap, command_config) as brokers:
        reports = range(1 if interval is None else count or sys.maxsize)
        plan = Watch(int(time_ms), interval or 0.0, reports, fetch_size or _FETCH_BYTES)
        return _compare_over_brokers(brokers, pattern, plan, as_json=as_json)


class Watch(NamedTuple):
    """How brokers' replicas are compared: start, interval, and bytes per fetch."""

    time_ms: int
    interval_s: float
    reports: range
    fetch_size: int


def _compare_over_brokers(
    brokers: Brokers, pattern: re.Pattern[str] | None, watch: Watch, *, as_json: bool
) -> int:
    from logstore.cli.replica_fetching import begin_at, compare, partitions_to_compare

    names = [
        topic.name
        for topic in brokers.metadata().topics
        if topic.name and not topic.error_code and (pattern is None or pattern.fullmatch(topic.name))
    ]
    compared = partitions_to_compare(brokers, names)
    if not compared:
        print_error("no topic with two or more replicas matches")
        return 1
    begin_at(brokers, compared, watch.time_ms)
    for number in watch.reports:
        if number:
            pause(watch.interval_s)
            replicas = {each.partition: each.replicas for each in partitions_to_compare(brokers, names)}
            compared = [each for each in compared if each.partition in replicas]
            for each in compared:
                each.replicas = replicas[each.partition]
                each.begin()
            if not compared:
                print_error("the topics no longer exist")
                return 1
        compare(brokers, compared, watch.fetch_size)
        _report(compared, as_json=as_json)
    return int(any(each.difference is not None for each in compared) or not any(map(_is_compared, compared)))


def _is_compared(each: Compared) -> bool:
    return len(each.replicas) - len(each.left_out) > 1


def _report(compared: Sequence[Compared], *, as_json: bool) -> None:
    differing = sum(each.difference is not None for each in compared)
    last = max(compared, key=attrgetter("lag"))
    for each in compared:
        if as_json:
            print_json(
                {
                    "partition": str(each.partition),
                    "from": each.start,
                    "to": each.offset,
                    "high_watermarks": {str(broker): at for broker, at in each.high_watermarks.items()},
                    "lag": each.lag,
                    "left_out": {str(broker): why for broker, why in each.left_out.items()},
                    "not_comparable": each.not_comparable,
                    "difference": each.difference._asdict() if each.difference is not None else None,
                }
            )
            continue
        if each.difference is not None:
            print(f"{each.partition}  {each.difference}")
        elif each.lag:
            print(
                f"{each.partition}  equal up to offset {each.offset}; "
                f"a replica lags by {counted(each.lag, 'record')}"
            )
        for broker, why in sorted(each.left_out.items()):
            print(f"{each.partition}  broker {broker} is not compared: {why}")
        if each.not_comparable:
            print(
                f"{each.partition}  compacted: {each.not_comparable} records that only some replicas still "
                "have are not comparable"
            )
    total = {"partitions": sum(map(_is_compared, compared)), "differing": differing, "max_lag": last.lag}
    if as_json:
        print_json({"total": total})
    else:
        print(
            f"{counted(total['partitions'], 'partition')} compared, {differing} differ, "
            f"the largest lag is {last.lag}" + (f" ({last.partition})" if last.lag else "")
        )


def _compare_directories(directories: list[Path], pattern: re.Pattern[str] | None, *, as_json: bool) -> int:
    from logstore.disk.errors import EngineError
    from logstore.disk.files import OsDisk

    disk = OsDisk()
    found = _partitions(disk, directories, pattern)
    compared = differing = 0
    worst_lag = 0
    for partition, places in sorted(found.items()):
        if len(places) < 2:
            continue
        compared += 1
        replicas, problems = list[Replica](), list[Problem]()
        difference = None
        for place in places:
            found_there = _look(disk, place)
            if isinstance(found_there, Problem):
                problems.append(found_there)
            else:
                replicas.append(found_there)
        if not problems:
            try:
                difference = _first_difference(disk, partition, replicas)
            except EngineError as error:  # it has changed since the look
                problems.append(Problem(str(error), ", ".join(places)))
        if problems:
            differing += 1
            for problem in problems:
                print_error(f"{partition}: {problem.error}")
                if as_json:
                    print_json({"partition": partition, **problem.facts()})
            continue
        end = max(replica.log_end_offset for replica in replicas)
        lag = end - min(replica.log_end_offset for replica in replicas)
        worst_lag = max(worst_lag, lag)
        differing += difference is not None
        if as_json:
            print_json(
                {
                    "partition": partition,
                    "replicas": [replica._asdict() for replica in replicas],
                    "lag": lag,
                    "difference": difference._asdict() if difference is not None else None,
                }
            )
        elif difference is not None:
            print(difference)
        elif lag:
            print(f"{partition}  equal as far as they reach; the shortest lags by {counted(lag, 'record')}")
    if as_json:
        print_json({"total": {"partitions": compared, "differing": differing, "max_lag": worst_lag}})
    else:
        print(
            f"{counted(compared, 'partition')} compared, {differing} differ, the largest lag is {worst_lag}"
        )
    if not compared:
        print_error("no partition is in two or more of these directories")
        return 1
    return 1 if differing else 0


def _pattern(topics: str | None) -> re.Pattern[str] | None:
    with value_of("--topics", re.error):
        return re.compile(topics) if topics is not None else None


def _partitions(disk: Disk, directories: list[Path], pattern: re.Pattern[str] | None) -> dict[str, list[str]]:
    from logstore.disk.topic_partition import partition_directories

    found: dict[str, list[str]] = {}
    for directory in directories:
        for partition, path in partition_directories(disk, str(directory)):
            if pattern is None or pattern.fullmatch(partition.topic):
                found.setdefault(partition.directory_name, []).append(path)
    return found


def _look(disk: Disk, directory: str) -> Replica | Problem:
    from logstore.checkpoint.entry_files import (
        HIGH_WATERMARK_CHECKPOINT,
        LOG_START_OFFSET_CHECKPOINT,
        checkpointed_offset,
    )
    from logstore.cli.inspection import InspectingReader, cleaned_end
    from logstore.disk.errors import EngineError
    from logstore.errors import DamagedLog

    reader = None
    try:
        reader = InspectingReader(directory, disk=disk)
        for _ in reader.batches():
            pass
    except EngineError as error:
        is_damage = isinstance(error, DamagedLog)
        found = reader.damage if reader is not None and is_damage else None
        if found is None:
            return Problem(str(error), directory, is_damage=is_damage)
        return Problem(str(error), f"{directory}/{found.name}", found.position, found.fault.value, is_damage)
    start = max(reader.log_start_offset, checkpointed_offset(disk, directory, LOG_START_OFFSET_CHECKPOINT), 0)
    high_watermark = checkpointed_offset(disk, directory, HIGH_WATERMARK_CHECKPOINT)
    end, cleaned_to = max(reader.log_end_offset, start), cleaned_end(disk, directory)
    return Replica(directory, start, end, high_watermark, cleaned_to)


def _first_difference(disk: Disk, partition: str, replicas: list[Replica]) -> Difference | None:
    """Compare each replica with the longest one."""
    from logstore.log.comparison import Cleaned, differences

    reference = max(replicas, key=lambda replica: replica.log_end_offset)
    committed = max(replica.high_watermark for replica in replicas)
    for replica in replicas:
        if replica is reference:
            continue
        start = max(replica.log_start_offset, reference.log_start_offset)
        end = min(replica.log_end_offset, reference.log_end_offset, committed)
        if end <= start:
            continue
        ours, theirs = (_Batches(disk, each.directory, start) for each in (reference, replica))
        cleaned = Cleaned(reference.cleaned_to, replica.cleaned_to)
        found = next(differences(ours, theirs, cleaned, until=end), None)
        if found is not None:
            offset, what = found.first_offset, found.text
            return Difference(partition, reference.directory, replica.directory, offset, what)
    return None


@dataclass(frozen=True, slots=True)
class _Batches:
    """The batches of a replica from `start` on; each iteration reads them again."""

    disk: Disk
    directory: str
    start: int

    def __iter__(self) -> Iterator[Batch]:
        from logstore.log.reader import LogReader

        return LogReader(self.directory, start_offset=self.start, disk=self.disk).batches()
