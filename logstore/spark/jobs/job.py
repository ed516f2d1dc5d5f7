"""The interface of a job, and the options by which a job names what it reads.

    logstore pipeline export DIR… --topics orders,payments --output table
    logstore pipeline export --brokers host:9092 --starting-timestamp 2026-11-20 --output table

A job is a module with `HELP`, `arguments` and `prepare`. Options of the data source without an argument of
their own here are given as `--option NAME=VALUE`. Two defaults differ from `spark.read`: a job reads all
topics, and only committed records, because records of a transaction that is aborted later would stay in the
table.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from logstore.arguments import epoch_ms, whole_number
from logstore.disk.errors import EngineError, ErrorCode
from logstore.spark.errors import InvalidOption
from logstore.spark.jobs.work import Workers
from logstore.spark.read_options import BOOTSTRAP_SERVERS, ReadOptions, local_path


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a job or of its plan: `facts` is the JSON object, `lines` are for people."""

    facts: Mapping[str, Any]
    lines: Sequence[str]
    is_yes: bool = True
    """False exits with 1: damage found, replicas differ, rows refused"""


class Prepared(Protocol):
    """A job with valid options."""

    def plan(self) -> Answer:
        """Return what `run` would do now. Changes nothing, and needs no Spark."""

    def run(self, workers: Workers) -> Answer:
        """Do the job. Raises `EngineError` or `OSError`."""


class Job(Protocol):
    """The module of a job. Importing it must stay cheap, so that `--help` is fast."""

    @property
    def HELP(self) -> str:
        """One line for the list of jobs."""

    def arguments(self, parser: ArgumentParser) -> None:
        """Declare the job's command-line arguments."""

    def prepare(self, options: Namespace) -> Prepared:
        """Check the options. Raises `BadUsage` or `InvalidOption`."""


class BadUsage(EngineError):
    """The command line, or a data source option on it, is invalid. The message names the change to make."""

    code = ErrorCode.INVALID_REQUEST


def name_and_value(option: str, text: str, form: str = "NAME=VALUE") -> tuple[str, str]:
    """Split NAME=VALUE. Raises `BadUsage` for anything else, which names the `form`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise BadUsage(f"{option} {text!r} is not {form}")
    return name, value


def named_values(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Return the values of an option that is given as NAME=VALUE, once or more. Raises `BadUsage`."""
    return dict(name_and_value(option, text) for text in texts)


def absolute(path: str) -> str:
    """Return an absolute path, without `file:`: executors have another working directory.

    Raises `InvalidOption` for a path on another file system.
    """
    local = local_path(path)
    if local is None:
        raise InvalidOption(
            f"{path} is on another file system: mount it on the driver and all executors, and name the "
            "mounted directory"
        )
    return str(Path(local).absolute())


# --- the source of a job ------------------------------------------------------------------------------------


def add_source(parser: ArgumentParser) -> None:
    """Declare the arguments that `read_options` reads."""
    source = parser.add_argument_group("input")
    source.add_argument("paths", metavar="DIR", nargs="*", help="log dirs, or directories of partitions")
    source.add_argument("--brokers", metavar="HOST:PORT,…", help="read from these brokers instead")
    which = source.add_mutually_exclusive_group()
    which.add_argument("--topics", metavar="A,B", help="these topics (default: all)")
    which.add_argument("--topic-pattern", metavar="REGEX", help="topics that match")
    which.add_argument("--assign", metavar="JSON", help='partitions, as {"orders":[0,1]}')
    for word, default in (("starting", "earliest"), ("ending", "latest")):
        bound = source.add_mutually_exclusive_group()
        bound.add_argument(
            f"--{word}-offsets", metavar="JSON", help=f'{default} (default), or {{"orders":{{"0":23}}}}'
        )
        bound.add_argument(
            f"--{word}-timestamp", metavar="TIME", help="epoch milliseconds, or 2026-11-20T15:00:00 (UTC)"
        )
    source.add_argument(
        "--option", metavar="NAME=VALUE", action="append", default=[],
        help="another option of the data source; repeatable",
    )  # fmt: skip


def read_options(options: Namespace, columns: Sequence[str]) -> ReadOptions:
    """Return the parsed options of a batch read. Raises `BadUsage` and `InvalidOption`."""
    return ReadOptions.parse(source_options(options, columns), streaming=False)


def source_options(options: Namespace, columns: Sequence[str]) -> dict[str, str]:
    """Return the options of a batch read for `spark.read`. Raises `BadUsage` and `InvalidOption`."""
    given = named_values("--option", options.option)
    if bool(options.paths) == bool(options.brokers):
        raise InvalidOption("give either directories or --brokers")
    named = {
        BOOTSTRAP_SERVERS: options.brokers,
        "subscribe": options.topics,
        "subscribePattern": options.topic_pattern,
        "assign": options.assign,
        "startingOffsets": options.starting_offsets,
        "startingTimestamp": milliseconds("--starting-timestamp", options.starting_timestamp),
        "endingOffsets": options.ending_offsets,
        "endingTimestamp": milliseconds("--ending-timestamp", options.ending_timestamp),
    }
    given |= {name: value for name, value in named.items() if value is not None}
    if not {"subscribe", "subscribepattern", "assign"} & {name.lower() for name in given}:
        given["subscribePattern"] = ".*"
    if not {"isolation", "kafka.isolation.level"} & {name.lower() for name in given}:
        given["isolation"] = "read_committed"
    if options.paths:
        given["paths"] = json.dumps([absolute(path) for path in options.paths])
    return {**given, "columns": ",".join(columns)}


def milliseconds(option: str, text: str | None) -> str | None:
    """Return the time that an option gives, in epoch milliseconds. Raises `InvalidOption`."""
    if text is None or whole_number(text, 0) is not None:
        return text
    try:
        return str(epoch_ms(text))
    except ValueError as error:
        raise InvalidOption(
            f"{option} {text!r} is not a time; give epoch milliseconds or a time like 2026-11-20T15:00:00"
        ) from error


def check_positive(options: Namespace, *names: str) -> None:
    """Raise `InvalidOption` if one of these options is given and below 1."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InvalidOption(f"--{name.replace('_', '-')} {value}: must be 1 or more")
