"""`export`, as it is asked for; how it is done: exporting.py."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from logstore.spark.errors import InvalidOption
from logstore.spark.jobs.job import Prepared
from logstore.spark.jobs.source import add_source, read_options

HELP: Final = "append what is new in topics to Parquet files by topic, partition and date"

CODECS: Final = ("none", "snappy", "zstd", "lz4", "gzip")
COLUMNS: Final = ("key", "value", "offset", "timestamp", "timestampType")
_DIRECTORIES: Final = ("topic", "partition")
"""Columns that are in the names of directories, where readers find them."""


def arguments(parser: ArgumentParser) -> None:
    add_source(parser)
    output = parser.add_argument_group("what is written")
    output.add_argument(
        "--output", metavar="DIR", required=True, help="the table's directory, on this host or mounted"
    )
    output.add_argument(
        "--columns", metavar="A,B", default=",".join(COLUMNS),
        help="of key, value, offset, timestamp, timestampType, headers, leaderEpoch, segment (%(default)s)",
    )  # fmt: skip
    output.add_argument("--codec", choices=CODECS, default="zstd", help="of the files (default: %(default)s)")
    output.add_argument(
        "--file-megabytes", metavar="N", type=int, default=256,
        help="begin a new file after so much, before compression (default: %(default)s)",
    )  # fmt: skip
    output.add_argument(
        "--task-records", metavar="N", type=int, default=1 << 20, help="offsets a task (default: %(default)s)"
    )
    output.add_argument(
        "--publish-tasks", metavar="N", type=int,
        help="tasks a publication: what a killed run has to do again (default: 16 a core)",
    )  # fmt: skip


def prepare(options: Namespace) -> Prepared:
    for name in ("file_megabytes", "task_records", "publish_tasks"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InvalidOption(f"--{name.replace('_', '-')} {value}: it takes a number from 1 on")
    from logstore.spark.jobs.dated_files import FileFormat
    from logstore.spark.jobs.exporting import Export

    columns = read_options(options, [options.columns]).columns
    kept = tuple(name for name in columns if name not in _DIRECTORIES)
    if not kept:
        raise InvalidOption("--columns names only topic and partition, which are names of directories")
    return Export(
        read_options(options, kept),
        str(Path(options.output).absolute()),
        FileFormat(kept, options.codec, options.file_megabytes << 20),
        options.task_records,
        options.publish_tasks,
    )
