"""`profile`, as it is asked for; how it is done: profiling.py."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from logstore.spark.errors import InvalidOption
from logstore.spark.jobs.job import Prepared
from logstore.spark.jobs.source import add_source, read_options

HELP: Final = "count what is in topics: records, bytes, keys, skew, gaps, late records; as text, JSON, HTML"


def arguments(parser: ArgumentParser) -> None:
    add_source(parser)
    shown = parser.add_argument_group("what comes out")
    shown.add_argument("--html", metavar="FILE", help="also draw it: one page, nothing else needed")
    shown.add_argument(
        "--task-records", metavar="N", type=int, default=4 << 20, help="offsets a task (default: %(default)s)"
    )


def prepare(options: Namespace) -> Prepared:
    if options.task_records < 1:
        raise InvalidOption(f"--task-records {options.task_records}: it takes a number from 1 on")
    html = None if options.html is None else Path(options.html)
    if html is not None and not html.absolute().parent.is_dir():
        raise InvalidOption(f"--html {html}: there is no directory {html.absolute().parent}")
    from logstore.spark.jobs.profiling import Profile

    source = options.brokers or " ".join(options.paths)
    return Profile(read_options(options, ("offset",)), source, html, options.task_records)
