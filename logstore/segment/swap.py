"""Putting rewritten segments in the place of old ones, so that a crash leaves the old set or the new one.

    N.log.cleaned        being written; whatever a crash leaves of it is removed
    N.log.swap           written and durable, the last of the set first: while one of the set is still
                         `.cleaned`, all of it is removed; once all are `.swap`, the set stands
                         (sync of the directory: the commit)
    old files .deleted   then the old segments go, then the new ones take their names, the first of the set
                         first and of each its log: a name in the place of one still `.swap` is an old one

After the commit `recovery.py` finishes what was begun: it knows the old segments by their names, which lie
between the first new base and the successor that the last new seal names: the last records of what is
replaced may have left nothing. Order of calls: reliability S7.
"""

from __future__ import annotations

from collections.abc import Sequence

from logstore.config import LogConfig
from logstore.disk.files import Disk, remove_if_exists
from logstore.segment.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, Segment, file_name

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"


def begin_cleaned(
    disk: Disk, directory: str, config: LogConfig, base_offset: int, *, now_ms: int, modified_ms: int
) -> Segment:
    """An empty `.cleaned` segment; what was left of another one goes. Raises `OSError`."""
    for suffix in SEGMENT_SUFFIXES:
        remove_if_exists(disk, f"{directory}/{file_name(base_offset, suffix)}{CLEANED_SUFFIX}")
    return Segment(
        disk,
        directory,
        base_offset,
        config,
        size=0,
        now_ms=now_ms,
        is_new=True,
        modified_ms=modified_ms,
        name_suffix=CLEANED_SUFFIX,
    )


def swap(disk: Disk, directory: str, new: Sequence[Segment], old: Sequence[Segment]) -> list[str]:
    """Let the files of `new`, `.cleaned` and synced, replace those of `old`; returns what is `.deleted`.

    Raises `OSError`; what is on the disk then only opening the directory again settles.
    """
    for segment in sorted(new, key=lambda each: each.base_offset, reverse=True):
        _rename(disk, directory, segment.base_offset, CLEANED_SUFFIX, SWAP_SUFFIX, SEGMENT_SUFFIXES)
        # Each before the next lower one: out of order, a crash could leave a part that looks whole.
        disk.sync_dir(directory)
    aside = [path for segment in old for path in segment.set_aside()]
    disk.sync_dir(directory)
    for segment in sorted(new, key=lambda each: each.base_offset):
        give_names(disk, directory, segment.base_offset)
    return aside


def give_names(disk: Disk, directory: str, base_offset: int) -> None:
    """Let the `.swap` files of one segment have their names, durably; the lowest of a set comes first.

    While its `.log` has not, whatever has a name in its place is an old file. So the log goes before the
    others, and all of them before the next segment's. Those that have their names already are passed over.
    Raises `OSError`.
    """
    log, *others = SEGMENT_SUFFIXES
    assert log == LOG_SUFFIX
    for suffixes in ((log,), others):
        _rename(disk, directory, base_offset, SWAP_SUFFIX, "", suffixes)
        disk.sync_dir(directory)


def _rename(
    disk: Disk, directory: str, base_offset: int, before: str, after: str, suffixes: Sequence[str]
) -> None:
    for suffix in suffixes:
        path = f"{directory}/{file_name(base_offset, suffix)}"
        try:
            disk.rename(path + before, path + after)
        except FileNotFoundError:
            if suffix == LOG_SUFFIX and before == CLEANED_SUFFIX:  # the others need not be there
                raise
