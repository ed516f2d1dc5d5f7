"""What each part of this project says of a partition's directory: sound, torn tail or damage.

Nothing is known of the directory but what lies in it: a partition that was copied from somewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Final

from logstore.cli.inspection import role_of
from logstore.cli.shadow import ShadowDisk
from logstore.cli.verification import verify_files
from logstore.cli.whole_trees import verify_tree
from logstore.config import LogConfig
from logstore.disk.files import Disk
from logstore.errors import DamagedLog
from logstore.log.reader import LogReader
from logstore.log.recovery import load
from logstore.segment.damage import Verdict, judge
from logstore.spark.directory_logs import DirectoryLogs
from logstore.spark.logs import Missing, OffsetRange


def recovered(disk: Disk, directory: str) -> Verdict:
    """Return what `recover --plan` says."""
    try:
        loaded = load(
            ShadowDisk(disk),
            directory,
            LogConfig(),
            is_clean=False,
            recovery_point=None,
            log_start_offset=0,
            now_ms=0,
            reads_all=True,
        )
    except DamagedLog:
        return Verdict.DAMAGE
    return Verdict.TORN_TAIL if loaded.report.cuts else Verdict.SOUND


def verified(disk: Disk, directory: str) -> Verdict:
    found = list(verify_tree(disk, directory, lambda _: None))
    if any(each.is_damage for each in found):
        return Verdict.DAMAGE
    is_torn = any("torn by a crash" in each.text or "zero bytes to the end" in each.text for each in found)
    return Verdict.TORN_TAIL if is_torn else Verdict.SOUND


def dumped(disk: Disk, directory: str) -> Verdict:
    """Return what `dump --verify` says."""
    names = sorted(entry.name for entry in disk.scan(directory))
    files = [(name, role) for name in names if (role := role_of(name)) is not None]
    problems = [each for report in verify_files(disk, directory, files) for each in report.problems]
    if any(each.is_damage for each in problems):
        return Verdict.DAMAGE
    is_torn = any(each.file.endswith(".log") for each in problems)
    return Verdict.TORN_TAIL if is_torn else Verdict.SOUND


def read(disk: Disk, directory: str) -> Verdict:
    reader = LogReader(directory, disk=disk)
    try:
        for _ in reader.batches():
            pass
    except DamagedLog:
        return Verdict.DAMAGE
    tail = reader.tail
    return Verdict.SOUND if tail is None else judge(tail.fault, is_end=True, below_durable=None)


def spark_read(disk: Disk, directory: str) -> Verdict:
    """Return what the data source says: damage, or not. A torn tail is the end of the log to it."""
    with closing(DirectoryLogs([directory], disk=disk)) as logs:
        try:
            ((partition, bounds),) = logs.bounds(logs.partitions()).items()
            missing: list[Missing] = []
            for _ in logs.read(OffsetRange(*partition, *bounds), ("offset", "value"), missing):
                pass
        except DamagedLog:
            return Verdict.DAMAGE
    return Verdict.DAMAGE if any(each.cause.is_loss for each in missing) else Verdict.SOUND


PARTS: Final[tuple[Callable[[Disk, str], Verdict], ...]] = (recovered, verified, dumped, read)
