"""What a job reads: the options of the data source, as a command line.

    logstore pipeline export DIR… --topics orders,payments --output table
    logstore pipeline export --brokers host:9092 --starting-timestamp 2026-11-20 --output table

Whatever has no name of its own here is given as `--option NAME=VALUE`. Two things differ from a read by
`spark.read`: every topic is meant where none is named, and only committed records are read, for what was
written into a table because of a transaction that was aborted later would stay there.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from logstore.spark.errors import InvalidOption
from logstore.spark.logs import OffsetRange
from logstore.spark.ranges import cut
from logstore.spark.read_options import BOOTSTRAP_SERVERS, ReadOptions


def add_source(parser: ArgumentParser) -> None:
    """Declare the arguments that `read_options` reads."""
    source = parser.add_argument_group("what is read")
    source.add_argument("paths", metavar="DIR", nargs="*", help="log dirs, or directories of partitions")
    source.add_argument("--brokers", metavar="HOST:PORT,…", help="read from these brokers instead")
    which = source.add_mutually_exclusive_group()
    which.add_argument("--topics", metavar="A,B", help="these topics (default: all)")
    which.add_argument("--topic-pattern", metavar="REGEX", help="topics of such names")
    which.add_argument("--assign", metavar="JSON", help='partitions, as {"orders":[0,1]}')
    for word, default in (("starting", "earliest"), ("ending", "latest")):
        bound = source.add_mutually_exclusive_group()
        bound.add_argument(
            f"--{word}-offsets", metavar="JSON", help=f'{default} (default), or {{"orders":{{"0":23}}}}'
        )
        bound.add_argument(
            f"--{word}-timestamp", metavar="TIME", help="epoch milliseconds, or as 2026-11-20T15:00:00 (UTC)"
        )
    source.add_argument(
        "--option", metavar="NAME=VALUE", action="append", default=[],
        help="any other option of the data source; more than once for several",
    )  # fmt: skip


def read_options(options: Namespace, columns: Sequence[str]) -> ReadOptions:
    """The options of a batch read, as the source understands them. Raises `InvalidOption`."""
    return ReadOptions.parse(source_options(options, columns), streaming=False)


def source_options(options: Namespace, columns: Sequence[str]) -> dict[str, str]:
    """The options of a batch read, as `spark.read` is given them. Raises `InvalidOption`."""
    given: dict[str, str] = {}
    for each in options.option:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise InvalidOption(f"--option {each!r}: an option is NAME=VALUE")
        given[name] = value
    if bool(options.paths) == bool(options.brokers):
        raise InvalidOption("give either directories or --brokers")
    named: dict[str, str | None] = {
        BOOTSTRAP_SERVERS: options.brokers,
        "subscribe": options.topics,
        "subscribePattern": options.topic_pattern,
        "assign": options.assign,
        "startingOffsets": options.starting_offsets,
        "startingTimestamp": _milliseconds("--starting-timestamp", options.starting_timestamp),
        "endingOffsets": options.ending_offsets,
        "endingTimestamp": _milliseconds("--ending-timestamp", options.ending_timestamp),
    }
    given |= {name: value for name, value in named.items() if value is not None}
    if not {"subscribe", "subscribepattern", "assign"} & {name.lower() for name in given}:
        given["subscribePattern"] = ".*"
    if not {"isolation", "kafka.isolation.level"} & {name.lower() for name in given}:
        given["isolation"] = "read_committed"
    if options.paths:
        # Executors do not share our working directory.
        given["paths"] = json.dumps([str(Path(path).absolute()) for path in options.paths])
    return {**given, "columns": ",".join(columns)}


def planned(options: ReadOptions, *, max_records: int | None = None) -> list[OffsetRange]:
    """What there is to read now, in order; cut into pieces of at most `max_records` offsets.

    Raises `EngineError` where nothing can be reached.
    """
    from logstore.spark.batch_reader import plan_batch
    from logstore.spark.opening import open_logs

    logs = open_logs(options)
    try:
        return cut(plan_batch(options, logs), logs.cut_points, max_records=max_records)
    finally:
        logs.close()


def _milliseconds(option: str, text: str | None) -> str | None:
    if text is None or text.isdecimal():
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOption(
            f"{option} {text!r} is no time; give epoch milliseconds or a time like 2026-11-20T15:00:00"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return str(round(moment.timestamp() * 1000))
