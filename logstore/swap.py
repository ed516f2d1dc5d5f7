"""Putting rewritten segments in the place of old ones, so that a crash leaves the old set or the new one.

    N.log.cleaned        being written; whatever a crash leaves of it is removed
    N.log.swap           written and durable, the last of the set first: while one of the set is still
                         `.cleaned`, all of it is removed; once all are `.swap`, the set stands
                         (sync of the directory: the commit)
    old files .deleted   then the old segments go, then the new ones take their names

After the commit `recovery.py` finishes what was begun: it knows the old segments by their names, which lie
between the first new base and the successor that the last new seal names: the last records of what is
replaced may have left nothing. Order of calls: reliability S7.
"""

from __future__ import annotations

from collections.abc import Sequence

from checkpoint.disk import Disk
from logstore.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, Segment, file_name

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"


def swap(disk: Disk, directory: str, new: Sequence[Segment], old: Sequence[Segment]) -> list[str]:
    """Let the files of `new`, `.cleaned` and synced, replace those of `old`; returns what is `.deleted`.

    Raises `OSError`; what is on the disk then only opening the directory again settles.
    """
    for segment in sorted(new, key=lambda each: each.base_offset, reverse=True):
        _rename(disk, directory, segment.base_offset, CLEANED_SUFFIX, SWAP_SUFFIX)
        # Each before the next lower one: out of order, a crash could leave a part that looks whole.
        disk.sync_dir(directory)
    aside = [path for segment in old for path in segment.set_aside()]
    disk.sync_dir(directory)
    for segment in sorted(new, key=lambda each: each.base_offset):
        _rename(disk, directory, segment.base_offset, SWAP_SUFFIX, "")
    disk.sync_dir(directory)
    return aside


def _rename(disk: Disk, directory: str, base_offset: int, before: str, after: str) -> None:
    for suffix in SEGMENT_SUFFIXES:
        path = f"{directory}/{file_name(base_offset, suffix)}"
        try:
            disk.rename(path + before, path + after)
        except FileNotFoundError:
            if suffix == LOG_SUFFIX:  # the others need not be there
                raise
