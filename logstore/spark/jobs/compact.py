"""`compact`, as it is asked for; how it is done: compacting.py."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from logstore.spark.errors import InvalidOption
from logstore.spark.jobs.job import Prepared
from logstore.spark.jobs.source import add_source, source_options

HELP: Final = "write the latest value of each key, as of an offset or a time, to Parquet"

CODECS: Final = ("none", "snappy", "zstd", "lz4", "gzip")
COLUMNS: Final = ("value", "offset", "timestamp")


def arguments(parser: ArgumentParser) -> None:
    add_source(parser)
    output = parser.add_argument_group("what is written")
    output.add_argument(
        "--output", metavar="DIR", required=True, help="the table's directory, on this host or mounted; new"
    )
    output.add_argument("--overwrite", action="store_true", help="put it in the place of one that is there")
    output.add_argument(
        "--columns", metavar="A,B", default=",".join(COLUMNS),
        help="beside topic, partition and key: value, offset, timestamp, … (default: %(default)s)",
    )  # fmt: skip
    output.add_argument(
        "--tombstones", choices=("drop", "keep"), default="drop",
        help="keys whose latest value is null (default: %(default)s)",
    )  # fmt: skip
    output.add_argument(
        "--null-keys", choices=("refuse", "drop"), default="refuse",
        help="records without a key have no latest one (default: %(default)s)",
    )  # fmt: skip
    output.add_argument("--codec", choices=CODECS, default="zstd", help="of the files (default: %(default)s)")


def prepare(options: Namespace) -> Prepared:
    from logstore.spark.jobs.compacting import Compact, Wanted

    named = [name.strip() for name in options.columns.split(",")]
    own = ("topic", "partition", "key")
    columns = tuple(name for name in dict.fromkeys(named) if name.lower() not in own)
    if "*" in columns:
        raise InvalidOption("--columns: name the columns that are wanted beside topic, partition and key")
    read = dict.fromkeys((*own, "offset", "value", *columns))
    return Compact(
        source_options(options, tuple(read)),
        str(Path(options.output).absolute()),
        Wanted(columns, options.codec, options.tombstones == "keep", options.null_keys == "drop"),
        options.overwrite,
    )
