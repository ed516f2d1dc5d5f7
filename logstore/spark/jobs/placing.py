"""The table of a job, and the staged files of a publication, which are moved to their places in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from logstore.disk.copying import is_there
from logstore.disk.files import Disk, make_durable_dir
from logstore.spark.jobs.job import BadUsage

LEDGER_PREFIX: Final = ".logstore-"
"""A job keeps its ledger in the directory of this prefix and its name, in its table."""


def check_own_table(disk: Disk, table: str, job: str) -> None:
    """Raise `BadUsage` if `table` is that of another job: readers would take the files of both for one."""
    entries = disk.scan(table) if is_there(disk, table) else ()
    for entry in entries:
        if entry.name.startswith(LEDGER_PREFIX) and entry.name != LEDGER_PREFIX + job:
            other = entry.name.removeprefix(LEDGER_PREFIX)
            raise BadUsage(f"--output {table} is a table of {other}: give another directory")


def place_files(
    disk: Disk,
    staging: str,
    output: str,
    files: Iterable[tuple[str, str]],
    gone: Callable[[str], Exception],
) -> None:
    """Rename each (staged, target), relative to `staging` and `output`: a file is staged or in its place.

    Repeatable, and durable when it returns. Raises `OSError`, and `gone(path)` for a file that is in neither
    place.
    """
    files = list(files)
    directories: dict[str, set[str]] = {}
    for _, target in files:
        directory, _, name = f"{output}/{target}".rpartition("/")
        directories.setdefault(directory, set()).add(name)
    for directory in directories:
        make_durable_dir(disk, directory)
    for staged, target in files:
        if is_there(disk, f"{staging}/{staged}"):
            disk.rename(f"{staging}/{staged}", f"{output}/{target}")
    for directory, names in directories.items():
        disk.sync_dir(directory)
        found = {entry.name for entry in disk.scan(directory)}
        if missing := sorted(names - found):
            raise gone(f"{directory}/{missing[0]}")
