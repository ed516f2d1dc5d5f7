"""What a job reads, as its command line says it: options of the source, with two defaults of their own."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import pytest

from logstore.spark.errors import InvalidOption
from logstore.spark.jobs import export, merge_state_changes
from logstore.spark.jobs.job import BadUsage, absolute, add_source, read_options
from logstore.spark.offsets import AtOffsets, AtTime, Earliest, Latest
from logstore.spark.read_options import Isolation, ReadOptions


def parsed(*arguments: str) -> ReadOptions:
    parser = ArgumentParser()
    add_source(parser)
    return read_options(parser.parse_args(arguments), ("offset", "value"))


def test_by_itself_it_is_every_committed_record(tmp_path: Path) -> None:
    """A table would keep the records of a transaction that is aborted later."""
    options = parsed(str(tmp_path))
    assert options.paths == (str(tmp_path),)
    assert options.selection.pattern == ".*"
    assert options.isolation is Isolation.READ_COMMITTED
    assert (options.starting, options.ending) == (Earliest(), Latest())
    assert options.columns == ("offset", "value")


def test_paths_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Executors have a working directory of their own."""
    monkeypatch.chdir(tmp_path)
    assert parsed("data", "more").paths == (f"{tmp_path}/data", f"{tmp_path}/more")


def test_urls_of_this_file_system_are_paths_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`--output s3://bucket/lake` made a table in the directory `s3:` here, and said that it was done."""
    monkeypatch.chdir(tmp_path)
    assert parsed(f"file://{tmp_path}/a%20b").paths == (f"{tmp_path}/a b",)
    assert absolute("file:/lake") == "/lake"
    for job, arguments in (
        (export, ["data", "--output", "s3://bucket/lake"]),
        (merge_state_changes, ["log", "--output", "s3://bucket/lake"]),
    ):
        parser = ArgumentParser()
        job.arguments(parser)
        with pytest.raises(InvalidOption, match=r"s3://bucket/lake is on another file system: mount it"):
            job.prepare(parser.parse_args(arguments))


def test_each_argument_is_an_option() -> None:
    options = parsed(
        *("--brokers", "a:1,b:2", "--topics", "x,y", "--starting-timestamp", "2026-11-20T12:00:00"),
        *("--ending-offsets", '{"x":{"0":5}}', "--option", "isolation=read_uncommitted"),
        *("--option", "failOnDataLoss=false"),
    )
    assert options.bootstrap_servers == "a:1,b:2"
    assert options.selection.topics == ("x", "y")
    assert options.starting == AtTime(1_795_176_000_000, "startingTimestamp")
    assert isinstance(options.ending, AtOffsets)
    assert options.isolation is Isolation.READ_UNCOMMITTED
    assert not options.fail_on_data_loss


@pytest.mark.parametrize("text", ["1795176000000", "2026-11-20T12:00:00Z", "2026-11-20T13:00:00+01:00"])
def test_a_moment_can_be_said_in_several_ways(text: str) -> None:
    starting = parsed("d", "--starting-timestamp", text).starting
    assert starting == AtTime(1_795_176_000_000, "startingTimestamp")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "either directories or --brokers"),
        (["d", "--brokers", "a:1"], "either directories or --brokers"),
        (["d", "--option", "isolation"], "NAME=VALUE"),
        (["d", "--option", "isolatoin=x"], "isolation"),
        (["d", "--starting-timestamp", "yesterday"], "epoch milliseconds"),
        (["d", "--starting-offsets", "latest"], "startingOffsets"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], said: str) -> None:
    with pytest.raises((BadUsage, InvalidOption), match=said):
        parsed(*arguments)
