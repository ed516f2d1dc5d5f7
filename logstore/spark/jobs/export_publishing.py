"""How an export's files come into the table: each once, whenever the job or the power ends.

    <table>/.logstore-export/staged/7/orders-0-1024-Xq…-31-1
         │  rename, as often as need be: it is staged, or it is there
         ▼
    <table>/topic=orders/partition=0/date=2026-11-20/00000000000000001024-00000000000000002048.parquet

The ledger's intent names the files of a publication and the offsets up to which each partition is exported
once they are there; its state is those offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import Disk, make_durable_dir
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.jobs.dated_files import StagedFile
from logstore.spark.ledger import Intent, Json, staging_directory
from logstore.spark.logs import Missing, OffsetRange
from logstore.spark.offsets import flat, nested

LEDGER_DIRECTORY: Final = ".logstore-export"
"""In the table; Spark, Arrow and Hive pass over names with a dot."""


class ExportMismatch(EngineError):
    """The output is not one that this export can be appended to."""

    code = ErrorCode.INVALID_CONFIG


class Staged(NamedTuple):
    """What a task did."""

    wanted: OffsetRange
    rows: int
    files: list[StagedFile]
    missing: list[Missing]


def plan_of(staged: Sequence[Staged], exported: Mapping[TopicPartition, int], columns: Sequence[str]) -> Json:
    """The intent: which files go where, and how far each partition is exported then."""
    ends = dict(exported)
    for each in sorted(staged, key=lambda each: (each.wanted.topic_partition, each.wanted.start_offset)):
        before = ends.get(each.wanted.topic_partition, each.wanted.start_offset)
        assert before == each.wanted.start_offset, "offsets are exported in order, without a hole"
        ends[each.wanted.topic_partition] = each.wanted.end_offset
    files = [file for each in staged for file in each.files]
    assert len({file.target for file in files}) == len(files), "two files of one name"
    return {
        "columns": list(columns),
        "offsets": nested(ends),
        "files": [[file.staged, file.target] for file in sorted(files, key=_place)],
    }


def _place(file: StagedFile) -> tuple[str, str]:
    """Partition, then offset: dates may go back and forth."""
    partition, _, name = file.target.rsplit("/", 2)
    return partition, name


def carry_out(disk: Disk, output: str, intent: Intent) -> Json:
    """Move the files of an intent to their names, those that are not there yet; returns the new state.

    Raises `OSError`. All is durable when it returns.
    """
    staging = staging_directory(f"{output}/{LEDGER_DIRECTORY}", intent.number)
    try:
        waiting = {entry.name for entry in disk.scan(staging)}
    except FileNotFoundError:
        waiting = set()
    directories: dict[str, set[str]] = {}
    for _, target in intent.plan["files"]:
        directory, _, name = target.rpartition("/")
        directories.setdefault(directory, set()).add(name)
    for directory in directories:
        make_durable_dir(disk, f"{output}/{directory}")
    for staged, target in intent.plan["files"]:
        if staged in waiting:
            disk.rename(f"{staging}/{staged}", f"{output}/{target}")
    for directory, names in directories.items():
        disk.sync_dir(f"{output}/{directory}")
        there = {entry.name for entry in disk.scan(f"{output}/{directory}")}
        if missing := sorted(names - there):
            raise ExportMismatch(
                f"{output}/{directory}/{missing[0]} is gone, and was not yet known to be complete: somebody "
                "removed files while they were being published. Export into a new directory"
            )
    return {"columns": intent.plan["columns"], "offsets": intent.plan["offsets"]}


def exported(state: Json) -> dict[TopicPartition, int]:
    """How far each partition is exported, by a state or an intent's plan."""
    return flat(state.get("offsets", {}))
