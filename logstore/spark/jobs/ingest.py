"""`ingest`, as it is asked for; how it is done: ingesting.py."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from logstore.spark.jobs.job import BadUsage, named_values

if TYPE_CHECKING:
    from logstore.spark.jobs.ingesting import Ingest

HELP: Final = "write files (text, JSON, CSV, Parquet) to topics, each row once"
FORMATS: Final = ("text", "json", "csv", "parquet")
VALUES: Final = ("raw", "json", "column")


def arguments(parser: ArgumentParser) -> None:
    source = parser.add_argument_group("what is read")
    source.add_argument("paths", metavar="PATH", nargs="+", help="files, directories, patterns")
    source.add_argument(
        "--format", choices=FORMATS, default="text", help="of the files (default: %(default)s)"
    )
    source.add_argument("--schema", metavar="DDL", help="columns of JSON and CSV; else the files are asked")
    source.add_argument(
        "--reader-option", metavar="NAME=VALUE", action="append", default=[],
        help="an option of Spark's reader, as header=true; more than once for several",
    )  # fmt: skip
    source.add_argument(
        "--checkpoint", metavar="DIR",
        help="go on where the last run with it ended: new files of one directory or pattern",
    )  # fmt: skip
    rows = parser.add_argument_group("what a row becomes; expressions are Spark's SQL over the columns")
    rows.add_argument("--topic", metavar="NAME", help="of all rows")
    rows.add_argument("--topic-from", metavar="EXPR", help="each row's topic")
    rows.add_argument("--key", metavar="EXPR", help="(default: none)")
    rows.add_argument("--value", metavar="EXPR", help="with --value-format column")
    rows.add_argument(
        "--value-format", choices=VALUES,
        help="the line; all columns as a JSON object; --value (default: raw for text, else json)",
    )  # fmt: skip
    rows.add_argument("--partition", metavar="EXPR", help="(default: by the key, or in turn)")
    rows.add_argument("--timestamp", metavar="EXPR", help="(default: now)")
    rows.add_argument("--tombstones", action="store_true", help="a null value is meant: it deletes its key")
    rows.add_argument(
        "--refused", metavar="DIR",
        help="put rows that cannot be written here, with the reason (default: the first one ends the job)",
    )  # fmt: skip
    target = parser.add_argument_group("where to")
    target.add_argument("--to", metavar="DIR", help="a log dir")
    target.add_argument("--brokers", metavar="HOST:PORT,…", help="write to these brokers instead")
    target.add_argument("--partitions", metavar="N", type=int, help="make topics that are not there, so wide")
    target.add_argument(
        "--staging", metavar="DIR",
        help="for what is staged; needed with --brokers, unless there is a checkpoint",
    )  # fmt: skip
    target.add_argument(
        "--write-id", metavar="NAME:NUMBER",
        help="what this write is called: the same one, or one with a lower number, is not done again",
    )  # fmt: skip
    target.add_argument(
        "--option", metavar="NAME=VALUE", action="append", default=[],
        help="any other option of the sink; more than once for several",
    )  # fmt: skip


def prepare(options: Namespace) -> Ingest:
    """Check what was given; `BadUsage`, `InvalidOption`, `InvalidTopic` if it makes no sense."""
    from logstore.spark.jobs.ingesting import Ingest, Input, Rows

    value_format = options.value_format or ("raw" if options.format == "text" else "json")
    if value_format == "raw" and options.format != "text":
        raise BadUsage(
            f"--value-format raw is for text; {options.format} has columns: json, or column --value"
        )
    if (value_format == "column") != (options.value is not None):
        raise BadUsage("--value-format column and --value EXPR go together")
    if (options.topic is None) == (options.topic_from is None):
        raise BadUsage("give either --topic NAME or --topic-from EXPR")
    if options.checkpoint is not None and len(options.paths) != 1:
        raise BadUsage("--checkpoint is for one directory or pattern, of which new files are taken")
    if options.checkpoint is not None and options.write_id is not None:
        raise BadUsage("--checkpoint names its writes itself: --write-id is for a run without one")
    inputs = Input(
        tuple(str(Path(path).absolute()) for path in options.paths),
        options.format,
        options.schema,
        named_values("--reader-option", options.reader_option),
    )
    rows = Rows(
        value_format,
        options.value,
        options.key,
        options.topic_from,
        options.partition,
        options.timestamp,
        options.tombstones,
    )
    return Ingest(
        inputs,
        rows,
        _sink(options),
        _absolute(options.checkpoint),
        _absolute(options.refused),
        _write_id(options.write_id),
    )


def _sink(options: Namespace) -> dict[str, str]:
    from logstore.spark.read_options import BOOTSTRAP_SERVERS

    if (options.to is None) == (options.brokers is None):
        raise BadUsage("give either --to DIR or --brokers")
    staging = options.staging
    if options.brokers is not None and staging is None:
        if options.checkpoint is None:
            raise BadUsage("--brokers needs --staging: a directory that the driver and all executors see")
        staging = f"{options.checkpoint}.logstore-sink"
    named = {
        "path": _absolute(options.to),
        BOOTSTRAP_SERVERS: options.brokers,
        "topic": options.topic,
        "partitions": None if options.partitions is None else str(options.partitions),
        "stagingPath": _absolute(staging),
        "includeTimestamp": "true" if options.timestamp is not None else None,
    }
    given = named_values("--option", options.option)
    return {**given, **{name: value for name, value in named.items() if value is not None}}


def _absolute(path: str | None) -> str | None:
    # Executors do not share our working directory.
    return None if path is None else str(Path(path).absolute())


def _write_id(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    name, colon, number = text.rpartition(":")
    if not colon or not name or not (number.isascii() and number.isdecimal()):
        raise BadUsage(f"--write-id {text!r} is not NAME:NUMBER, as orders-2026:7")
    return name, int(number)
